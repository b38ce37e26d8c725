#include "harness/launch/launcher.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <numeric>

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/comm/control.hpp"
#include "engine/comm/culprits.hpp"
#include "engine/core/error.hpp"
#include "engine/core/resources.hpp"
#include "engine/kernels/backend.hpp"
#include "harness/launch/exchange.hpp"
#include "harness/launch/guardian.hpp"
#include "harness/launch/hosts.hpp"
#include "harness/launch/run_schedule.hpp"
#include "harness/launch/running_case.hpp"
#include "harness/launch/series.hpp"
#include "harness/launch/worker.hpp"

namespace lockstep::launch {

namespace {

constexpr std::int64_t poll_without_pidfd_ns = 2'000'000;

}  // namespace

struct Pool::State {
  int jobs = 1;
  Guardian guardian;
  std::vector<std::unique_ptr<RunningCase>> cases;
  IdleProcesses idle;

  RunningCase* open_case(int ticket, const LaunchOptions& options, bool in_series);
  void fork_children(RunningCase& test_case, const RankFunction& function);
  void start_child(RunningCase& test_case, std::vector<int> ranks, const RankFunction& function);
  template <class Run>
  Child fork_child(const Run& run);
  Child fork_for_series(const SeriesFunction& function_of);
  void start_in_series(RunningCase& test_case, const std::string& request, const SeriesFunction& function_of);
  void keep_idle(RunningCase& test_case);
  void close_inherited();
  void wait_and_handle_events();
  void enforce_deadline(RunningCase& test_case, std::int64_t now_ns);
  int free_core() const;
  void abort(RunningCase& test_case);
  void kill(RunningCase& test_case);

