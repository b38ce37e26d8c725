#include "harness/launch/running_case.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string_view>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/comm/control.hpp"
#include "engine/core/error.hpp"
#include "harness/launch/worker.hpp"
#include "harness/verdict/serialize.hpp"

namespace lockstep::launch {

namespace {

constexpr std::string_view exited_with = "its process exited with ";

std::string signal_text(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name == nullptr ? str("signal ", signal) : str("signal ", signal, " (SIG", name, ")");
}

// No rank of the process could start, for this reason.
void note_no_start(RunningCase& test_case, const Child& child, std::string_view why) {
  for (const int number : child.ranks) {
    const auto rank = static_cast<std::size_t>(number);
    verdict::RankOutcome& outcome = test_case.outcomes[rank];
    outcome.status = verdict::RankStatus::never_started;
    outcome.detail = why;
    outcome.end_time_ns = comm::now_ns();
    test_case.handed_in[rank] = true;
  }
}

// Takes the complete frames out of the received bytes.
void take_frames(RunningCase& test_case, Child& child) {
  std::size_t at = 0;
  while (child.received.size() - at >= sizeof(FrameHead)) {
    FrameHead head;
    std::memcpy(&head, child.received.data() + at, sizeof head);
    if (child.received.size() - at - sizeof head < head.bytes) break;
    const std::string_view bytes(child.received.data() + at + sizeof head, head.bytes);
    at += sizeof head + head.bytes;
    if (head.rank == case_is_over) child.is_idle = true;
    if (head.rank == case_cannot_start) note_no_start(test_case, child, bytes);
    if (head.rank < 0 || head.rank >= test_case.options.world_size) continue;
    const auto rank = static_cast<std::size_t>(head.rank);
    try {
      test_case.outcomes[rank] = verdict::outcome_from_bytes(bytes);
      test_case.outcomes[rank].rank = head.rank;
      test_case.handed_in[rank] = true;
    } catch (const Error& error) {
      test_case.outcomes[rank].detail = str("its outcome arrived damaged: ", error.message());
    }
    // The rank did not end in time, even if it could still report after the abort.
    if (test_case.is_out_of_time()) test_case.outcomes[rank].status = verdict::RankStatus::hung;
  }
  child.received.erase(0, at);
}

// A process that the harness has ended at the time-out. If all ranks have handed in their outcomes, its ranks hung at
// their end. Otherwise they may have waited for a rank that hung before.
bool hung_at_its_end(const RunningCase& test_case) {
  return test_case.is_out_of_time() && !test_case.interrupted && test_case.options.hosts == nullptr &&
         std::all_of(test_case.handed_in.begin(), test_case.handed_in.end(), [](bool is) { return is; });
}

// Records the end of a process for those of its ranks that handed in no outcome, or whose outcome says something else.
void note_end(RunningCase& test_case, const Child& child, int status) {
  for (int number : child.ranks) {
    const auto rank = static_cast<std::size_t>(number);
    verdict::RankOutcome& outcome = test_case.outcomes[rank];
    outcome.rank = number;
    if (outcome.end_expected && outcome.status == verdict::RankStatus::killed) {
      outcome.end_time_ns = comm::now_ns();
      continue;
    }
    const bool clean = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    const bool excuses = clean || test_case.interrupted || (test_case.is_out_of_time() && !hung_at_its_end(test_case));
    if (test_case.handed_in[rank] && excuses) continue;
    outcome.end_time_ns = comm::now_ns();
    if (test_case.handed_in[rank]) outcome.detail = "after it had handed in its outcome";
    if (test_case.interrupted) {
      outcome.status = verdict::RankStatus::killed;
      outcome.signal = SIGKILL;
      outcome.detail = test_case.lost_reason.empty() ? "interrupted" : test_case.lost_reason;
      outcome.bystander = !test_case.lost_reason.empty();
    } else if (test_case.is_out_of_time()) {
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

// The reason of the end of a process, shown to peers and kept by the flight recorder.
std::string reason_of_end(const RunningCase& test_case, int status) {
  if (test_case.lost_reason.empty() && test_case.interrupted) return "ended by the harness: the run was interrupted";
  if (test_case.interrupted) return str("ended by the harness: ", test_case.lost_reason);
  if (test_case.is_out_of_time() && WIFSIGNALED(status))
    return str("ended by the harness after the time-out of ", seconds_text(test_case.options.timeout_seconds));
  return WIFSIGNALED(status) ? str("ended by ", signal_text(WTERMSIG(status))) : str(exited_with, WEXITSTATUS(status));
}

// A crash of one thread rank ends all ranks of its process. Those that did not crash themselves are bystanders.
void note_bystanders(RunningCase& test_case, const Child& child, int status) {
  if (child.ranks.size() < 2 || (WIFEXITED(status) && WEXITSTATUS(status) == 0)) return;
  const std::vector<int> crashed = comm::crashed_ranks(*test_case.world);
  if (crashed.empty()) return;
  for (int number : child.ranks) {
    if (std::find(crashed.begin(), crashed.end(), number) != crashed.end()) continue;
    verdict::RankOutcome& outcome = test_case.outcomes[static_cast<std::size_t>(number)];
    if (outcome.status != verdict::RankStatus::killed && outcome.status != verdict::RankStatus::exited) continue;
    outcome.bystander = true;
    outcome.detail = str("rank ", crashed.front(), ", a thread of the same process, crashed");
  }
}

}  // namespace

bool RunningCase::ranks_run() const {
  return std::any_of(children.begin(), children.end(), [](const Child& child) { return !child.gone; });
}

void close_fd(int& fd) {
  if (fd >= 0) ::close(fd);
  fd = -1;
}

void close_descriptors(Child& child) {
  for (int* const each : {&child.pipe, &child.pidfd, &child.requests}) close_fd(*each);
}

std::string seconds_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%g s", seconds);
  return text;
}

void read_pipe(RunningCase& test_case, Child& child) {
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
  take_frames(test_case, child);
}

void collect(RunningCase& test_case, Child& child) {
  ::kill(-child.pid, SIGKILL);
  int status = 0;
  while (::waitpid(child.pid, &status, 0) < 0 && errno == EINTR) {
  }
  read_pipe(test_case, child);
  child.gone = true;
  note_end(test_case, child, status);
  note_bystanders(test_case, child, status);
  for (int rank : child.ranks) comm::announce_death(*test_case.world, rank, reason_of_end(test_case, status));
  close_descriptors(child);
}

bool has_ended(const Child& child) {
  siginfo_t info{};
  return ::waitid(P_PID, static_cast<id_t>(child.pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0;
}

void blame_culprits(RunningCase& test_case) {
  for (const comm::AwaitedRank& culprit : test_case.culprits) {
    verdict::RankOutcome& blamed = test_case.outcomes[static_cast<std::size_t>(culprit.rank)];
    if (blamed.status == verdict::RankStatus::hung)
      blamed.detail = str(culprit.text, blamed.detail.empty() ? "" : "; ", blamed.detail);
    for (int rank : culprit.behind) {
      verdict::RankOutcome& waiting = test_case.outcomes[static_cast<std::size_t>(rank)];
      waiting.bystander = waiting.status == verdict::RankStatus::hung;
    }
  }
}

void complete_outcomes(RunningCase& test_case) {
  if (test_case.is_complete) return;
  test_case.is_complete = true;
  if (test_case.world) {
    const std::vector<comm::RankHistory> stories = comm::read_recorder(*test_case.world);
    for (std::size_t rank = 0; rank < test_case.outcomes.size(); ++rank) {
      if (!test_case.is_local(static_cast<int>(rank))) continue;
      verdict::RankOutcome& outcome = test_case.outcomes[rank];
      const comm::RankHistory& story = stories[rank];
      if (outcome.last_step.step.empty() && outcome.status != verdict::RankStatus::finished && !story.step.empty())
        outcome.last_step = {story.step, story.file, story.line, story.column};
      const bool cut_short = !test_case.handed_in[rank] && outcome.status != verdict::RankStatus::never_started;
      if ((cut_short || outcome.status == verdict::RankStatus::hung) && outcome.detail.empty())
        outcome.detail = comm::last_call_text(story);
      // The rank's own handler of the crash has recorded a cause, or the rank has ended because of an error.
      const bool has_cause = outcome.signal != 0 ? story.why.ends_with(str("; ended by ", signal_text(outcome.signal)))
                                                 : outcome.exit_code != 0 && !story.why.starts_with(exited_with);
      if (cut_short && has_cause) outcome.detail = str(story.why, outcome.detail.empty() ? "" : "; ", outcome.detail);
    }
  }
  if (test_case.options.hosts == nullptr) blame_culprits(test_case);
}

LaunchResult finish(RunningCase& test_case) {
  complete_outcomes(test_case);
  LaunchResult result;
  result.seconds = static_cast<double>(comm::now_ns() - test_case.start_ns) * 1e-9;
  if (test_case.world) result.stories = comm::read_recorder(*test_case.world);
  for (comm::RankHistory& story : test_case.stories_of_others)
    if (static_cast<std::size_t>(story.rank) < result.stories.size())
      result.stories[static_cast<std::size_t>(story.rank)] = std::move(story);
  result.outcomes = std::move(test_case.outcomes);
  test_case.ferry.reset();
  test_case.world.reset();
  if (!test_case.options.folder.empty()) {
    std::error_code ignored;
    std::filesystem::remove_all(test_case.options.folder, ignored);
  }
  return result;
}

}  // namespace lockstep::launch
