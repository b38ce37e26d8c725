// state_dict, load_state_dict, set_state_dict_type.
#include "engine/autograd/autograd.hpp"
#include "engine/optim/optimizer.hpp"
#include "engine/parallel/flat_optimizer_state.hpp"
#include "engine/parallel/flat_state_dict.hpp"
#include "engine/state/full_state.hpp"
#include "harness/run/verbs/state_values.hpp"

namespace lockstep::run::verbs {

namespace {

Value of_scaler(const optim::GradScaler& scaler) {
  Map map;
  if (const auto state = scaler.state_dict()) {
    map.emplace_back("scale", Value(state->scale));
    map.emplace_back("growth_factor", Value(state->growth_factor));
    map.emplace_back("backoff_factor", Value(state->backoff_factor));
    map.emplace_back("growth_interval", Value(state->growth_interval));
    map.emplace_back("growth_tracker", Value(state->growth_tracker));
  }
  return Value::map(std::move(map));
}

// A scaler that is not enabled ignores the state, as in PyTorch.
void load_scaler(optim::GradScaler& scaler, const Value& state) {
  if (!scaler.options().enabled) return;
  if (state.as_map("state").empty())
    throw Error("The source state dict is empty, possibly because it was saved from a disabled instance of GradScaler.",
                "give the state of a scaler that is enabled");
  const auto number = [&state](const char* key) {
    const Value* found = state.find(Key(key));
    if (!found)
      throw Error(str("the state of a scaler has no `", key, "`"), "give the result of `state_dict` of a scaler");
    return *found;
  };
  scaler.load_state_dict({number("scale").as_number("scale"), number("growth_factor").as_number("growth_factor"),
                          number("backoff_factor").as_number("backoff_factor"),
                          number("growth_interval").as_int("growth_interval"),
                          number("growth_tracker").as_int("growth_tracker")});
}

}  // namespace

Value state_dict(StepCall& call) {
  const NoGrad no_grad;
  const Value of = call.value("of");
  const StateForm form = state_form_of(call);
  const bool by_position = call.text("keyed_by") == "position";
  if (by_position && !of.is(Value::Kind::optimizer)) throw Error("`keyed_by` applies to optimizers");
  if (const OptimizerPtr* optimizer = of.get_if<OptimizerPtr>()) {
    const optim::Optimizer::StateDict dict = parallel::optimizer_state_dict(**optimizer);
    return value_of_state(by_position ? parallel::keyed_by_position(dict) : dict, form);
  }
  if (const ScalerPtr* scaler = of.get_if<ScalerPtr>()) return of_scaler(**scaler);
  return value_of_state(parallel::model_state_dict(of.as_module("`of` of state_dict")), form);
}

Value load_state_dict(StepCall& call) {
  const NoGrad no_grad;
  const Value into = call.value("into");
  const Value state = call.value("state");
  const bool strict = call.boolean("strict"), assign = call.boolean("assign");
  const bool full = call.boolean("full"), from_first = call.boolean("broadcast_from_rank0");
  const bool by_position = call.text("keyed_by") == "position";
  if (by_position && !into.is(Value::Kind::optimizer)) throw Error("`keyed_by` applies to optimizers");
  if (from_first && !full) throw Error("`broadcast_from_rank0` goes with `full`", "give `full: true` too");
  if (const OptimizerPtr* optimizer = into.get_if<OptimizerPtr>()) {
    if (assign) throw Error("`assign` applies to modules, not to optimizers");
    const bool receives = from_first && call.in.session().rank != 0;
    optim::Optimizer::StateDict dict = receives ? optim::Optimizer::StateDict() : optimizer_state_of(state);
    if (by_position) dict = parallel::keyed_by_name(dict, parallel::original_names(**optimizer));
    if (full) dict = state::shard_state_dict(**optimizer, dict, from_first);
    parallel::load_optimizer_state_dict(**optimizer, dict);
    return Value();
  }
  if (const ScalerPtr* scaler = into.get_if<ScalerPtr>()) {
    if (assign || full) throw Error("`assign` and `full` apply to modules, not to scalers");
    load_scaler(**scaler, state);
    return Value();
  }
  nn::StateDict dict;
  for (const auto& [name, tensor] : state.as_map("state"))
    dict.emplace_back(name.text, tensor.as_tensor(str("`", name.text, "` of the state")));
  const nn::ModulePtr& module = into.as_module("`into` of load_state_dict");
  if (full) dict = state::shard_state_dict(module, dict, from_first);
  parallel::load_model_state_dict(module, dict, strict, assign);
  return Value();
}

Value set_state_dict_type(StepCall& call) {
  parallel::StateDictSettings settings;
  const std::string type = call.text("type");
  settings.type = type == "full"      ? parallel::StateDictType::full
                  : type == "sharded" ? parallel::StateDictType::sharded
                                      : parallel::StateDictType::local;
  settings.cpu = call.boolean("cpu");
  settings.rank0_only = call.boolean("rank0_only");
  parallel::set_state_dict_type(call.module("model").module, settings);
  return Value();
}

}  // namespace lockstep::run::verbs
