// state_dict, load_state_dict, set_state_dict_type.
#include "engine/autograd/autograd.hpp"
#include "engine/mesh/sharded.hpp"
#include "engine/optim/optimizer.hpp"
#include "engine/parallel/flat_optimizer_state.hpp"
#include "engine/parallel/flat_state_dict.hpp"
#include "engine/state/full_state.hpp"
#include "engine/tensor/ops.hpp"
#include "harness/run/trace/stand_in.hpp"
#include "harness/run/trace/traced_layouts.hpp"
#include "harness/run/verbs/verbs.hpp"

namespace lockstep::run::verbs {

namespace {

Tensor gathered(const Tensor& tensor) {
  TracedLayouts* traced = TracedLayouts::active();
  return traced ? traced->full_tensor(tensor) : full_tensor(tensor);
}

// The form of the tensors in a state dict: as held, sharing storage, or as copies, full tensors or on the host.
struct Form {
  bool full = false;
  bool cpu = false;
  bool keep = true;     // false on the other ranks with rank0_only
  device::Device host;  // the device of the copies with `cpu`
  // Collective if `full`: all ranks gather. A rank that does not keep the tensor gets an undefined tensor.
  Tensor operator()(const Tensor& tensor) const {
    const Tensor formed = full ? gathered(tensor) : tensor;
    if (!keep) return {};
    if (!full && !cpu) return formed;
    Tensor local = cpu ? raw::to_device(local_tensor(formed), host) : local_tensor(formed);
    if (local.storage() == tensor.storage())
      local = raw::clone(local);  // a copy even if the tensor was full, or on the host, already
    return formed.is_sharded() ? make_sharded(local, formed.layout()) : local;
  }
};

Map options_map(const optim::Options& options) {
  Map map;
  map.emplace_back("lr", Value(options.lr));
  map.emplace_back("momentum", Value(options.momentum));
  map.emplace_back("betas", Value::list({Value(options.beta1), Value(options.beta2)}));
  map.emplace_back("eps", Value(options.eps));
  map.emplace_back("weight_decay", Value(options.weight_decay));
  map.emplace_back("fused", Value(options.fused));
  return map;
}

Value of_module(const nn::ModulePtr& module, const Form& form) {
  Map map;
  for (const auto& [name, tensor] : parallel::model_state_dict(module)) {
    Tensor formed = form(tensor);
    if (form.keep) map.emplace_back(name, Value(std::move(formed)));
  }
  return Value::map(std::move(map));
}

// {state: {parameter: {key: tensor}}, groups: [{parameters: [name], lr: ..., ...}]}
Value of_optimizer(const optim::Optimizer::StateDict& dict, const Form& form) {
  Map state;
  for (const auto& [name, tensors] : dict.state) {
    Map entries;
    for (const auto& [key, tensor] : tensors) {
      Tensor formed = form(tensor);
      if (form.keep) entries.emplace_back(key, Value(std::move(formed)));
    }
    if (form.keep) state.emplace_back(name, Value::map(std::move(entries)));
  }
  List groups;
  for (const auto& [names, options] : dict.groups) {
    Map group;
    group.emplace_back("parameters", Value::texts(names));
    for (auto& entry : options_map(options)) group.push_back(std::move(entry));
    if (form.keep) groups.push_back(Value::map(std::move(group)));
  }
  Map map;
  map.emplace_back("state", Value::map(std::move(state)));
  map.emplace_back("groups", Value::list(std::move(groups)));
  return Value::map(std::move(map));
}

const Value& entry(const Value& map, const char* key) {
  const Value* found = map.find(Key(key));
  if (!found)
    throw Error(str("the state of an optimizer has no `", key, "`"), "give the result of `state_dict` of an optimizer");
  return *found;
}

optim::Optimizer::StateDict optimizer_state_of(const Value& state) {
  optim::Optimizer::StateDict dict;
  for (const auto& [name, tensors] : entry(state, "state").as_map("state")) {
    std::map<std::string, Tensor> entries;
    for (const auto& [key, tensor] : tensors.as_map(name.text)) entries[key.text] = tensor.as_tensor(key.text);
    dict.state.emplace_back(name.text, std::move(entries));
  }
  for (const Value& group : entry(state, "groups").as_list("groups")) {
    std::vector<std::string> names;
    for (const Value& name : entry(group, "parameters").as_list("parameters")) names.push_back(name.as_text("a name"));
    optim::Options options;
    options.lr = entry(group, "lr").as_number("lr");
    options.momentum = entry(group, "momentum").as_number("momentum");
    const List& betas = entry(group, "betas").as_list("betas");
    if (betas.size() != 2) throw Error(str("`betas` has ", betas.size(), " numbers, not 2"));
    options.beta1 = betas[0].as_number("betas[0]");
    options.beta2 = betas[1].as_number("betas[1]");
    options.eps = entry(group, "eps").as_number("eps");
    options.weight_decay = entry(group, "weight_decay").as_number("weight_decay");
    options.fused = entry(group, "fused").as_bool("fused");
    dict.groups.emplace_back(std::move(names), options);
  }
  return dict;
}

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

void load_scaler(optim::GradScaler& scaler, const Value& state) {
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
  Form form;
  form.cpu = call.boolean("cpu");
  form.host = device_named(call.in.session(), "cpu");
  form.keep = !call.boolean("rank0_only") || call.in.session().rank == 0;
  form.full = call.boolean("full");
  const bool by_position = call.text("keyed_by") == "position";
  if (by_position && !of.is(Value::Kind::optimizer)) throw Error("`keyed_by` applies to optimizers");
  if (const OptimizerPtr* optimizer = of.get_if<OptimizerPtr>()) {
    const optim::Optimizer::StateDict dict = parallel::optimizer_state_dict(**optimizer);
    return of_optimizer(by_position ? parallel::keyed_by_position(dict) : dict, form);
  }
  if (const ScalerPtr* scaler = of.get_if<ScalerPtr>()) return of_scaler(**scaler);
  return of_module(of.as_module("`of` of state_dict"), form);
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
