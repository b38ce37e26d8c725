#include "harness/launch/launcher.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
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
#include "harness/launch/guardian.hpp"
#include "harness/launch/worker.hpp"
#include "harness/verdict/serialize.hpp"

namespace lockstep::launch {

namespace {

constexpr std::int64_t grace_ns = 1'000'000'000;  // between the abort of a case and the end of its processes
constexpr int poll_without_pidfd_ms = 2;

// A forked process and what it has sent so far.
struct Child {
  pid_t pid = -1;
  int pidfd = -1;  // -1: the kernel has none, then it is asked now and then
  int pipe = -1;
  std::vector<int> ranks;
  std::string received;
  bool gone = false;
};

struct Case {
  int ticket = 0;
  LaunchOptions options;
  std::unique_ptr<device::HostWorld> world;
  std::vector<Child> children;
  std::vector<verdict::RankOutcome> outcomes;
  std::vector<bool> handed_in;
  std::int64_t start_ns = 0;
  std::int64_t deadline_ns = 0;  // of the next step: abort, then kill
  bool aborted = false;
  bool interrupted = false;
  std::vector<comm::WaitedFor> culprits;  // when it was aborted

  bool running() const {
    return std::any_of(children.begin(), children.end(), [](const Child& child) { return !child.gone; });
  }
};

std::string signal_text(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name == nullptr ? str("signal ", signal) : str("signal ", signal, " (SIG", name, ")");
}

void close_fd(int& fd) {
  if (fd >= 0) ::close(fd);
  fd = -1;
}

// Takes whole frames out of what a child has sent.
void take_frames(Case& of, Child& child) {
  std::size_t at = 0;
  while (child.received.size() - at >= sizeof(FrameHead)) {
    FrameHead head;
    std::memcpy(&head, child.received.data() + at, sizeof head);
    if (child.received.size() - at - sizeof head < head.bytes) break;
    const std::string_view bytes(child.received.data() + at + sizeof head, head.bytes);
    at += sizeof head + head.bytes;
    if (head.rank < 0 || head.rank >= of.options.world_size) continue;
    const auto rank = static_cast<std::size_t>(head.rank);
    try {
      of.outcomes[rank] = verdict::outcome_from_bytes(bytes);
      of.outcomes[rank].rank = head.rank;
      of.handed_in[rank] = true;
    } catch (const Error& error) {
      of.outcomes[rank].detail = str("its outcome arrived broken: ", error.message());
    }
    // It had not ended by itself in time: that it could still report changes nothing of that.
    if (of.aborted && !of.outcomes[rank].end_expected) of.outcomes[rank].status = verdict::RankStatus::hung;
  }
  child.received.erase(0, at);
}

void read_pipe(Case& of, Child& child) {
  if (child.pipe < 0) return;
  char buffer[65536];
  for (;;) {
    const ssize_t n = ::read(child.pipe, buffer, sizeof buffer);
    if (n > 0) {
      child.received.append(buffer, static_cast<std::size_t>(n));
      continue;
    }
    if (n < 0 && errno == EINTR) continue;
    if (n == 0) close_fd(child.pipe);
    break;
  }
  take_frames(of, child);
}

// How a process ended, for the ranks that did not hand in an outcome, or ended otherwise than theirs says.
void note_end(Case& of, const Child& child, int status) {
  for (int number : child.ranks) {
    const auto rank = static_cast<std::size_t>(number);
    verdict::RankOutcome& outcome = of.outcomes[rank];
    outcome.rank = number;
    if (outcome.end_expected && outcome.status == verdict::RankStatus::killed) {
      outcome.end_time_ns = comm::now_ns();
      continue;
    }
    const bool clean = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (of.handed_in[rank] && (clean || of.aborted || of.interrupted)) continue;
    outcome.end_time_ns = comm::now_ns();
    if (of.handed_in[rank]) outcome.detail = "after it had handed in its outcome";
    if (of.interrupted) {
      outcome.status = verdict::RankStatus::killed;
      outcome.signal = SIGKILL;
      outcome.detail = "interrupted";
    } else if (of.aborted) {
      outcome.status = verdict::RankStatus::hung;
      outcome.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    } else if (WIFSIGNALED(status)) {
      outcome.status = verdict::RankStatus::killed;
      outcome.signal = WTERMSIG(status);
    } else {
      outcome.status = verdict::RankStatus::exited;
      outcome.exit_code = WEXITSTATUS(status);
    }
  }
}

std::string seconds_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%g s", seconds);
  return text;
}

// Why the process of a rank ended, for its peers and the flight recorder.
std::string reason_of_end(const Case& of, int status) {
  if (of.interrupted) return "ended by the harness: the run was interrupted";
  if (of.aborted && WIFSIGNALED(status))
    return str("ended by the harness after the time-out of ", seconds_text(of.options.timeout_seconds));
  return WIFSIGNALED(status) ? str("ended by ", signal_text(WTERMSIG(status)))
                             : str("its process exited with ", WEXITSTATUS(status));
}

// A crash of one rank ends all ranks of its process: those that were in order are bystanders.
void note_bystanders(Case& of, const Child& child, int status) {
  if (child.ranks.size() < 2 || !WIFSIGNALED(status)) return;
  const std::vector<int> crashed = comm::crashed_ranks(*of.world);
  if (crashed.empty()) return;
  for (int number : child.ranks) {
    if (std::find(crashed.begin(), crashed.end(), number) != crashed.end()) continue;
    verdict::RankOutcome& outcome = of.outcomes[static_cast<std::size_t>(number)];
    if (outcome.status != verdict::RankStatus::killed) continue;
    outcome.bystander = true;
    outcome.detail = str("rank ", crashed.front(), ", a thread of the same process, crashed");
  }
}

// The child is a zombie or gone: what it left behind is ended, then it is collected.
void collect(Case& of, Child& child) {
  ::kill(-child.pid, SIGKILL);
  int status = 0;
  while (::waitpid(child.pid, &status, 0) < 0 && errno == EINTR) {
  }
  read_pipe(of, child);
  child.gone = true;
  note_end(of, child, status);
  note_bystanders(of, child, status);
  for (int rank : child.ranks) comm::announce_death(*of.world, rank, reason_of_end(of, status));
  close_fd(child.pipe);
  close_fd(child.pidfd);
}

bool has_ended(const Child& child) {
  siginfo_t info{};
  return ::waitid(P_PID, static_cast<id_t>(child.pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0;
}

// Of ranks that were ended at the time-out, those that waited for another are bystanders.
void blame_culprits(Case& of) {
  for (const comm::WaitedFor& culprit : of.culprits) {
    verdict::RankOutcome& its = of.outcomes[static_cast<std::size_t>(culprit.rank)];
    if (its.status == verdict::RankStatus::hung)
      its.detail = str(culprit.text, its.detail.empty() ? "" : "; ", its.detail);
    for (int rank : culprit.by) {
      verdict::RankOutcome& waiting = of.outcomes[static_cast<std::size_t>(rank)];
      waiting.bystander = waiting.status == verdict::RankStatus::hung;
    }
  }
}

LaunchResult finish(Case& of) {
  LaunchResult result;
  result.seconds = static_cast<double>(comm::now_ns() - of.start_ns) * 1e-9;
  if (of.world) {
    result.stories = comm::read_recorder(*of.world);
    for (std::size_t rank = 0; rank < of.outcomes.size(); ++rank) {
      verdict::RankOutcome& outcome = of.outcomes[rank];
      const comm::RankStory& story = result.stories[rank];
      if (outcome.last_step.step.empty() && outcome.status != verdict::RankStatus::finished && !story.step.empty())
        outcome.last_step = {story.step, story.file, story.line, story.column};
      const bool cut_short = !of.handed_in[rank] && outcome.status != verdict::RankStatus::never_started;
      if ((cut_short || outcome.status == verdict::RankStatus::hung) && outcome.detail.empty())
        outcome.detail = comm::last_words(story);
    }
  }
  blame_culprits(of);
  result.outcomes = std::move(of.outcomes);
  of.world.reset();
  if (!of.options.folder.empty()) {
    std::error_code ignored;
    std::filesystem::remove_all(of.options.folder, ignored);
  }
  return result;
}

}  // namespace

struct Pool::State {
  int jobs = 1;
  Guardian guardian;
  std::vector<std::unique_ptr<Case>> cases;

  void fork_children(Case& of, const RankFunction& function);
  void start_child(Case& of, std::vector<int> ranks, const RankFunction& function);
  void close_inherited();
  void step();
  void abort(Case& of);
  void kill(Case& of);
};

// A child has no use for what the launcher talks to others with.
void Pool::State::close_inherited() {
  for (const std::unique_ptr<Case>& each : cases) {
    for (Child& child : each->children) {
      close_fd(child.pipe);
      close_fd(child.pidfd);
    }
  }
}

void Pool::State::start_child(Case& of, std::vector<int> ranks, const RankFunction& function) {
  const auto fail = [&](const char* operation) {
    const ResourceError error = resource_error(operation, errno);
    for (int rank : ranks) {
      verdict::RankOutcome& outcome = of.outcomes[static_cast<std::size_t>(rank)];
      outcome.rank = rank;
      outcome.status = verdict::RankStatus::never_started;
      outcome.detail = error.what();
      outcome.end_time_ns = comm::now_ns();
      comm::announce_death(*of.world, rank, str("it could not be started: ", outcome.detail));
    }
  };
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
    run_ranks(ranks, of.options, *of.world, function, ends[1]);
  }
  ::setpgid(pid, pid);  // also here: the child may not have come to it yet when it is to be ended
  ::close(ends[1]);
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  Child child;
  child.pid = pid;
  child.pidfd = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
  child.pipe = ends[0];
  child.ranks = std::move(ranks);
  of.children.push_back(std::move(child));
}

void Pool::State::fork_children(Case& of, const RankFunction& function) {
  std::fflush(nullptr);  // nothing half-written that children would write once more
  std::vector<int> all;
  for (int rank = 0; rank < of.options.world_size; ++rank) {
    if (of.options.launch == Launch::process)
      start_child(of, {rank}, function);
    else
      all.push_back(rank);
  }
  if (!all.empty()) start_child(of, all, function);
}

void Pool::State::abort(Case& of) {
  of.aborted = true;
  of.deadline_ns = comm::now_ns() + grace_ns;
  of.culprits = comm::waited_for(comm::read_recorder(*of.world));
  comm::announce_abort(*of.world, str("the case ran out of its ", seconds_text(of.options.timeout_seconds)));
}

void Pool::State::kill(Case& of) {
  for (Child& child : of.children) {
    if (child.gone) continue;
    ::kill(-child.pid, SIGKILL);
    ::kill(child.pid, SIGKILL);
  }
}

// Waits for the next event of any case and handles all there are.
void Pool::State::step() {
  std::vector<pollfd> fds;
  struct Source {
    Case* of;
    Child* child;
    bool is_pipe;
  };
  std::vector<Source> sources;
  std::int64_t wake_ns = comm::now_ns() + 1'000'000'000;
  bool asks = false;
  for (const std::unique_ptr<Case>& each : cases) {
    if (each->running()) wake_ns = std::min(wake_ns, each->deadline_ns);
    for (Child& child : each->children) {
      if (child.gone) continue;
      if (child.pidfd >= 0) {
        fds.push_back({child.pidfd, POLLIN, 0});
        sources.push_back({each.get(), &child, false});
      } else {
        asks = true;
      }
      if (child.pipe >= 0) {
        fds.push_back({child.pipe, POLLIN, 0});
        sources.push_back({each.get(), &child, true});
      }
    }
  }
  std::int64_t wait_ms = std::max<std::int64_t>(0, (wake_ns - comm::now_ns() + 999'999) / 1'000'000);
  if (asks) wait_ms = std::min<std::int64_t>(wait_ms, poll_without_pidfd_ms);
  ::poll(fds.data(), fds.size(), static_cast<int>(wait_ms));
  for (std::size_t i = 0; i < fds.size(); ++i)
    if (sources[i].is_pipe && fds[i].revents != 0) read_pipe(*sources[i].of, *sources[i].child);
  for (std::size_t i = 0; i < fds.size(); ++i)
    if (!sources[i].is_pipe && fds[i].revents != 0 && !sources[i].child->gone)
      collect(*sources[i].of, *sources[i].child);
  const std::int64_t now = comm::now_ns();
  for (const std::unique_ptr<Case>& each : cases) {
    if (asks)
      for (Child& child : each->children)
        if (!child.gone && child.pidfd < 0 && has_ended(child)) collect(*each, child);
    if (!each->running() || now < each->deadline_ns) continue;
    if (each->aborted)
      kill(*each);
    else
      abort(*each);
    if (each->deadline_ns <= now) each->deadline_ns = now + grace_ns;
  }
}

Pool::Pool(int jobs) : state_(std::make_unique<State>()) {
  if (jobs < 1) throw Error(str("a pool for ", jobs, " cases at once"), "give at least one");
  state_->jobs = jobs;
}

Pool::~Pool() {
  kill_all();
  while (num_running() > 0) next();
}

bool Pool::full() const { return num_running() >= state_->jobs; }
int Pool::num_running() const { return static_cast<int>(state_->cases.size()); }

void Pool::start(int ticket, const LaunchOptions& options, const RankFunction& function) {
  kernels::prepare_products();
  auto made = std::make_unique<Case>();
  made->ticket = ticket;
  made->options = options;
  made->start_ns = comm::now_ns();
  made->deadline_ns = made->start_ns + static_cast<std::int64_t>(options.timeout_seconds * 1e9);
  made->outcomes.resize(static_cast<std::size_t>(std::max(options.world_size, 0)));
  made->handed_in.resize(made->outcomes.size());
  Case& added = *state_->cases.emplace_back(std::move(made));
  try {
    if (options.world_size < 1) throw Error(str("a case of ", options.world_size, " ranks"), "give at least one");
    if (!options.folder.empty()) std::filesystem::create_directories(options.folder);
    // Thread ranks are threads of a child: the launcher sees their memory only when it is shared between processes.
    added.world =
        device::HostWorld::create(options.world_size, device::Sharing::processes,
                                  device::HostWorld::default_arena_bytes, comm::control_bytes(options.world_size));
    comm::prepare_world(*added.world);
  } catch (const std::exception& error) {
    for (std::size_t rank = 0; rank < added.outcomes.size(); ++rank) {
      added.outcomes[rank].rank = static_cast<int>(rank);
      added.outcomes[rank].status = verdict::RankStatus::never_started;
      added.outcomes[rank].detail = error.what();
      added.outcomes[rank].end_time_ns = comm::now_ns();
    }
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
      const std::unique_ptr<Case> ended = std::move(*each);
      state_->cases.erase(each);
      return {ended->ticket, finish(*ended)};
    }
    state_->step();
  }
}

void Pool::kill_all() {
  for (const std::unique_ptr<Case>& each : state_->cases) {
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
