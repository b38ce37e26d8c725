// Compares the plan of a case with the collectives that a rank issued, and prints the plan as a table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/comm/process_group.hpp"
#include "harness/run/case_runner.hpp"
#include "harness/verdict/results.hpp"

namespace lockstep::run {

// Ranges of positions in the log, from and to: the collectives issued by steps that were expected to fail.
using LogRanges = std::vector<std::pair<std::size_t, std::size_t>>;

struct PlanMismatch {
  std::string message;
  int line = 0;  // of the scenario's file; 0: unknown
};
struct PlanJudgement {
  std::vector<PlanMismatch> mismatches;                // kinds of collectives whose counts or bytes differ
  std::optional<PlanMismatch> first_order_difference;  // the first position at which the two sequences differ
  std::int64_t num_in_order = 0;                       // collectives at their position
  std::string not_judged;                              // why the case was not compared with a plan; empty: it was
  std::vector<std::string> left_out;                   // collectives that were not planned, with the reason
  std::vector<verdict::PlanRow> rows;                  // both sides; empty without a plan
  int num_dry_runs = 0;                                // that this rank made
};
// The path of a rank through the scenario, as far as only a run knows it.
struct PathOfRank {
  std::uint64_t digest = 0;          // of the steps that it performed (control_digest.hpp)
  std::vector<bool> scaled_steps{};  // in order, whether each step with a scaler was done
};
// Why a stage has no plan, known without a dry run; empty if it has one.
std::string why_not_planned(const CaseSpec& spec, std::size_t stage);
// Takes or makes the plan of a rank (plan_board.hpp) on its path, and compares the log with it. Never throws for a plan
// that cannot be made: `not_judged` and a mismatch say so.
PlanJudgement check_plan(const CaseSpec& spec, int rank, int world_size, std::size_t stage,
                         const std::vector<comm::LogEntry>& log, const LogRanges& left_out, const PathOfRank& path);

// The collectives of a log that no plan contains, of a case without a plan: by family, with the reason.
std::vector<std::string> left_out_of_plan(const std::vector<comm::LogEntry>& log, const LogRanges& left_out);

// The collectives that the parallel APIs must issue on rank 0 of this case, for `lockstep explain`: the count of each
// kind, and the order within the last iteration. Empty if they issue none. Nothing is launched.
std::string explain_plan(const CaseSpec& spec);

}  // namespace lockstep::run
