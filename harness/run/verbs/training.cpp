// optimizer, init_optimizer_state, forward, backward, step, zero_grad, clip_grad_norm; grad_scaler, unscale,
// update_scale.
#include "engine/autograd/autograd.hpp"
#include "engine/optim/clip.hpp"
#include "engine/optim/optimizer.hpp"
#include "engine/parallel/flat_shard.hpp"
#include "engine/parallel/flat_units.hpp"
#include "harness/run/live_run.hpp"
#include "harness/run/verbs/verbs.hpp"

namespace lockstep::run::verbs {

namespace {

optim::ParameterRef reference_to(const TensorMatch& at, std::string name) {
  if (!at.owner) return {std::move(name), [tensor = at.alone] { return tensor; }};
  return {std::move(name), [owner = at.owner, slot = at.slot] { return owner->parameters[slot].trained(); }};
}

// The path below the model. It is the parameter's name in the state of the optimizer.
std::string name_below(const std::string& path, const Tensor& tensor) {
  if (!tensor.name().empty()) return tensor.name();
  const std::size_t dot = path.find('.');
  return dot == std::string::npos ? path : path.substr(dot + 1);
}

// The slot of a parameter that is given as a value: a parallel API may replace the tensor in the slot.
TensorMatch registered_at(const Tensor& tensor, const std::vector<ModuleMatch>& models) {
  for (const ModuleMatch& model : models)
    for (nn::NamedParameter& entry : nn::named_parameters(model.module))
      if (entry.tensor().same_as(tensor) || entry.trained().same_as(tensor))
        return {entry.path, entry.owner, entry.slot, false, {}};
  return {tensor.name(), nullptr, 0, false, tensor};
}

void set_option(optim::Options& options, const std::string& key, const Value& value) {
  if (key == "lr") {
    options.lr = value.as_number(key);
  } else if (key == "momentum") {
    options.momentum = value.as_number(key);
  } else if (key == "betas") {
    const List& betas = value.as_list(key);
    if (betas.size() != 2) throw Error(str("`betas` has ", betas.size(), " numbers, not 2"));
    options.beta1 = betas[0].as_number("betas[0]");
    options.beta2 = betas[1].as_number("betas[1]");
  } else if (key == "eps") {
    options.eps = value.as_number(key);
  } else if (key == "weight_decay") {
    options.weight_decay = value.as_number(key);
  } else if (key == "fused") {
    options.fused = value.as_bool(key);
  } else {
    throw Error(
        str("an optimizer has no option `", key, "`",
            scenario::suggestion(key, {"parameters", "lr", "momentum", "betas", "eps", "weight_decay", "fused"})));
  }
}

optim::Group group_of(const Map& description, const optim::Options& defaults, const std::vector<ModuleMatch>& models,
                      std::size_t index) {
  optim::Group group;
  group.options = defaults;
  bool found = false;
  for (const auto& [key, value] : description) {
    if (key.text != "parameters") {
      set_option(group.options, key.text, value);
      continue;
    }
    found = true;
    const List parameters = value.is(Value::Kind::list) ? value.as_list("parameters") : List{value};
    for (const Value& item : parameters) {
      const TensorMatch at = registered_at(item.as_tensor("a parameter of a group"), models);
      std::string name = at.path.empty() ? str("group", index, ".", group.parameters.size()) : at.path;
      group.parameters.push_back(reference_to(at, std::move(name)));
    }
  }
  if (!found) throw Error("a group of an optimizer needs `parameters`");
  return group;
}

}  // namespace

Value optimizer(StepCall& call) {
  optim::Options options;
  if (call.text("type") == "AdamW") options.weight_decay = 0.01;
  for (const char* key : {"lr", "momentum", "betas", "eps", "weight_decay", "fused"})
    if (call.has(key)) set_option(options, key, call.value(key));
  std::vector<optim::Group> groups;
  const int num_sources = int{call.has("model")} + int{call.has("parameters")} + int{call.has("groups")};
  if (num_sources != 1) throw Error("an optimizer needs exactly one of `model`, `parameters` and `groups`");
  if (call.has("model")) {
    groups.push_back(optim::group_of(nn::named_parameters(call.module("model").module), options));
  } else if (call.has("parameters")) {
    optim::Group group{{}, options};
    for (const TensorMatch& at : call.parameters("parameters"))
      group.parameters.push_back(reference_to(at, name_below(at.path, at.tensor())));
    groups.push_back(std::move(group));
  } else {
    // A part of a model may have a name of its own. Its parameters are named by their paths below the model.
    const std::vector<ModuleMatch> models = outermost_modules(call.scope);
    for (const Value& description : call.list("groups"))
      groups.push_back(group_of(description.as_map("a group"), options, models, groups.size()));
  }
  return Value(OptimizerPtr(optim::make_optimizer(call.text("type"), std::move(groups))));
}

Value init_optimizer_state(StepCall& call) {
  call.value("optimizer").as_optimizer("optimizer")->init_state();
  return Value();
}

Value forward(StepCall& call) {
  const GradMode recording(true);
  bind_each(call.step.entries, call.scope);
  return Value();
}

Value backward(StepCall& call) {
  const Tensor loss = call.tensor("loss");
  Gradients gradients;
  if (call.has("gradient")) {
    const Value gradient = call.value("gradient");
    if (!gradient.is_none()) gradients.push_back(gradient.as_tensor("gradient"));
  }
  lockstep::backward({loss}, gradients, call.boolean("retain_graph"));
  return Value();
}

Value step(StepCall& call) {
  const OptimizerPtr optimizer = call.value("optimizer").as_optimizer("optimizer");
  if (call.has("scaler")) {
    const bool done = call.value("scaler").as_scaler("scaler")->step(*optimizer);
    if (call.live_run) call.live_run->note_scaled_step(done);
    return Value(done);
  }
  optimizer->step();
  return Value(true);
}

Value grad_scaler(StepCall& call) {
  optim::GradScalerOptions options;
  options.init_scale = call.number("init_scale");
  options.growth_factor = call.number("growth_factor");
  options.backoff_factor = call.number("backoff_factor");
  options.growth_interval = call.integer("growth_interval");
  options.enabled = call.boolean("enabled");
  return Value(std::make_shared<optim::GradScaler>(options));
}

Value unscale(StepCall& call) {
  call.value("scaler").as_scaler("scaler")->unscale(*call.value("optimizer").as_optimizer("optimizer"));
  return Value();
}

Value update_scale(StepCall& call) {
  const ScalerPtr scaler = call.value("scaler").as_scaler("scaler");
  if (call.has("to"))
    scaler->update(call.number("to"));
  else
    scaler->update();
  return Value();
}

Value zero_grad(StepCall& call) {
  const Value of = call.value("of");
  const bool set_to_none = call.boolean("set_to_none");
  if (const OptimizerPtr* optimizer = of.get_if<OptimizerPtr>())
    (*optimizer)->zero_grad(set_to_none);
  else
    nn::zero_grad(of.as_module("`of` of zero_grad"), set_to_none);
  return Value();
}

Value clip_grad_norm(StepCall& call) {
  const nn::ModulePtr model = call.module("model").module;
  if (parallel::holds_flat_units(model))
    return Value(parallel::clip_flat_grad_norm(model, call.number("max_norm"), call.number("norm")));
  // Of an unsharded group, too, the shards have the gradients.
  std::vector<Tensor> parameters;
  for (const nn::NamedParameter& entry : nn::named_parameters(model)) parameters.push_back(entry.trained());
  return Value(optim::clip_grad_norm(parameters, call.number("max_norm"), call.number("norm")));
}

}  // namespace lockstep::run::verbs
