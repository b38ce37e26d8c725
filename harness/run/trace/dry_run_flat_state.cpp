// State dicts of models with units of flat_shard in a dry run.
#include "harness/run/interpreter.hpp"
#include "harness/run/trace/dry_run.hpp"

namespace lockstep::run {

Value DryRun::set_state_dict_type(StepCall& call) {
  for (const plan::ModuleId id : shards_.units_below(call.module("model").module))
    state_dict_types_[id] = call.text("type");
  return Value();
}

// One all-gather per unit that shards. The values of full state dicts are known here, with their sizes.
Value DryRun::state_dict(StepCall& call) {
  const Value of = call.value("of");
  if (!of.is(Value::Kind::module)) return run_verb(call);
  const std::vector<plan::ModuleId> units = shards_.units_below(of.as_module("of"));
  if (units.empty()) return run_verb(call);
  watch_.report_position();
  const auto at = state_dict_types_.find(units.front());
  const std::string type = at == state_dict_types_.end() ? "full" : at->second;
  if (type != "local")
    for (const plan::ModuleId id : units) planner_.shards().summon(id, std::nullopt);
  shards_.follow();
  if (type != "full") throw Error(str("a ", type, " state dict of units of flat_shard is known in a run only"));
  shards_.show_full(units, {});
  const Value state = run_verb(call);
  shards_.hide_full(units, false, false);
  return state;
}

}  // namespace lockstep::run
