// A run that mpirun or srun started through MPI: which process this is, who shares its machine, and the link between
// the launchers. The first process of a machine is its launcher. The others only hold their place until the run ends.
// mpi_run.cpp implements it; mpi_run_absent.cpp takes its place in a build without MPI.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/comm/link.hpp"

namespace lockstep::comm {

bool mpi_is_built_in();
// "Open MPI 4.1.4", or why there is none. For `lockstep doctor`.
std::string mpi_facts();

struct MpiRun {
  int rank = 0, world_size = 1;
  std::vector<int> host_of;    // per rank; hosts are numbered by their first ranks
  std::unique_ptr<Link> link;  // null in a process that is not a launcher
};

// Starts MPI, once per process. With `each_rank_is_a_host`, processes of one machine count as machines of their own,
// for tests and measurements. Throws UnsupportedError in a build without MPI, and Error when MPI does not start.
MpiRun start_mpi(bool each_rank_is_a_host = false);
// In a process that is no launcher: sleeps until its launcher ends the run, and returns the exit code to end with.
int wait_for_launcher();
// In a launcher: ends the processes that wait for it, and MPI. All launchers call it with the same code.
void end_mpi(int exit_code);

}  // namespace lockstep::comm