  static State* of_process;  // the newest pool of this process; null: none
};

Pool::State* Pool::State::of_process = nullptr;

// Closes, in a new child, the launcher's descriptors of the other children.
void Pool::State::close_inherited() {
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
    if (test_case.world) comm::announce_death(*test_case.world, rank, str("it could not be started: ", why));
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
    const ResourceError error = resource_error("starting its process", errno);
    ::close(ends[0]);
    ::close(ends[1]);
    throw ResourceError(error);
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
      } catch (const ResourceError&) {
        end_idle(*child);
        throw;
      }
      if (is_sent || is_new) {  // the end of a new process is that of its ranks
        child->ranks = ranks;
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

// Takes the processes of a case that can run another one.
void Pool::State::keep_idle(RunningCase& test_case) {
  for (auto child = test_case.children.begin(); child != test_case.children.end();) {
    const bool all_in = std::all_of(child->ranks.begin(), child->ranks.end(),
                                    [&](int rank) { return test_case.handed_in[static_cast<std::size_t>(rank)]; });
    if (child->gone || !child->is_idle || test_case.interrupted) {
      ++child;
    } else if (test_case.is_out_of_time() || !all_in || child->pipe < 0) {
      child->is_idle = false;
      kill(test_case);
      ++child;
    } else {
      child->is_idle = false;
      idle.put(std::move(*child));
      child = test_case.children.erase(child);
    }
  }
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

void Pool::State::abort(RunningCase& test_case) {
  test_case.aborted = true;
  test_case.deadline_ns = comm::now_ns() + grace_ns;
  if (test_case.options.hosts == nullptr)
    test_case.culprits = comm::awaited_ranks(comm::read_recorder(*test_case.world));
  comm::announce_abort(*test_case.world,
                       str("the case ran out of its ", seconds_text(test_case.options.timeout_seconds)));
}

void Pool::State::kill(RunningCase& test_case) {
  for (Child& child : test_case.children) {
    if (child.gone) continue;
    ::kill(-child.pid, SIGKILL);
    ::kill(child.pid, SIGKILL);
  }
}

// Waits for the next event of any case, then handles all pending events.
void Pool::State::wait_and_handle_events() {
  std::vector<pollfd> fds;
  struct Source {
    RunningCase* test_case;
    Child* child;
    bool is_pipe;
  };
  std::vector<Source> sources;
  std::int64_t wake_ns = comm::now_ns() + 1'000'000'000;
  std::int64_t longest_wait_ns = 1'000'000'000;
  for (const std::unique_ptr<RunningCase>& each : cases) {
    if (each->ranks_run()) wake_ns = std::min(wake_ns, each->deadline_ns);
    for (Child& child : each->children) {
      if (child.gone) continue;
      if (child.pidfd >= 0) {
        fds.push_back({child.pidfd, POLLIN, 0});
        sources.push_back({each.get(), &child, false});
      } else {
        longest_wait_ns = std::min(longest_wait_ns, poll_without_pidfd_ns);
      }
      if (child.pipe >= 0) {
        fds.push_back({child.pipe, POLLIN, 0});
        sources.push_back({each.get(), &child, true});
      }
    }
  }
  // Descriptors without a source only end the wait.
  for (const std::unique_ptr<RunningCase>& each : cases) {
    if (each->exchange == ExchangeState::over) continue;
    for (int descriptor : descriptors_of_exchange(*each)) fds.push_back({descriptor, POLLIN, 0});
    longest_wait_ns = std::min(longest_wait_ns, progress_exchange(*each));
  }
  const std::int64_t wait_ns = std::clamp<std::int64_t>(wake_ns - comm::now_ns(), 0, longest_wait_ns);
  const timespec wait{wait_ns / 1'000'000'000, wait_ns % 1'000'000'000};
  if (::ppoll(fds.data(), fds.size(), &wait, nullptr) < 0)
    for (pollfd& fd : fds) fd.revents = 0;
  for (std::size_t i = 0; i < sources.size(); ++i)
    if (sources[i].is_pipe && fds[i].revents != 0) read_pipe(*sources[i].test_case, *sources[i].child);
  for (std::size_t i = 0; i < sources.size(); ++i)
    if (!sources[i].is_pipe && fds[i].revents != 0 && !sources[i].child->gone)
      collect(*sources[i].test_case, *sources[i].child);
  const std::int64_t now = comm::now_ns();
  for (const std::unique_ptr<RunningCase>& each : cases) {
    for (Child& child : each->children)
      if (!child.gone && child.pidfd < 0 && has_ended(child)) collect(*each, child);
    keep_idle(*each);
    enforce_deadline(*each, now);
    if (advance_exchange(*each)) kill(*each);
  }
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

// Aborts a case that is out of time. Kills it when it still runs after the grace period.
void Pool::State::enforce_deadline(RunningCase& test_case, std::int64_t now_ns) {
  if (!test_case.ranks_run() || now_ns < test_case.deadline_ns) return;
  if (test_case.aborted) {
    kill(test_case);
  } else if (test_case.exchange != ExchangeState::over && test_case.at_time_out.empty()) {
    test_case.at_time_out = local_stories(test_case);
    test_case.deadline_ns = now_ns + before_abort_ns;
  } else {
    abort(test_case);
  }
  if (test_case.deadline_ns <= now_ns) test_case.deadline_ns = now_ns + grace_ns;
}

Pool::Pool(int jobs) : state_(std::make_unique<State>()) {
  if (jobs < 1) throw Error(str("launch: ", jobs, " cases at once"), "give at least one");
  state_->jobs = jobs;
  State::of_process = state_.get();
}

Pool::~Pool() {
  kill_all();
  while (num_running() > 0) next();
  State::of_process = nullptr;
}

void Pool::end_ranks_of_process() noexcept {
  if (State::of_process == nullptr) return;
  for (const std::unique_ptr<RunningCase>& each : State::of_process->cases) {
    State::of_process->kill(*each);
    for (const Child& child : each->children)
      if (!child.gone) ::waitpid(child.pid, nullptr, 0);
  }
  State::of_process->idle.end_all();
}

bool Pool::full() const { return num_running() >= state_->jobs; }
int Pool::num_running() const { return static_cast<int>(state_->cases.size()); }

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
    if (added.exchange != ExchangeState::over) stop_other_hosts(added);
    close_fd(added.world_file);
    return nullptr;
  }
  return &added;
}

void Pool::start(int ticket, const LaunchOptions& options, const RankFunction& function) {
  state_->idle.end_all();  // their memory on the devices may be all that is left
  if (RunningCase* const added = state_->open_case(ticket, options, false)) state_->fork_children(*added, function);
}

void Pool::start_in_series(int ticket, const LaunchOptions& options, const std::string& request,
                           const SeriesFunction& function_of) {
  LOCKSTEP_CHECK(options.launch == Launch::thread && options.hosts == nullptr && options.schedule == nullptr &&
                     options.folder.empty(),
                 "a series has thread ranks of one host without a schedule");
  if (RunningCase* const added = state_->open_case(ticket, options, true))
    state_->start_in_series(*added, request, function_of);
}

Pool::Finished Pool::next(const std::function<bool()>& stop) {
  LOCKSTEP_CHECK(!state_->cases.empty(), "no case runs");
  bool stopped = false;
  for (;;) {
    if (!stopped && stop && stop()) {
      stopped = true;
      kill_all();
    }
    for (auto each = state_->cases.begin(); each != state_->cases.end(); ++each) {
      if ((*each)->running()) continue;
      const std::unique_ptr<RunningCase> ended = std::move(*each);
      state_->cases.erase(each);
      return {ended->ticket, finish(*ended)};
    }
    state_->wait_and_handle_events();
  }
}

void Pool::kill_all() {
  for (const std::unique_ptr<RunningCase>& each : state_->cases) {
    if (!each->interrupted && each->exchange != ExchangeState::over) stop_other_hosts(*each);
    each->interrupted = true;
    state_->kill(*each);
  }
}

LaunchResult launch(const LaunchOptions& options, const RankFunction& function) {
  Pool pool(1);
  pool.start(0, options, function);
  return pool.next().result;
}

}  // namespace lockstep::launch
