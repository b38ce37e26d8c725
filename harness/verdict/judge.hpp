// The verdict of a case from the outcomes of its ranks: pure functions, so that every end of a case is tested without
// starting a rank.
//
// The interpreter fills a RankOutcome per rank with evidence, failures, collectives and more. The launcher adds how a
// rank ended that could not report it. The outcomes of all ranks, stage by stage, and the expectations of the scenario
// give one CaseResult.
//
//   CaseResult row = judge(std::move(blank), expectation, {{"", launch(options, run_rank).outcomes}});
//
// `blank` is the row with its identity filled in (scenario, case_id, params, world_size, launch, device, repro).
//
// The first of these that applies is the verdict:
//   CRASH        a rank exited, or was killed by a signal, and the scenario did not ask for it
//   HANG         a rank did not end in time and was killed
//   UNSUPPORTED  the first cause is something that the machine or build lacks
//   FAIL         there is a failure (but INVALID if a rank is invalid and all failures are secondary)
//   INVALID      a rank is invalid, no rank reached a check that had to be reached, or there is no evidence
//   PASS
// An expected failure turns the verdict that it names (FAIL, unless it names another) into XFAIL, and PASS into XPASS.
// A case that would pass with other evidence than the scenario states is a FAIL. A `secondary` failure is the
// consequence of another rank's end. It is never the cause while there is another failure.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "harness/verdict/results.hpp"

namespace lockstep::verdict {

enum class RankStatus {
  finished,       // ran to the end without a failure
  failed,         // has failures, listed in `failures`
  unsupported,    // the machine or build lacks something, named in `detail`
  exited,         // exited with `exit_code` before it handed in an outcome, or returned early as the scenario asked
  killed,         // ended by `signal`
  hung,           // did not end in time and was killed
  never_started,  // could not be started, for the reason in `detail`
  lost,           // the host that ran it did not answer any more, for the reason in `detail`
  invalid,  // the scenario asks for something that cannot be judged, named in `detail` (a name whose step did not run)
  count_
};
std::string_view name_of(RankStatus status);

// The place of a step: the last one that a rank reached, or the one of a check.
struct StepPlace {
  std::string step;  // verb or check: forward, expect_equal, ...
  std::string file;
  int line = 0;
  int column = 0;
};

struct RankOutcome {
  int rank = 0;
  RankStatus status = RankStatus::finished;
  bool end_expected = false;  // the scenario asks for this end (`exit`, `fault ... kill`)
  bool bystander = false;     // its end is the consequence of another rank's end; set by the launcher
  int exit_code = 0;
  int signal = 0;
  std::string detail;            // further facts of the end, such as the collective in which it waited
  StepPlace last_step;           // the step in which it ended; empty when unknown
  std::int64_t end_time_ns = 0;  // monotonic clock, when the end was noticed
  Evidence evidence;
  std::vector<Failure> failures;  // in order of time; judge() sets their rank
  std::vector<CollectiveCount> collectives;
  std::vector<PlanRow> plan;
  PlanVerdict plan_verdict;
  PlanningCost planning;
  MemoryPeaks memory;
  std::vector<std::pair<std::string, JsonText>> records;  // name and JSON text
  std::vector<std::string> checks_reached;                // ids of CheckSite
};

// A check that some rank must reach. The interpreter leaves out the checks that parameters rule out.
struct CheckSite {
  std::string id;  // the interpreter's name for it: its place and the routines that lead there
  StepPlace place;
  int scenario_line = 0;  // inside a routine: the line of the scenario's own file that calls it
};

struct ExpectedFailure {
  std::string reason;
  std::optional<int> line{};                       // in the scenario's own file
  std::optional<std::string> message{};            // pattern, see message_matches
  Status verdict = Status::FAIL;                   // or HANG, CRASH, INVALID, UNSUPPORTED
  std::optional<int> rank{};                       // of the first failure
  std::optional<std::vector<std::string>> also{};  // patterns of the lines of `also`, in order
  std::optional<std::string> flight_recorder{};    // pattern of its explanation
};

// A count or measure of the evidence, by its name in the results file; those of `loosest` without a prefix.
struct ExpectedEvidence {
  std::string name;
  double value = 0.0;
};

struct Expectation {
  std::vector<CheckSite> checks;
  std::optional<ExpectedFailure> failure;
  std::vector<ExpectedEvidence> evidence{};
};

// The ranks of one launch; a case without stages has one, with an empty name.
struct StageOutcomes {
  std::string stage;
  std::vector<RankOutcome> ranks;
};

// `blank` with status, reason, evidence, collectives, memory, records and failure filled in; its `seconds` are kept.
// It is MISSING if no rank left a result. `explanation`: that of the flight recorder, for the expected failure.
CaseResult judge(CaseResult blank, const Expectation& expectation, const std::vector<StageOutcomes>& stages,
                 const std::string& explanation = "");

// The differences from the expected evidence: "comparisons is 3, expected 4"; empty: none.
std::string evidence_problem(const Evidence& evidence, const std::vector<ExpectedEvidence>& expected);
// Whether line, message, rank and other failures are the expected ones.
bool is_expected(const Failure& failure, const ExpectedFailure& expected);
// One row per (family, operation, axis, group size, phase), in the order in which rank 0 issued them. Where the ranks
// that handed in an outcome differ, one row per rank, with its number.
std::vector<CollectiveCount> merge_collectives(const std::vector<RankOutcome>& ranks, const std::string& stage);
// Judged when the plan of every rank of every stage that replicates or shards was judged. Otherwise the first reason.
PlanVerdict merge_plan_verdicts(const std::vector<StageOutcomes>& stages);
PlanningCost merge_planning(const std::vector<StageOutcomes>& stages);
// The largest peak of each purpose over the ranks.
MemoryPeaks merge_memory(const std::vector<RankOutcome>& ranks);
// The end of a rank as a sentence: "rank 1 was ended by signal 11 (SIGSEGV) in forward; ...".
std::string describe_end(const RankOutcome& outcome);

}  // namespace lockstep::verdict
