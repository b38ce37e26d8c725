// For tests that two processes run together: `mpirun -n 2 comm_tests --gtest_filter=...`.
#pragma once

#include <cstdlib>
#include <string>

#include <gtest/gtest.h>

#include "engine/comm/mpi_run.hpp"

namespace lockstep::comm::testing_mpi {

// Suites over links and transports take the rows of MPI then, and no others.
inline bool has_two_processes() {
  const char* const size = std::getenv("OMPI_COMM_WORLD_SIZE");
  return mpi_is_built_in() && size != nullptr && std::string(size) == "2";
}

struct EndMpi : testing::Environment {
  void TearDown() override { end_mpi(0); }
};

// The link between the two processes, each of which is a host. MPI ends after the last test.
inline Link& link_of_two() {
  static const MpiRun run = [] {
    testing::AddGlobalTestEnvironment(new EndMpi);
    return start_mpi(true);
  }();
  return *run.link;
}

}  // namespace lockstep::comm::testing_mpi
