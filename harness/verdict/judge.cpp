#include "harness/verdict/judge.hpp"

#include <algorithm>
#include <csignal>
#include <initializer_list>
#include <iterator>
#include <set>
#include <tuple>

#include "engine/core/error.hpp"
#include "harness/verdict/compare.hpp"

namespace lockstep::verdict {

namespace {

constexpr std::string_view rank_status_names[static_cast<int>(RankStatus::count_)] = {
    "finished", "failed", "unsupported", "exited", "killed", "hung", "never_started", "lost", "invalid"};

// Exited, killed or never started, without the scenario asking for it.
bool is_crash(const RankOutcome& outcome) {
  if (outcome.status == RankStatus::never_started || outcome.status == RankStatus::lost) return true;
  return (outcome.status == RankStatus::exited || outcome.status == RankStatus::killed) && !outcome.end_expected;
}

std::string_view signal_text(int signal) {
  switch (signal) {
    case SIGSEGV:
      return "SIGSEGV, an access to memory that is not mapped";
    case SIGBUS:
      return "SIGBUS, the memory behind a mapping is gone";
    case SIGABRT:
      return "SIGABRT, it called abort()";
    case SIGFPE:
      return "SIGFPE, an integer division without a result";
    case SIGILL:
      return "SIGILL, an instruction that this processor lacks";
    case SIGKILL:
      return "SIGKILL, which the kernel also sends when memory runs out";
    case SIGTERM:
      return "SIGTERM";
    case SIGINT:
      return "SIGINT";
    case SIGPIPE:
      return "SIGPIPE";
    default:
      return "";
  }
}

// A failure, with the facts that order it among the others.
struct Cause {
  Failure failure;
  RankStatus status;
  std::size_t stage;
};

Failure failure_of_end(const RankOutcome& outcome, std::string message) {
  Failure failure;
  failure.check = outcome.last_step.step;
  failure.file = outcome.last_step.file;
  failure.line = outcome.last_step.line;
  failure.column = outcome.last_step.column;
  failure.rank = outcome.rank;
  failure.time_ns = outcome.end_time_ns;
  failure.message = std::move(message);
  failure.secondary = outcome.bystander;
  return failure;
}

// The failures of all ranks, including crashes and hangs, the cause first: within a stage, secondary ones last and
// otherwise in order of time.
std::vector<Cause> causes_in_order(const std::vector<StageOutcomes>& stages) {
  std::vector<Cause> causes;
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    for (const RankOutcome& outcome : stages[stage].ranks) {
      LOCKSTEP_CHECK(outcome.status != RankStatus::failed || !outcome.failures.empty(), "rank ", outcome.rank,
                     " failed without a failure");
      for (Failure failure : outcome.failures) {
        failure.rank = outcome.rank;
        causes.push_back({std::move(failure), RankStatus::failed, stage});
      }
      if (is_crash(outcome) || outcome.status == RankStatus::hung) {
        causes.push_back({failure_of_end(outcome, describe_end(outcome)), outcome.status, stage});
      } else if (outcome.status == RankStatus::invalid || outcome.status == RankStatus::unsupported) {
        causes.push_back({failure_of_end(outcome, outcome.detail), outcome.status, stage});
      }
    }
  }
  if (causes.empty()) return causes;
  std::stable_sort(causes.begin(), causes.end(), [](const Cause& a, const Cause& b) {
    return std::tie(a.stage, a.failure.secondary, a.failure.time_ns) <
           std::tie(b.stage, b.failure.secondary, b.failure.time_ns);
  });
  // Of the ranks that fail alike the lowest is named, whichever was first.
  const auto like_the_first = [&](const Cause& cause) {
    const Failure &first = causes.front().failure, &one = cause.failure;
    return std::tuple(cause.stage, one.secondary, std::tie(one.file, one.line, one.column, one.message)) ==
           std::tuple(causes.front().stage, first.secondary,
                      std::tie(first.file, first.line, first.column, first.message));
  };
  auto lowest = causes.begin();
  for (auto at = causes.begin(); at != causes.end(); ++at)
    if (like_the_first(*at) && at->failure.rank < lowest->failure.rank) lowest = at;
  std::rotate(causes.begin(), lowest, lowest + 1);
  return causes;
}

// The first failure, with the others as lines of `also`. Ranks with the same message share a line.
Failure first_with_others(const std::vector<Cause>& causes) {
  struct Other {
    std::string message;
    std::size_t note_size;
    std::vector<int> ranks;
  };
  Failure first = causes.front().failure;
  std::vector<Other> others;
  for (std::size_t i = 1; i < causes.size(); ++i) {
    const Failure& failure = causes[i].failure;
    if (!failure.secondary) first.also_checks.push_back(failure.check);
    // The line of `also` begins with the rank already.
    const std::string own_name = str("rank ", failure.rank, " ");
    const std::string message =
        failure.message.starts_with(own_name) ? failure.message.substr(own_name.size()) : failure.message;
    const auto same =
        std::find_if(others.begin(), others.end(), [&](const Other& other) { return other.message == message; });
    if (same == others.end()) {
      others.push_back({message, std::min<std::size_t>(failure.note_size, message.size()), {failure.rank}});
    } else if (std::find(same->ranks.begin(), same->ranks.end(), failure.rank) == same->ranks.end()) {
      same->ranks.push_back(failure.rank);
    }
  }
  for (auto& [message, note_size, ranks] : others) {
    std::sort(ranks.begin(), ranks.end());
    std::string prefix = ranks.size() == 1 ? "rank " : "ranks ";
    for (std::size_t i = 0; i < ranks.size(); ++i) prefix += str(i == 0 ? "" : ", ", ranks[i]);
    first.also.push_back(str(prefix, ": ", message));
    first.also_without_notes.push_back(str(prefix, ": ", message.substr(0, message.size() - note_size)));
  }
  return first;
}

void fill_observations(CaseResult& row, const std::vector<StageOutcomes>& stages) {
  for (const StageOutcomes& stage : stages) {
    for (const RankOutcome& outcome : stage.ranks) row.evidence.add(outcome.evidence);
    const std::vector<CollectiveCount> rows = merge_collectives(stage.ranks, stage.stage);
    row.collectives.insert(row.collectives.end(), rows.begin(), rows.end());
    if (!stage.ranks.empty())
      for (PlanRow planned : stage.ranks.front().plan) {
        planned.stage = stage.stage;
        row.plan.push_back(std::move(planned));
      }
    const MemoryPeaks peaks = merge_memory(stage.ranks);
    for (const auto& [purpose, bytes] : peaks) {
      std::int64_t& largest = row.memory[purpose];
      largest = std::max(largest, bytes);
    }
    if (!stage.stage.empty()) row.stage_memory.emplace_back(stage.stage, peaks);
    // A record of a later stage replaces the record of the same name. A rank that did not record it has null.
    std::set<std::string> names;
    for (const RankOutcome& outcome : stage.ranks) {
      for (const auto& record : outcome.records) names.insert(record.first);
    }
    for (const std::string& name : names) row.records[name].assign(stage.ranks.size(), "null");
    for (std::size_t i = 0; i < stage.ranks.size(); ++i) {
      for (const auto& [name, json] : stage.ranks[i].records) row.records[name][i] = json;
    }
  }
}

// The first check that had to be reached and that no rank reached; null when there is none.
const CheckSite* unreached_check(const Expectation& expectation, const std::vector<StageOutcomes>& stages) {
  std::set<std::string> reached;
  for (const StageOutcomes& stage : stages) {
    for (const RankOutcome& outcome : stage.ranks) {
      reached.insert(outcome.checks_reached.begin(), outcome.checks_reached.end());
    }
  }
  for (const CheckSite& site : expectation.checks) {
    if (!reached.contains(site.id)) return &site;
  }
  return nullptr;
}

std::string expectation_text(const ExpectedFailure& expected) {
  std::string text = "a failure was expected (" + expected.reason + ")";
  if (expected.verdict != Status::FAIL) text += str(" with the verdict ", name_of(expected.verdict));
  if (expected.line) text += str(" at line ", *expected.line);
  if (expected.rank) text += str(" on rank ", *expected.rank);
  if (expected.message) text += str(" with the message '", *expected.message, "'");
  if (expected.also) {
    text += expected.also->empty() ? ", no other failure" : ", the others";
    for (const std::string& line : *expected.also) text += str(" '", line, "'");
  }
  return text;
}

Status status_of(const std::vector<Cause>& causes) {
  using enum RankStatus;
  const auto any = [&causes](std::initializer_list<RankStatus> statuses) {
    return std::ranges::find_first_of(causes, statuses, {}, &Cause::status) != causes.end();
  };
  if (any({exited, killed, never_started, lost})) return Status::CRASH;
  if (any({hung})) return Status::HANG;
  if (causes.front().status == unsupported) return Status::UNSUPPORTED;
  const auto has_failed = [](const Cause& cause) { return cause.status == failed && !cause.failure.secondary; };
  return any({invalid}) && std::ranges::none_of(causes, has_failed) ? Status::INVALID : Status::FAIL;
}

// Turns an expected failure into XFAIL.
void hold_against(const std::optional<ExpectedFailure>& expected, CaseResult& row, const std::string& explanation) {
  if (!expected) return;
  const bool explained = !expected->flight_recorder || message_matches(explanation, *expected->flight_recorder);
  if (row.status == expected->verdict && is_expected(*row.failure, *expected) && !explained) {
    row.failure->message += str("\n  the flight recorder was expected to say '", *expected->flight_recorder,
                                "', but it says: ", explanation);
  } else if (row.status == expected->verdict && is_expected(*row.failure, *expected)) {
    row.status = Status::XFAIL;
    row.reason = expected->reason;
  } else if (row.status == Status::FAIL || row.status == expected->verdict) {
    row.failure->message += str("\n  ", expectation_text(*expected), ", but this is another failure");
  }
}

void judge_failure(CaseResult& row, const Expectation& expectation, const std::vector<Cause>& causes,
                   const std::string& explanation) {
  row.failure = first_with_others(causes);
  row.status = status_of(causes);
  hold_against(expectation.failure, row, explanation);
  if (row.status != Status::UNSUPPORTED) return;
  row.reason = row.failure->message;
  row.failure.reset();
}

void judge_success(CaseResult& row, const Expectation& expectation, const std::vector<StageOutcomes>& stages) {
  if (const CheckSite* site = unreached_check(expectation, stages)) {
    row.status = Status::INVALID;
    Failure failure;
    failure.check = site->place.step;
    failure.file = site->place.file;
    failure.line = site->place.line;
    failure.column = site->place.column;
    failure.scenario_line = site->scenario_line;
    failure.message = "no rank reached this check, and no parameter rules it out";
    row.failure = std::move(failure);
  } else if (!row.evidence.any()) {
    row.status = Status::INVALID;
    Failure failure;
    failure.message = row.evidence.trivial == 0
                          ? std::string("the case gathered no evidence: it compared nothing and expected nothing")
                          : str("the case gathered no evidence: ", row.evidence.trivial,
                                row.evidence.trivial == 1 ? " check was trivial" : " checks were trivial",
                                " (both sides all zero, sharing storage or empty, or of a window in which nothing "
                                "happened)");
    row.failure = std::move(failure);
  } else if (expectation.failure) {
    row.status = Status::XPASS;
    row.reason = expectation.failure->reason;
  } else if (const std::string problem = evidence_problem(row.evidence, expectation.evidence); !problem.empty()) {
    row.status = Status::FAIL;
    Failure failure;
    failure.check = "evidence";
    failure.message = "the case gathered other evidence than the scenario states: " + problem;
    row.failure = std::move(failure);
  } else {
    row.status = Status::PASS;
  }
  if (row.status == Status::INVALID) hold_against(expectation.failure, row, "");
}

}  // namespace

