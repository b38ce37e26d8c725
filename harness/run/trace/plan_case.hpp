// The plan of a case: the collectives that one rank must make, from a dry run of its steps.
//
//   const PlanOutcome outcome = plan_case(spec, rank, world_size, stage);
//
// The dry run uses a separate rank context: generator, streams, memory and log of the calling rank do not change.
#pragma once

#include <string>
#include <vector>

#include "engine/device/device.hpp"
#include "harness/plan/collectives.hpp"
#include "harness/run/case_runner.hpp"

namespace lockstep::run {

// The ranks of a group that the plan names.
struct PlanGroup {
  std::string axis;
  int size = 0;
  std::vector<int> members;  // world ranks; empty if the case has no mesh with such a group
};

struct PlanOutcome {
  std::vector<plan::Collective> planned;
  std::string unforeseen;             // why the plan ends early; empty: it is complete
  std::vector<std::string> unknown;   // the values that were needed and unknown (DryRun::unknown_values)
  std::vector<std::string> left_out;  // why the collectives of tensor parallelism are not planned; empty: they are
  std::string conditions;             // the values of the case that the dry run read (plan_conditions.hpp)
  std::vector<PlanGroup> groups;      // of the planned collectives, each once
  device::MemoryStats memory;         // of the tensors on stand-in devices, on request
  std::string layouts;                // of the parameters after the last step (layout_table.hpp), on request
};
// Throws scenario::OutOfTime and std::bad_alloc; any other error makes the plan end early.
// `with`: what else the outcome holds, and what a run knows of the steps.
struct PlanRequest {
  bool layouts = false;
  bool memory = false;
  std::vector<bool> scaled_steps{};  // see DryRun
};
PlanOutcome plan_case(const CaseSpec& spec, int rank, int world_size, std::size_t stage, const PlanRequest& with = {});

// " (unknown: ...)" with at most two of these values; nothing for none.
std::string listed_unknown(const std::vector<std::string>& notes);

// Whether some step applies an API whose collectives are planned.
bool has_plan(const scenario::Steps& steps);

}  // namespace lockstep::run
