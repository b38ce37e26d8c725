#include "harness/launch/launcher.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <memory>

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/comm/control.hpp"
#include "engine/comm/culprits.hpp"
#include "engine/core/error.hpp"
#include "harness/launch/exchange.hpp"
#include "harness/launch/pool_state.hpp"

namespace lockstep::launch {

namespace {

constexpr std::int64_t poll_without_pidfd_ns = 2'000'000;

}  // namespace

Pool::State* Pool::State::of_process = nullptr;

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
