// What a run leaves: the rows of a results file as values. The interpreter fills CaseResult's observations on each
// rank, the launcher merges the ranks into one CaseResult a case, the writers (harness/report) turn it into
// results.jsonl, JUnit and the console. Names and meaning of the fields are the contract of the results file; see
// harness/README.md.
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

// A tolerance used by a comparison; the results keep the loosest.
struct Tolerance {
  double rtol = 0.0;
  double atol = 0.0;
  double of_largest = 0.0;  // times the largest expected magnitude; in the results only when one was used
};

struct Evidence {
  std::int64_t comparisons = 0;  // non-trivial ones
  std::int64_t trivial = 0;      // both sides all zero, sharing storage, or empty: never evidence
  std::int64_t elements = 0;
  std::int64_t same_bits = 0;      // non-trivial comparisons that held bit for bit
  std::int64_t bits_required = 0;  // of which had to
  double max_abs_difference = 0.0;
  Tolerance loosest;
  std::int64_t collectives_checked = 0;
  std::int64_t orders_checked = 0;
  std::int64_t errors_expected = 0;
  // Collectives that stood at their place in the plan's sequence; never evidence, as all of the plan.
  std::int64_t planned_in_order = 0;
  std::int64_t conditions = 0;  // of `expect` that held and that hang on the run
  // False for a row of an older file, which counts each condition as a comparison of one element with the same bits.
  bool conditions_apart = true;

  bool any() const { return comparisons + conditions + collectives_checked + orders_checked + errors_expected > 0; }
  // The counts as an older file has them: for a comparison with one.
  Evidence with_conditions_among_comparisons() const;
  // Sums; the larger difference (not-a-number stays); the looser of each part of the tolerance.
  void add(const Evidence& other);
};

// One row of `collectives`.
struct CollectiveCount {
  std::string family;     // data_parallel, tensor_parallel, user, start_up, checkpoint
  std::string operation;  // all_reduce, ...
  std::string axis;       // mesh axis of the group, "" when it has none
  int group_size = 0;
  std::string phase;  // forward, backward, optimizer, other
  std::int64_t count = 0;
  std::int64_t bytes = 0;
  int rank = -1;      // only where ranks differ
  std::string stage;  // only in staged cases
};

// One row of `plan`: what the parallel layer had to issue on rank 0, worked out beforehand, and what it did issue.
struct PlanRow {
  std::string family, operation, axis;
  int group_size = 0;
  std::string phase;
  std::int64_t planned = 0, planned_bytes = 0;
  bool bytes_are_least = false;  // more were allowed
  std::int64_t observed = 0, observed_bytes = 0;
  std::string stage;  // only in staged cases
};

// Whether the collectives of a rank or a case were held against the plan. Otherwise `reason` says why not; the words
// before its colon are one of a few kinds.
struct PlanVerdict {
  bool is_judged = false;
  std::string reason;
  std::string kind() const { return reason.substr(0, reason.find(':')); }
};
inline constexpr std::string_view nothing_to_plan = "nothing to plan: no step replicates or shards a module";

// Peak over ranks, bytes, by purpose; keys as in the results file, with peak_total.
using MemoryPeaks = std::map<std::string, std::int64_t>;

struct Failure {
  std::string check;  // the verb that failed: expect_equal, raises, backward, ...
  std::string file;
  int line = 0;
  int column = 0;
  int rank = -1;
  int iteration = -1;  // index of the innermost loop, -1 outside loops
  std::string message;
  std::vector<std::string> source;       // the lines of the step in its file, from `line` on
  std::vector<std::string> also;         // other ranks' failures, "rank 1: message"
  std::vector<std::string> also_checks;  // the verbs of all others that failed by themselves; not written
  std::int64_t time_ns = 0;              // monotonic, to find the first in time; not written
  // The consequence of another rank's end (its peer died or gave up): never the cause while another is known; not
  // written.
  bool secondary = false;
  int scenario_line = 0;  // inside a routine: the line of the case's own file that led there; not written
};

// A JSON text already rendered (parameters, records): the value model of the scenario language stays in its layer.
using JsonText = std::string;

struct CaseResult {
  std::string scenario;  // "replicate/single_module"
  std::string file;      // of the scenario, as places name it; empty in results of earlier versions
  std::string case_id;   // "world_size=2,launch=process,device=cpu"
  std::optional<int> mirrors;
  std::vector<std::pair<std::string, JsonText>> params;  // matrix parameters in order
  int world_size = 1;
  std::string launch;  // process or thread
  std::string device;
  Status status = Status::MISSING;
  std::string reason;  // of SKIP, UNSUPPORTED, XFAIL
  double seconds = 0.0;
  Evidence evidence;
  std::vector<CollectiveCount> collectives;
  std::vector<PlanRow> plan;                // empty where nothing is planned
  std::optional<PlanVerdict> plan_verdict;  // nothing when the case did not run
  MemoryPeaks memory;
  std::vector<std::pair<std::string, MemoryPeaks>> stage_memory;  // by stage, only in staged cases
  std::map<std::string, std::vector<JsonText>> records;           // one entry a rank
  std::optional<Failure> failure;
  std::string repro;     // "lockstep run ..."
  std::string timeline;  // file of `lockstep run --timeline`, beside the results file or absolute; empty: none
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
};

// How many of each status, by name; statuses that did not occur are left out.
std::map<std::string, int> count_statuses(const std::vector<CaseResult>& results);

// Exit code of a finished run: 0 as expected, 1 unexpected, 4 nothing executed, 77 all skipped for reasons of the
// machine (at least one UNSUPPORTED, and nothing but the scenarios' own skips beside).
int exit_code_of(const std::vector<CaseResult>& results);

}  // namespace lockstep::verdict
