// State dicts as values: the form of their tensors, and the maps that hold them.
#include "harness/run/verbs/state_values.hpp"

#include "engine/mesh/sharded.hpp"
#include "engine/tensor/ops.hpp"
#include "harness/run/trace/stand_in.hpp"
#include "harness/run/trace/traced_layouts.hpp"

namespace lockstep::run {

namespace {

Tensor gathered(const Tensor& tensor) {
  TracedLayouts* traced = TracedLayouts::active();
  return traced ? traced->full_tensor(tensor) : full_tensor(tensor);
}

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

const Value& entry(const Value& map, const char* key) {
  const Value* found = map.find(Key(key));
  if (!found)
    throw Error(str("the state of an optimizer has no `", key, "`"), "give the result of `state_dict` of an optimizer");
  return *found;
}

}  // namespace

Tensor StateForm::operator()(const Tensor& tensor) const {
  const Tensor formed = full ? gathered(tensor) : tensor;
  if (!keep) return {};
  if (!full && !cpu) return formed;
  Tensor local = cpu ? raw::to_device(local_tensor(formed), host) : local_tensor(formed);
  if (local.storage() == tensor.storage())
    local = raw::clone(local);  // a copy even if the tensor was full, or on the host, already
  return formed.is_sharded() ? make_sharded(local, formed.layout()) : local;
}

StateForm state_form_of(const StepCall& call) {
  StateForm form;
  form.cpu = call.boolean("cpu");
  form.host = device_named(call.in.session(), "cpu");
  form.keep = !call.boolean("rank0_only") || call.in.session().rank == 0;
  form.full = call.boolean("full");
  return form;
}

Value value_of_state(const nn::StateDict& dict, const StateForm& form) {
  Map map;
  for (const auto& [name, tensor] : dict) {
    Tensor formed = form(tensor);
    if (form.keep) map.emplace_back(name, Value(std::move(formed)));
  }
  return Value::map(std::move(map));
}

Value value_of_state(const optim::Optimizer::StateDict& dict, const StateForm& form) {
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

}  // namespace lockstep::run
