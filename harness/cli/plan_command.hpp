// `lockstep plan`: the planned collectives of one rank of a case, without a launch and for any world size.
#pragma once

#include <string>

#include "harness/scenario/expand.hpp"

namespace lockstep::cli {

struct PlanSettings {
  std::string name{};                // of a scenario, or its file
  scenario::ExpandOptions expand{};  // the first case of these that can run is planned
  int rank = 0;
  std::string machine{};  // file of a machine (plan/machine_model.hpp); empty: no times
  bool json = false;
};

// Prints collectives by kind, bytes by axis and phase, peak memory by purpose, and with a machine the times. Returns 0,
// or 1 when the plan is incomplete. Throws ScenarioError, or Error for a rank outside the world, for a scenario of
// which no case can run, and for a case that plans nothing.
int plan_command(const PlanSettings& settings);

}  // namespace lockstep::cli
