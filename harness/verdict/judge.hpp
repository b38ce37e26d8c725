// From what the ranks left to the verdict of a case: pure functions, so that every way a case can end is tested without
// starting a rank.
//
// A rank fills a RankOutcome (the interpreter: evidence, failures, collectives, ...; the launcher: how the rank ended
// when it could not say so itself). All ranks' outcomes, stage by stage, and what the scenario expects give one
// CaseResult.
//
//   CaseResult row = judge(std::move(blank), expectation, {{"", launch(options, run_rank).outcomes}});
//
// `blank` is the row with its identity filled in (scenario, case_id, params, world_size, launch, device, repro).
//
// Which verdict, in this order: CRASH when a rank ended by itself or by a signal that nobody asked for, HANG when one
// had to be ended, UNSUPPORTED when the first cause is a missing part of the machine, FAIL when there is a failure,
// INVALID when a rank says so, when a check that had to be reached was reached by no rank, or when there is no
// evidence, else PASS. An expected failure makes FAIL an XFAIL and PASS an XPASS; CRASH, HANG and INVALID it leaves
// alone. What is `secondary` never decides while something else can.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "harness/verdict/results.hpp"

namespace lockstep::verdict {

enum class RankStatus {
  finished,       // ran to the end, nothing failed
  failed,         // ran until a failure, or to the end with some; `failures` has them
  unsupported,    // the machine or build lacks something; `detail` says what
  exited,         // ended before it handed in an outcome, `exit_code`; or returned early because the scenario said so
  killed,         // ended by `signal`
  hung,           // did not end in time and was ended
  never_started,  // could not be started; `detail` says why
  invalid,        // the scenario asked for what cannot be judged (a name whose step did not run); `detail` says what
  count_
};
std::string_view name_of(RankStatus status);

// A step of a scenario: where a rank was last, or where a check stands.
struct StepPlace {
  std::string step;  // verb or check: forward, expect_equal, ...
  std::string file;
  int line = 0;
  int column = 0;
};

struct RankOutcome {
  int rank = 0;
  RankStatus status = RankStatus::finished;
  bool end_expected = false;  // the scenario told the rank to end like this (`exit`, `fault ... kill`)
  bool bystander = false;     // its end is the consequence of another rank's; set by the launcher
  int exit_code = 0;
  int signal = 0;
  std::string detail;   // what more is known of the end: last words, the collective it waited in, what is missing
  StepPlace last_step;  // where it was when it ended; empty when unknown
  std::int64_t end_time_ns = 0;  // monotonic; when the end was noticed
  double seconds = 0.0;
  Evidence evidence;
  std::vector<Failure> failures;  // in the order they came
  std::vector<CollectiveCount> collectives;
  std::vector<PlanRow> plan;
  PlanVerdict plan_verdict;
  MemoryPeaks memory;
  std::vector<std::pair<std::string, JsonText>> records;  // one JSON text a name
  std::vector<std::string> checks_reached;                // ids of CheckSite
};

// A check that must be reached by some rank unless parameters rule it out (the interpreter leaves those out).
struct CheckSite {
  std::string id;  // whatever names it to the interpreter: place, with the way through routines
  StepPlace place;
};

struct ExpectedFailure {
  std::string reason;
  std::optional<int> line;             // of the scenario's own file
  std::optional<std::string> message;  // pattern, see message_matches
};

struct Expectation {
  std::vector<CheckSite> checks;
  std::optional<ExpectedFailure> failure;
};

// The ranks of one launch; a case without stages has one, with an empty name.
struct StageOutcomes {
  std::string stage;
  std::vector<RankOutcome> ranks;
};

// `blank` with status, reason, evidence, collectives, memory, records and failure filled in; its `seconds` are kept.
CaseResult judge(CaseResult blank, const Expectation& expectation, const std::vector<StageOutcomes>& stages);

// The parts of it.

// All failures of all ranks (how a rank ended included), the cause first: what is not `secondary` before what is, and
// the earlier before the later. Nothing when nobody failed.
std::vector<Failure> failures_by_cause(const std::vector<StageOutcomes>& stages);
// The first of them, with the others as `also`.
std::optional<Failure> first_failure(const std::vector<StageOutcomes>& stages);
// True when `failure` is the one that was expected.
bool is_expected(const Failure& failure, const ExpectedFailure& expected);
// One row a (family, operation, axis, group size, phase) in the order rank 0 met them; where ranks that handed in an
// outcome differ, a row for each with its rank.
std::vector<CollectiveCount> merge_collectives(const std::vector<RankOutcome>& ranks, const std::string& stage);
// Judged when that holds of every rank of every stage that replicates or shards. Else the first reason.
PlanVerdict merge_plan_verdicts(const std::vector<StageOutcomes>& stages);
// The largest of each purpose.
MemoryPeaks merge_memory(const std::vector<RankOutcome>& ranks);
// How a rank ended that nobody told to end: "rank 1 was ended by signal 11 (SIGSEGV) in forward; ...".
std::string describe_end(const RankOutcome& outcome);

}  // namespace lockstep::verdict
