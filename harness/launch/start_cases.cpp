// How a pool starts cases: their worlds, and the processes of their ranks.
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "engine/comm/control.hpp"
#include "engine/core/error.hpp"
#include "engine/core/resources.hpp"
#include "engine/kernels/backend.hpp"
#include "harness/launch/exchange.hpp"
#include "harness/launch/hosts.hpp"
#include "harness/launch/pool_state.hpp"
#include "harness/launch/run_schedule.hpp"
#include "harness/launch/worker.hpp"

namespace lockstep::launch {

// Adds a case with its world. Returns null if the case cannot start; its outcomes then say why.
RunningCase* Pool::State::open_case(int ticket, const LaunchOptions& options, bool in_series) {
  kernels::prepare_products();
  auto made = std::make_unique<RunningCase>();
  made->ticket = ticket;
  made->options = options;
  made->start_ns = comm::now_ns();
  made->deadline_ns = made->start_ns + static_cast<std::int64_t>(options.timeout_seconds * 1e9);
  made->outcomes.resize(static_cast<std::size_t>(std::max(options.world_size, 0)));
  made->handed_in.resize(made->outcomes.size());
  if (options.schedule != nullptr) options.schedule->core = free_core();
  RunningCase& added = *cases.emplace_back(std::move(made));
  try {
    if (options.world_size < 1)
      throw Error(str("launch: a world size of ", options.world_size), "give at least one rank");
    if (options.hosts != nullptr) {
      LOCKSTEP_CHECK(cases.size() == 1, "several hosts run one case at a time");
      join_hosts(added);
    }
    if (!options.folder.empty()) std::filesystem::create_directories(options.folder);
    if (added.exchange == ExchangeState::ranks_run && !has_local_ranks(added)) return nullptr;
    // Thread ranks run in a child process, so the launcher can read their memory only if it is shared between
    // processes.
    constexpr std::size_t arena_bytes = device::HostWorld::default_arena_bytes;
    const int size = options.world_size;
    if (in_series) {
      added.world_file = device::HostWorld::make_file(size, arena_bytes, comm::control_bytes(size));
      added.world = device::HostWorld::map_file(added.world_file, size, arena_bytes, comm::control_bytes(size));
    } else {
      added.world = device::HostWorld::create(size, device::Sharing::processes, arena_bytes, comm::control_bytes(size));
    }
    comm::prepare_world(*added.world);
    if (added.exchange == ExchangeState::ranks_run) begin_exchange(added);
  } catch (const std::exception& error) {
    // Before it has joined, a host that follows cannot tell the others: its end does.
    if (options.hosts != nullptr && options.hosts->host() != 0 && added.exchange == ExchangeState::over &&
        is_of_machine(error)) {
      cases.pop_back();
      throw;
    }
    for (std::size_t rank = 0; rank < added.outcomes.size(); ++rank) {
      if (!added.is_local(static_cast<int>(rank))) continue;
      added.outcomes[rank].rank = static_cast<int>(rank);
      added.outcomes[rank].status = verdict::RankStatus::never_started;
      added.outcomes[rank].detail = text_of(error);
      added.outcomes[rank].end_time_ns = comm::now_ns();
    }
    if (added.exchange != ExchangeState::over)
      stop_other_hosts(added, str(options.hosts->name_of(options.hosts->host()), " could not start its ranks"));
    close_fd(added.world_file);
    return nullptr;
  }
  return &added;
}

// The lowest number of a core on which no case under a schedule runs.
int Pool::State::free_core() const {
  const auto is_taken = [&](int core) {
    return std::any_of(cases.begin(), cases.end(), [&](const std::unique_ptr<RunningCase>& each) {
      return each->options.schedule != nullptr && each->options.schedule->core == core;
    });
  };
  int core = 0;
  while (is_taken(core)) ++core;
  return core;
}

// Closes, in a new child, the launcher's descriptors of the other children. They are not processes of the child: it
// must not end them, and later their numbers may be those of other processes.
void Pool::State::close_inherited() {
  of_process = nullptr;
  for (const std::unique_ptr<RunningCase>& each : cases) {
    for (Child& child : each->children) close_descriptors(child);
    close_fd(each->world_file);
  }
  idle.close_inherited();
}

namespace {

// These ranks could not be started.
void note_refusal(RunningCase& test_case, const std::vector<int>& ranks, const std::string& why) {
  for (int rank : ranks) {
    verdict::RankOutcome& outcome = test_case.outcomes[static_cast<std::size_t>(rank)];
    outcome.rank = rank;
    outcome.status = verdict::RankStatus::never_started;
    outcome.detail = why;
    outcome.end_time_ns = comm::now_ns();
    comm::announce_death(*test_case.world, rank, str("it could not be started: ", why));
  }
}

}  // namespace

// Forks a process for ranks. `run` runs in it, with its pipe, and does not return. Throws ResourceError.
template <class Run>
Child Pool::State::fork_child(const Run& run) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw resource_error("opening a pipe to the rank", errno);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) {
    const int reason = errno;
    ::close(ends[0]);
    ::close(ends[1]);
    throw resource_error("starting its process", reason);
  }
  if (pid == 0) {
    ::close(ends[0]);
    close_inherited();
    become_child(parent);
    run(ends[1]);
  }
  ::setpgid(pid, pid);  // the child calls it too; the launcher may have to kill the group before the child has run
  ::close(ends[1]);
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  Child child;
  child.pid = pid;
  child.pidfd = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
  child.pipe = ends[0];
  return child;
}

