// State dicts of models with units of flat_shard, and of their optimizers, in a dry run.
#include <algorithm>
#include <map>

#include "engine/autograd/autograd.hpp"
#include "harness/run/interpreter.hpp"
#include "harness/run/trace/dry_run.hpp"
#include "harness/run/verbs/state_values.hpp"

namespace lockstep::run {

namespace {

using OptimizerState = optim::Optimizer::StateDict;

// The state with other names of its parameters.
OptimizerState renamed(const OptimizerState& dict, const std::map<std::string, std::string>& names) {
  OptimizerState made;
  for (const auto& [name, tensors] : dict.state) made.state.emplace_back(names.at(name), tensors);
  for (const auto& [of_group, options] : dict.groups) {
    auto& group = made.groups.emplace_back();
    for (const std::string& name : of_group) group.first.push_back(names.at(name));
    group.second = options;
  }
  return made;
}

bool is_by_position(const StepCall& call) { return call.text("keyed_by") == "position"; }

}  // namespace

Value DryRun::set_state_dict_type(StepCall& call) {
  const std::string type = call.text("type");
  TracedShards::StateSettings settings;
  settings.type = type == "full"      ? plan::StateType::full
                  : type == "sharded" ? plan::StateType::sharded
                                      : plan::StateType::local;
  settings.on_host = call.boolean("cpu");
  settings.only_first_rank = call.boolean("rank0_only");
  shards_.set_state_settings(call.module("model").module, settings);
  return Value();
}

Value DryRun::state_dict(StepCall& call) {
  const NoGrad no_grad;
  const Value of = call.value("of");
  if (const OptimizerPtr* optimizer = of.get_if<OptimizerPtr>(); optimizer && flat_optimizers_.converts(*optimizer)) {
    watch_.report_position();
    const OptimizerState dict = flat_optimizers_.state_of(*optimizer);
    if (!is_by_position(call)) return value_of_state(dict, state_form_of(call));
    std::map<std::string, std::string> positions;
    for (const auto& [of_group, options] : dict.groups)
      for (const std::string& name : of_group) positions.emplace(name, std::to_string(positions.size()));
    return value_of_state(renamed(dict, positions), state_form_of(call));
  }
  if (!of.is(Value::Kind::module) || shards_.units_below(of.as_module("of")).empty()) return run_verb(call);
  watch_.report_position();
  return value_of_state(shards_.state_of(of.as_module("of")), state_form_of(call));
}

// Values from rank 0 change neither types nor devices. Modules without units need not load them in the plan.
Value DryRun::load_state_dict(StepCall& call) {
  const NoGrad no_grad;
  const Value into = call.value("into");
  const bool from_first = call.boolean("broadcast_from_rank0");
  const nn::ModulePtr* module = into.get_if<nn::ModulePtr>();
  const OptimizerPtr* optimizer = into.get_if<OptimizerPtr>();
  if (module && !shards_.units_below(*module).empty())
    load_into_units(call, *module);
  else if (optimizer && flat_optimizers_.converts(*optimizer))
    load_into_flat_optimizer(call, *optimizer);
  else if (!from_first)
    return run_verb(call);
  else if (module)
    nn::settle(*module);
  else if (optimizer)
    take_state_of_first_rank(call, *optimizer);
  return Value();
}

// The same names and keys with undefined tensors.
optim::Optimizer::StateDict DryRun::without_tensors(optim::Optimizer::StateDict dict) {
  for (auto& [name, tensors] : dict.state) {
    tensors.erase("step");
    for (auto& [key, tensor] : tensors) tensor = Tensor();
  }
  return dict;
}

// The parameters of rank 0's state have state afterwards, the others none.
void DryRun::take_state_of_first_rank(const StepCall& call, const OptimizerPtr& optimizer) {
  const Value state = value_of_first_rank(call, "state");
  const Value* groups = state.find(Key("groups"));
  if (!groups || groups->as_list("groups").empty()) return;  // rank 0 alone knows the state
  optimizer->load_state_dict(without_tensors(by_names(call, optimizer_state_of(state), optimizer)),
                             optim::Optimizer::Missing::kept);
}

// The state by the names of the parameters, also if the step gives it by their positions.
optim::Optimizer::StateDict DryRun::by_names(const StepCall& call, const optim::Optimizer::StateDict& dict,
                                             const OptimizerPtr& optimizer) const {
  if (!is_by_position(call)) return dict;
  std::map<std::string, std::string> names;
  for (std::string& name : flat_optimizers_.original_names(optimizer))
    names.emplace(std::to_string(names.size()), std::move(name));
  return renamed(dict, names);
}

void DryRun::load_into_flat_optimizer(const StepCall& call, const OptimizerPtr& optimizer) {
  watch_.report_position();
  const bool from_first = call.boolean("broadcast_from_rank0");
  const Value state = from_first ? value_of_first_rank(call, "state") : call.value("state");
  if (from_first && state.as_map("state").empty()) return;  // rank 0 alone knows the state
  const OptimizerState dict = optimizer_state_of(state);
  if (from_first && dict.groups.empty()) return;  // as above, from a state dict of rank 0 only
  flat_optimizers_.load_state(optimizer, by_names(call, dict, optimizer));
}

// The argument as rank 0 evaluates it, such as `state if rank == 0 else {}`.
Value DryRun::value_of_first_rank(const StepCall& call, std::string_view argument) {
  const Locals first{call.scope.locals, {{"rank", Value(0)}}};
  try {
    return evaluate(call.expr(argument), call.scope.with(&first));
  } catch (const UnboundName&) {  // rank 0 alone binds the name
    return call.value(argument);
  }
}

// Only pieces are gathered, so that no other state needs to be known. One of rank 0 has all names.
void DryRun::load_into_units(const StepCall& call, const nn::ModulePtr& module) {
  watch_.report_position();
  const bool gathers = shards_.state_settings(module).type == plan::StateType::sharded;
  std::optional<Value> state;
  if (gathers && !call.boolean("broadcast_from_rank0")) state = call.value("state");
  shards_.load_state(module, [&](const std::string& path, DType held) -> std::optional<DType> {
    if (!state) return held;
    const Value* found = state->find(Key(path));
    return found ? std::optional(found->as_tensor(path).dtype()) : std::nullopt;
  });
}

}  // namespace lockstep::run
