#include "engine/comm/mpi_run.hpp"

#include <algorithm>

#include <mpi.h>
#include <time.h>

#include "engine/comm/mpi_link.hpp"
#include "engine/core/error.hpp"

namespace lockstep::comm {

namespace {

// One MPI per process.
struct MpiState {
  MPI_Comm machine = MPI_COMM_NULL;    // the processes of this machine; the first is the launcher
  MPI_Comm launchers = MPI_COMM_NULL;  // null in other processes
};
MpiState& state() {
  static MpiState one;
  return one;
}

void check(int code, const char* call) {
  if (code != MPI_SUCCESS) throw Error(str(call, " failed with code ", code), "run `mpirun -n 2 hostname` to test MPI");
}

void sleep_ns(std::int64_t ns) {
  const timespec time{0, ns};
  nanosleep(&time, nullptr);
}

// Sleeps until the request is done. MPI's own waits would use a core.
void wait_for(MPI_Request& request) {
  for (int done = 0; done == 0;) {
    check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    if (done == 0) sleep_ns(5'000'000);
  }
}

}  // namespace

bool mpi_is_built_in() { return true; }

std::string mpi_facts() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  MPI_Get_library_version(text, &length);
  const std::string all(text, static_cast<std::size_t>(length));
  return all.substr(0, all.find(','));
}

MpiRun start_mpi(bool each_rank_is_a_host) {
  check(MPI_Init(nullptr, nullptr), "MPI_Init");
  MpiRun run;
  check(MPI_Comm_rank(MPI_COMM_WORLD, &run.rank), "MPI_Comm_rank");
  check(MPI_Comm_size(MPI_COMM_WORLD, &run.world_size), "MPI_Comm_size");
  if (each_rank_is_a_host)
    check(MPI_Comm_split(MPI_COMM_WORLD, run.rank, 0, &state().machine), "MPI_Comm_split");
  else
    check(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, run.rank, MPI_INFO_NULL, &state().machine),
          "MPI_Comm_split_type");
  int on_machine = 0, first = run.rank;
  check(MPI_Comm_rank(state().machine, &on_machine), "MPI_Comm_rank");
  check(MPI_Bcast(&first, 1, MPI_INT, 0, state().machine), "MPI_Bcast");
  std::vector<int> firsts(static_cast<std::size_t>(run.world_size));
  check(MPI_Allgather(&first, 1, MPI_INT, firsts.data(), 1, MPI_INT, MPI_COMM_WORLD), "MPI_Allgather");
  std::vector<int> launchers = firsts;
  std::sort(launchers.begin(), launchers.end());
  launchers.erase(std::unique(launchers.begin(), launchers.end()), launchers.end());
  for (const int each : firsts)
    run.host_of.push_back(
        static_cast<int>(std::lower_bound(launchers.begin(), launchers.end(), each) - launchers.begin()));
  check(MPI_Comm_split(MPI_COMM_WORLD, on_machine == 0 ? 0 : MPI_UNDEFINED, run.rank, &state().launchers),
        "MPI_Comm_split");
  if (on_machine == 0) run.link = make_mpi_link(&state().launchers);
  return run;
}

int wait_for_launcher() {
  int exit_code = 0;
  MPI_Request request;
  check(MPI_Ibcast(&exit_code, 1, MPI_INT, 0, state().machine, &request), "MPI_Ibcast");
  wait_for(request);
  check(MPI_Finalize(), "MPI_Finalize");
  return exit_code;
}

void end_mpi(int exit_code) {
  MPI_Request request;
  check(MPI_Ibcast(&exit_code, 1, MPI_INT, 0, state().machine, &request), "MPI_Ibcast");
  wait_for(request);
  check(MPI_Finalize(), "MPI_Finalize");
}

}  // namespace lockstep::comm
