#include "harness/cli/plan_command.hpp"

#include <optional>

#include <fmt/core.h>

#include "engine/core/error.hpp"
#include "engine/core/printable.hpp"
#include "harness/cli/machine.hpp"
#include "harness/cli/plan_text.hpp"
#include "harness/run/trace/plan_check.hpp"
#include "harness/scenario/evaluation.hpp"
#include "harness/scenario/library.hpp"
#include "harness/scenario/regular_file.hpp"

namespace lockstep::cli {

namespace {

// The first case that can run.
scenario::Case case_of(const std::shared_ptr<const scenario::Scenario>& scenario,
                       const scenario::ExpandOptions& expand) {
  std::string reason = "it has no such case";
  for (scenario::Case& one : scenario::expand(scenario, expand)) {
    if (!one.skip && !one.unsupported) return std::move(one);
    reason = one.unsupported ? *one.unsupported : *one.skip;
  }
  throw Error(str("no case of ", scenario->name, " can run: ", reason),
              "choose another with --case, --set or --world-size");
}

// Returns whether the stage has a plan that is complete.
bool print_stage(const run::CaseSpec& spec, std::size_t stage, int world_size, const PlanSettings& settings,
                 const plan::Machine* machine) {
  RankPlan plan;
  plan.scenario = spec.scenario->name;
  plan.case_id = spec.test_case->id;
  plan.stage = spec.scenario->stages.at(stage).name;
  plan.rank = settings.rank;
  plan.world_size = world_size;
  if (settings.rank >= world_size)
    throw Error(str("--rank ", settings.rank, " in a world of ", world_size, " ranks"),
                str("give a rank from 0 to ", world_size - 1));
  const scenario::Evaluation evaluation(spec.scenario->file, "the plan of a case");
  plan.outcome = run::plan_case(spec, settings.rank, world_size, stage, {.memory = true});
  if (settings.json)
    fmt::print("{}\n", printable_json(plan_json(plan, machine)));
  else
    fmt::print("{}", printable(plan_page(plan, machine)));
  return plan.outcome.unforeseen.empty() && plan.outcome.left_out.empty();
}

}  // namespace

int plan_command(const PlanSettings& settings) {
  std::optional<plan::Machine> machine;
  if (!settings.machine.empty())
    machine = plan::machine_from_text(scenario::read_regular_file(settings.machine, scenario::limits::file_bytes),
                                      settings.machine);
  scenario::Library library(scenarios_folder());
  bool is_complete = true, any = false;
  for (const std::string& path : library.find({settings.name})) {
    const std::shared_ptr<const scenario::Scenario> scenario = library.load(path);
    const scenario::Case one = case_of(scenario, settings.expand);
    run::CaseSpec spec;
    spec.scenario = scenario.get();
    spec.test_case = &one;
    spec.library = &library;
    for (std::size_t stage = 0; stage < scenario->stages.size(); ++stage) {
      if (!run::has_plan(scenario->stages[stage].steps)) continue;
      any = true;
      const int world_size = stage < one.stages.size() ? one.stages[stage].world_size : one.world_size;
      if (!print_stage(spec, stage, world_size, settings, machine ? &*machine : nullptr)) is_complete = false;
    }
  }
  if (!any)
    throw Error(str("`", settings.name, "` plans nothing: no step replicates, shards or applies tensor parallelism"),
                "plan a scenario of training/, replicate/, sharded/, flat/ or tensor_parallel/");
  return is_complete ? 0 : 1;
}

}  // namespace lockstep::cli
