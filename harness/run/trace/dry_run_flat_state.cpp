// State dicts of models with units of flat_shard, and of optimizers, in a dry run.
#include <algorithm>
#include <map>
#include <utility>

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

// The state under the names that the step asks for.
OptimizerState keyed_for(const StepCall& call, const OptimizerState& dict) {
  if (!is_by_position(call)) return dict;
  std::map<std::string, std::string> positions;
  for (const auto& [of_group, options] : dict.groups)
    for (const std::string& name : of_group) positions.emplace(name, std::to_string(positions.size()));
  return renamed(dict, positions);
}

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
  if (const OptimizerPtr* optimizer = of.get_if<OptimizerPtr>()) return optimizer_state_dict(call, *optimizer);
  if (!of.is(Value::Kind::module) || shards_.units_below(of.as_module("of")).empty()) return run_verb(call);
  watch_.report_position();
  return value_of_state(shards_.state_of(of.as_module("of")), state_form_of(call));
}

Value DryRun::optimizer_state_dict(StepCall& call, const OptimizerPtr& optimizer) {
  if (!flat_optimizers_.converts(optimizer)) {
    Value own = run_verb(call);
    if (call.boolean("rank0_only")) note_state_of_first_rank(call, own, optimizer->state_dict());
    return own;
  }
  watch_.report_position();
  const OptimizerState dict = flat_optimizers_.state_of(optimizer);
  Value own = value_of_state(keyed_for(call, dict), state_form_of(call));
  const OptimizerState of_first = flat_optimizers_.state_of_first_rank(optimizer);
  if (call.boolean("rank0_only") || dict.state.size() < of_first.state.size())
    note_state_of_first_rank(call, own, of_first);
  return own;
}

// A load of the values of rank 0 gives this rank state of the same names and keys.
void DryRun::note_state_of_first_rank(const StepCall& call, const Value& own, const OptimizerState& of_first) {
  if (call.in.session().rank == 0) return;
  OptimizerState state = of_first;
  for (auto& [name, tensors] : state.state)
    for (auto& [key, tensor] : tensors) tensor = empty({}, tensor.dtype(), device::Device{device::Kind::meta});
  states_of_first_rank_.emplace_back(*own.find(Key("groups")), keyed_for(call, state));
}

// The state of an optimizer that a load takes from rank 0. None if rank 0 alone knows it.
std::optional<OptimizerState> DryRun::state_given_by_first_rank(const StepCall& call) const {
  const Value state = value_of_first_rank(call, "state");
  const Value* groups = state.find(Key("groups"));
  if (!groups) return std::nullopt;
  for (const auto& [known, of_first] : states_of_first_rank_)
    if (&known.as_list("groups") == &groups->as_list("groups")) return of_first;
  const Value* tensors = state.find(Key("state"));
  // This rank has no tensors of a dict that rank 0 alone keeps, also if the scenario has made another list of groups.
  const bool lacks_tensors = !states_of_first_rank_.empty() && tensors && tensors->as_map("state").empty();
  if (groups->as_list("groups").empty() || lacks_tensors) return std::nullopt;
  return optimizer_state_of(state);
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
    run_verb(call);
  else if (module)
    nn::settle(*module);
  else if (optimizer)
    take_state_of_first_rank(call, *optimizer);
  if (optimizer && !from_first && !flat_optimizers_.converts(*optimizer)) flat_optimizers_.note_local_load(*optimizer);
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
  if (const std::optional<OptimizerState> state = state_given_by_first_rank(call))
    optimizer->load_state_dict(without_tensors(by_names(call, *state, optimizer)), optim::Optimizer::Missing::kept);
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
  const std::optional<OptimizerState> state =
      call.boolean("broadcast_from_rank0") ? state_given_by_first_rank(call) : optimizer_state_of(call.value("state"));
  if (state) flat_optimizers_.load_state(optimizer, by_names(call, *state, optimizer));
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
