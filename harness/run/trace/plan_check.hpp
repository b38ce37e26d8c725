// The plan against what ran, and the plan as a table for people.
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

// Positions in the log, from and to: what steps issued that had to fail.
using LogRanges = std::vector<std::pair<std::size_t, std::size_t>>;

struct PlanMismatch {
  std::string message;
  int line = 0;  // of the scenario's file, 0 when it is not known
};
struct PlanJudgement {
  std::vector<PlanMismatch> mismatches;     // kinds that the log holds more or less of than the plan says
  std::optional<PlanMismatch> first_apart;  // the first place where the two sequences part
  std::int64_t num_in_order = 0;            // collectives that stand at their place
  std::string not_judged;                   // why there is nothing to go by; empty: the plan was judged
  std::vector<verdict::PlanRow> rows;       // of both; empty when there is no plan
};
// Why a stage has no plan, before any trace is made; empty when it has one.
std::string why_not_planned(const CaseSpec& spec, std::size_t stage);
PlanJudgement check_plan(const CaseSpec& spec, int rank, int world_size, std::size_t stage,
                         const std::vector<comm::LogEntry>& log, const LogRanges& left_out);

// The collectives of the data-parallel layer that rank 0 of this case must make, for `lockstep explain`: how many of
// each kind, and the order of the last turn; empty when it makes none. Nothing is launched.
std::string explain_plan(const CaseSpec& spec);

}  // namespace lockstep::run
