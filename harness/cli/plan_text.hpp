// The texts of `lockstep plan`: a page for the terminal, and one JSON line per stage.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/device/device.hpp"
#include "harness/plan/collectives.hpp"
#include "harness/plan/machine_model.hpp"
#include "harness/run/trace/plan_case.hpp"

namespace lockstep::cli {

// The plan of one rank in one stage of a case.
struct RankPlan {
  std::string scenario, case_id, stage;  // stage: empty without stages
  int rank = 0, world_size = 1;
  run::PlanOutcome outcome;
};

// The collectives of one kind, and the time that they take together.
struct TimedRow {
  plan::Row row;
  std::string level;              // of the machine; empty without one
  std::optional<double> seconds;  // nothing without a machine, or if the members are unknown
};
std::vector<TimedRow> timed_rows(const RankPlan& plan, const plan::Machine* machine);

std::string plan_page(const RankPlan& plan, const plan::Machine* machine);
std::string plan_json(const RankPlan& plan, const plan::Machine* machine);

}  // namespace lockstep::cli