std::string_view name_of(RankStatus status) {
  LOCKSTEP_CHECK(status < RankStatus::count_, "rank status ", static_cast<int>(status));
  return rank_status_names[static_cast<int>(status)];
}

CaseResult judge(CaseResult blank, const Expectation& expectation, const std::vector<StageOutcomes>& stages,
                 const std::string& explanation) {
  CaseResult row = std::move(blank);
  const bool any_rank =
      std::any_of(stages.begin(), stages.end(), [](const auto& stage) { return !stage.ranks.empty(); });
  if (!any_rank) {
    row.reason = "no rank left a result";
    return row;
  }
  fill_observations(row, stages);
  const std::vector<Cause> causes = causes_in_order(stages);
  if (causes.empty()) {
    judge_success(row, expectation, stages);
  } else {
    judge_failure(row, expectation, causes, explanation);
  }
  if (row.status != Status::UNSUPPORTED) row.plan_verdict = merge_plan_verdicts(stages);
  row.planning = merge_planning(stages);
  return row;
}

bool is_expected(const Failure& failure, const ExpectedFailure& expected) {
  if (expected.line) {
    const int line = failure.scenario_line > 0 ? failure.scenario_line : failure.line;
    if (line != *expected.line) return false;
  }
  if (expected.rank && failure.rank != *expected.rank) return false;
  const std::size_t size = failure.message.size() - std::min<std::size_t>(failure.note_size, failure.message.size());
  if (expected.message && !message_matches(failure.message.substr(0, size), *expected.message)) return false;
  return !expected.also || std::equal(failure.also_without_notes.begin(), failure.also_without_notes.end(),
                                      expected.also->begin(), expected.also->end(), message_matches);
}

