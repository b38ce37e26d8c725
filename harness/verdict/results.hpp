// The rows of a results file as C++ values. The interpreter fills the observations on each rank, judge() merges the
// ranks into one CaseResult per case, and the writers (harness/report) turn it into results.jsonl, JUnit and console
// lines. Names and meaning of the fields are the contract of the results file; see harness/README.md.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::verdict {

enum class Status { PASS, FAIL, XFAIL, XPASS, SKIP, UNSUPPORTED, HANG, CRASH, INVALID, MISSING };
inline constexpr int num_statuses = 10;
std::string_view name_of(Status status);
Status status_from_name(std::string_view name);
// FAIL, XPASS, HANG, CRASH, INVALID, MISSING.
bool is_unexpected(Status status);

// The tolerance of a comparison; the results keep the loosest one. `of_largest` appears in them only where it was used.
struct Tolerance {
  double rtol = 0.0;
  double atol = 0.0;
  double of_largest = 0.0;  // times the largest expected magnitude
};

struct Evidence {
  std::int64_t comparisons = 0;  // non-trivial ones
  std::int64_t trivial = 0;      // checks that no behaviour of the engine can break: never evidence
  std::int64_t elements = 0;
  std::int64_t same_bits = 0;      // non-trivial comparisons whose bits were the same
  std::int64_t bits_required = 0;  // comparisons that required the same bits
  double max_abs_difference = 0.0;
  Tolerance loosest;
  std::int64_t collectives_checked = 0;
  std::int64_t orders_checked = 0;
  std::int64_t errors_expected = 0;
  // Collectives at their place in the planned order. Like everything about the plan, they are never evidence.
  std::int64_t planned_in_order = 0;
  std::int64_t conditions = 0;  // conditions of `expect` that held and that depend on the run
  // False for a row of an older results file, which counts each condition as a comparison of one element with the same
  // bits.
  bool conditions_apart = true;
  // Comparisons of which the scenario requires the same bits, judged by a tolerance because a library orders the sums.
  std::int64_t bits_relaxed = 0;

  bool any() const { return comparisons + conditions + collectives_checked + orders_checked + errors_expected > 0; }
  // The counts as an older results file has them, to compare with one.
  Evidence with_conditions_among_comparisons() const;
  // Adds the counts, and keeps the larger difference (a not-a-number stays) and the looser of each tolerance.
  void add(const Evidence& other);
};

// One row of `collectives`.
struct CollectiveCount {
  std::string family;     // data_parallel, tensor_parallel, user, start_up, checkpoint
  std::string operation;  // all_reduce, ...
  std::string axis;       // mesh axis of the group; empty when it has none
  int group_size = 0;
  std::string phase;  // forward, backward, optimizer, other
  std::int64_t count = 0;
  std::int64_t bytes = 0;
  int rank = -1;      // only where ranks differ
  std::string stage;  // only in staged cases
};

// One row of `plan`: the planned collectives of one kind on rank 0, and those that the parallel layer issued.
struct PlanRow {
  std::string family, operation, axis;
  int group_size = 0;
  std::string phase;
  std::int64_t planned = 0, planned_bytes = 0;
  bool bytes_are_least = false;  // planned_bytes is a lower bound
  std::int64_t observed = 0, observed_bytes = 0;
  std::string stage;  // only in staged cases
};

// Whether the collectives of a rank or a case were compared with the plan. If not, `reason` explains it; the text
// before its colon is one of a few kinds (harness/README.md).
struct PlanVerdict {
  bool is_judged = false;
  std::string reason;
  std::vector<std::string> left_out{};  // collectives that were not planned, with the reason; also of a judged case
  std::string kind() const { return reason.substr(0, reason.find(':')); }
};
// The CPU time of ranks, of their own threads, and the part of it that went into the plan: dry runs and comparisons.
struct PlanningCost {
  double seconds = 0.0;
  double rank_seconds = 0.0;
  int num_dry_runs = 0;
  void add(const PlanningCost& other);
};
inline constexpr std::string_view nothing_to_plan =
    "nothing to plan: no step replicates, shards or applies tensor parallelism";

// Peak bytes over the ranks, by purpose, and peak_total. The keys are those of the results file.
using MemoryPeaks = std::map<std::string, std::int64_t>;

struct Failure {
  std::string check;  // the verb that failed: expect_equal, raises, backward, ...
  std::string file;
  int line = 0;
  int column = 0;
  int rank = -1;
  int iteration = -1;  // index of the innermost loop, -1 outside loops
  std::string message;
  std::vector<std::string> source;       // the lines of the step, from `line` on
  std::vector<std::string> also;         // the other failures: "rank 1: message"
  std::vector<std::string> also_checks;  // the checks of the others that are not secondary; not written
  std::int64_t time_ns = 0;              // monotonic clock, to find the first failure; not written
  // The consequence of a peer's end. It is never the cause while there is another failure. Not written.
  bool secondary = false;
  int scenario_line = 0;  // inside a routine: the line of the scenario's own file that uses it; otherwise 0
  // The characters of the step's note at the end of `message`. No expected text may be found in them. Not written.
  std::uint64_t note_size = 0;
  // The lines of `also` without the notes of their steps, for the expected failure. Not written.
  std::vector<std::string> also_without_notes;
};

// A value as JSON text (parameters, records). The value type of the scenario language stays in its own layer.
using JsonText = std::string;

struct CaseResult {
  std::string scenario;  // "replicate/single_module"
  std::string file;      // of the scenario, as places name it; empty in an older results file
  std::string case_id;   // "world_size=2,launch=process,device=cpu"
  std::optional<int> mirrors;
  std::vector<std::pair<std::string, JsonText>> params;  // matrix parameters in order
  int world_size = 1;
  std::string launch;  // process or thread
  std::string device;
  std::string sum_order;  // "library"; empty: the fixed order of the engine
  Status status = Status::MISSING;
  std::string reason;  // of SKIP, UNSUPPORTED, XFAIL, XPASS, MISSING
  double seconds = 0.0;
  Evidence evidence;
  std::vector<CollectiveCount> collectives;
  std::vector<PlanRow> plan;                // empty where nothing is planned
  std::optional<PlanVerdict> plan_verdict;  // nothing when the case did not run
  PlanningCost planning;                    // of all ranks; not written
  MemoryPeaks memory;
  std::vector<std::pair<std::string, MemoryPeaks>> stage_memory;  // per stage, only in staged cases
  std::map<std::string, std::vector<JsonText>> records;           // one entry per rank
  std::optional<Failure> failure;
  std::string repro;     // "lockstep run ..."
  std::string timeline;  // file of `lockstep run --timeline`, relative to the results file or absolute; empty: none
};

struct RunInfo {
  std::string version;
  std::string started;  // ISO 8601, UTC
  std::vector<std::string> command;
  std::map<std::string, std::string> build;    // compiler, kokkos, kokkos_backends, blas
  std::map<std::string, std::string> machine;  // cores, memory, cpu
};

struct Summary {
  std::map<std::string, int> counts;  // by status name
  double seconds = 0.0;
  int exit_code = 0;
  int num_plans_judged = 0;
  std::map<std::string, int> plans_not_judged{};  // by kind of reason
  PlanningCost planning{};                        // of all cases
};

// Exit code of a finished run: 0 all as expected, 1 an unexpected result, 4 nothing executed, 77 nothing executed and
// at least one UNSUPPORTED.
int exit_code_of(const std::vector<CaseResult>& results);

}  // namespace lockstep::verdict
