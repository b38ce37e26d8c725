#include "harness/launch/launcher.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
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
#include "harness/launch/worker.hpp"

namespace lockstep::launch {

namespace {

constexpr std::int64_t poll_without_pidfd_ns = 2'000'000;

}  // namespace

struct Pool::State {
  int jobs = 1;
  Guardian guardian;
  std::vector<std::unique_ptr<RunningCase>> cases;

  void fork_children(RunningCase& test_case, const RankFunction& function);
  void start_child(RunningCase& test_case, std::vector<int> ranks, const RankFunction& function);
  void close_inherited();
  void wait_and_handle_events();
  void enforce_deadline(RunningCase& test_case, std::int64_t now_ns);
  int free_core() const;
  void abort(RunningCase& test_case);
  void kill(RunningCase& test_case);

  static State* of_process;  // the newest pool of this process; null: none
};

Pool::State* Pool::State::of_process = nullptr;

// Closes, in a new child, the launcher's pipes and pidfds of the other children.
void Pool::State::close_inherited() {
  for (const std::unique_ptr<RunningCase>& each : cases) {
    for (Child& child : each->children) {
      close_fd(child.pipe);
      close_fd(child.pidfd);
    }
  }
}

void Pool::State::start_child(RunningCase& test_case, std::vector<int> ranks, const RankFunction& function) {
  const auto fail = [&](const char* operation) {
    const ResourceError error = resource_error(operation, errno);
    for (int rank : ranks) {
      verdict::RankOutcome& outcome = test_case.outcomes[static_cast<std::size_t>(rank)];
      outcome.rank = rank;
      outcome.status = verdict::RankStatus::never_started;
      outcome.detail = error.what();
      outcome.end_time_ns = comm::now_ns();
      comm::announce_death(*test_case.world, rank, str("it could not be started: ", outcome.detail));
    }
  };
  test_case.children.reserve(test_case.children.size() + 1);  // once forked, the child must be known
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return fail("opening a pipe to the rank");
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) {
    fail("starting its process");
    ::close(ends[0]);
    ::close(ends[1]);
    return;
  }
  if (pid == 0) {
    ::close(ends[0]);
    close_inherited();
    become_child(parent);
    run_ranks(ranks, test_case.options, *test_case.world, function, ends[1]);
  }
  ::setpgid(pid, pid);  // the child calls it too; the launcher may have to kill the group before the child has run
  ::close(ends[1]);
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  Child child;
  child.pid = pid;
  child.pidfd = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
  child.pipe = ends[0];
  child.ranks = std::move(ranks);
  test_case.children.push_back(std::move(child));
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
}

bool Pool::full() const { return num_running() >= state_->jobs; }
int Pool::num_running() const { return static_cast<int>(state_->cases.size()); }

void Pool::start(int ticket, const LaunchOptions& options, const RankFunction& function) {
  kernels::prepare_products();
  auto made = std::make_unique<RunningCase>();
  made->ticket = ticket;
  made->options = options;
  made->start_ns = comm::now_ns();
  made->deadline_ns = made->start_ns + static_cast<std::int64_t>(options.timeout_seconds * 1e9);
  made->outcomes.resize(static_cast<std::size_t>(std::max(options.world_size, 0)));
  made->handed_in.resize(made->outcomes.size());
  if (options.schedule != nullptr) options.schedule->core = state_->free_core();
  RunningCase& added = *state_->cases.emplace_back(std::move(made));
  try {
    if (options.world_size < 1)
      throw Error(str("launch: a world size of ", options.world_size), "give at least one rank");
    if (options.hosts != nullptr) {
      LOCKSTEP_CHECK(state_->cases.size() == 1, "several hosts run one case at a time");
      join_hosts(added);
    }
    if (!options.folder.empty()) std::filesystem::create_directories(options.folder);
    if (added.exchange == ExchangeState::ranks_run && !has_local_ranks(added)) return;
    // Thread ranks run in a child process, so the launcher can read their memory only if it is shared between
    // processes.
    added.world =
        device::HostWorld::create(options.world_size, device::Sharing::processes,
                                  device::HostWorld::default_arena_bytes, comm::control_bytes(options.world_size));
    comm::prepare_world(*added.world);
    if (added.exchange == ExchangeState::ranks_run) begin_exchange(added);
  } catch (const std::exception& error) {
    // Before it has joined, a host that follows cannot tell the others: its end does.
    if (options.hosts != nullptr && options.hosts->host() != 0 && added.exchange == ExchangeState::over &&
        is_of_machine(error)) {
      state_->cases.pop_back();
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
    return;
  }
  state_->fork_children(added, function);
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
