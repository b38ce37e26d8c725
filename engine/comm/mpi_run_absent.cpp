// A build without MPI.
#include "engine/comm/mpi_run.hpp"
#include "engine/core/error.hpp"

namespace lockstep::comm {

namespace {
[[noreturn]] void refuse() {
  throw UnsupportedError("this build has no MPI",
                         "install libopenmpi-dev and build again, or start the ranks by torchrun's "
                         "variables, which need none");
}
}  // namespace

bool mpi_is_built_in() { return false; }
std::string mpi_facts() { return "not built in: libopenmpi-dev was missing"; }
MpiRun start_mpi(bool) { refuse(); }
int wait_for_launcher() { refuse(); }
void end_mpi(int) {}

}  // namespace lockstep::comm