std::string describe_end(const RankOutcome& outcome) {
  std::string text = str("rank ", outcome.rank);
  switch (outcome.status) {
    case RankStatus::killed: {
      if (outcome.bystander && outcome.signal == SIGKILL) {
        text += " was ended by the harness";
        break;
      }
      text += str(" was ended by signal ", outcome.signal);
      const std::string_view meaning = signal_text(outcome.signal);
      if (!meaning.empty()) text += str(" (", meaning, ")");
      break;
    }
    case RankStatus::exited:
      text += str(" exited with code ", outcome.exit_code, " before it handed in its outcome");
      break;
    case RankStatus::hung:
      text += " did not end in time and was ended by the harness";
      break;
    case RankStatus::never_started:
      text += outcome.last_step.step.empty() ? " could not be started" : " could not go on";
      break;
    case RankStatus::lost:
      text += " was lost";
      break;
    case RankStatus::finished:
    case RankStatus::failed:
    case RankStatus::unsupported:
    case RankStatus::invalid:
    case RankStatus::count_:
      text += str(" ended as '", name_of(outcome.status), "'");
      break;
  }
  if (!outcome.last_step.step.empty()) text += str(" in ", outcome.last_step.step);
  if (!outcome.detail.empty()) text += str("; ", outcome.detail);
  return text;
}

}  // namespace lockstep::verdict