void Pool::State::start_child(RunningCase& test_case, std::vector<int> ranks, const RankFunction& function) {
  test_case.children.reserve(test_case.children.size() + 1);  // once forked, the child must be known
  try {
    Child child = fork_child([&](int pipe) { run_ranks(ranks, test_case.options, *test_case.world, function, pipe); });
    child.ranks = std::move(ranks);
    test_case.children.push_back(std::move(child));
  } catch (const ResourceError& error) {
    note_refusal(test_case, ranks, error.what());
  }
}

Child Pool::State::fork_for_series(const SeriesFunction& function_of) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
    throw resource_error("opening a socket to the ranks", errno);
  Child child;
  try {
    child = fork_child([&](int pipe) {
      ::close(ends[0]);
      for (const std::unique_ptr<RunningCase>& each : cases) each->world.reset();  // their memory would stay
      run_series(ends[1], pipe, function_of);
    });
  } catch (const ResourceError&) {
    ::close(ends[0]);
    ::close(ends[1]);
    throw;
  }
  ::close(ends[1]);
  child.requests = ends[0];
  return child;
}

void Pool::State::start_in_series(RunningCase& test_case, const std::string& request,
                                  const SeriesFunction& function_of) {
  std::fflush(nullptr);  // otherwise each child would write the buffered output again
  std::vector<int> ranks(test_case.outcomes.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  test_case.children.reserve(1);
  try {
    for (;;) {
      std::optional<Child> child = idle.take();
      const bool is_new = !child;
      bool is_sent = false;
      if (is_new) child = fork_for_series(function_of);
      try {
        is_sent = send_case(*child, test_case.options, request, test_case.world_file);
      } catch (...) {
        end_idle(*child);
        throw;
      }
      if (is_sent || is_new) {  // the end of a new process is that of its ranks
        child->ranks = std::move(ranks);
        test_case.children.push_back(std::move(*child));
        break;
      }
      end_idle(*child);
    }
  } catch (const ResourceError& error) {
    note_refusal(test_case, ranks, error.what());
  }
  close_fd(test_case.world_file);
}

namespace {

// A rank whose case ran out of time before its process was started.
void leave_out(RunningCase& test_case, int rank) {
  verdict::RankOutcome& outcome = test_case.outcomes[static_cast<std::size_t>(rank)];
  outcome.rank = rank;
  outcome.status = verdict::RankStatus::hung;
  outcome.detail =
      str("the case ran out of its ", seconds_text(test_case.options.timeout_seconds), " before this rank was started");
  outcome.end_time_ns = comm::now_ns();
  comm::announce_death(*test_case.world, rank, outcome.detail);
}

}  // namespace

void Pool::State::fork_children(RunningCase& test_case, const RankFunction& function) {
  std::fflush(nullptr);  // otherwise each child would write the buffered output again
  std::vector<int> all;
  for (int rank = 0; rank < test_case.options.world_size; ++rank) {
    if (!test_case.is_local(rank)) continue;
    if (test_case.options.launch == Launch::process && !test_case.children.empty() &&
        comm::now_ns() >= test_case.deadline_ns)
      leave_out(test_case, rank);
    else if (test_case.options.launch == Launch::process)
      start_child(test_case, {rank}, function);
    else
      all.push_back(rank);
  }
  if (!all.empty()) start_child(test_case, all, function);
}

}  // namespace lockstep::launch
