// model, copy, to, to_empty, reset_parameters, set_training, set_requires_grad, set_parameter, set_gradient, assign.
#include <utility>

#include "engine/autograd/autograd.hpp"
#include "engine/autograd/ops.hpp"
#include "engine/mesh/sharded.hpp"
#include "engine/parallel/flat_units.hpp"
#include "engine/tensor/ops.hpp"
#include "harness/run/trace/stand_in.hpp"
#include "harness/run/verbs/verbs.hpp"

namespace lockstep::run::verbs {

namespace {

Value deep_copy(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::module: {
      nn::ModulePtr copy = nn::clone_module(value.as_module("of"));
      nn::name_parameters(copy);
      return Value(std::move(copy));
    }
    case Value::Kind::tensor: {
      const Tensor& tensor = value.as_tensor("of");
      const NoGrad no_grad;
      const Tensor copy = ops::clone(tensor);
      if (is_leaf(tensor) && requires_grad(tensor)) {
        set_requires_grad(copy, true);
        if (const Tensor gradient = grad(tensor); gradient.defined()) set_grad(copy, ops::clone(gradient));
      }
      copy.set_name(tensor.name());
      return Value(copy);
    }
    case Value::Kind::list: {
      List items;
      for (const Value& item : value.as_list("of")) items.push_back(deep_copy(item));
      return Value::list(std::move(items));
    }
    case Value::Kind::map: {
      Map entries;
      for (const auto& [key, item] : value.as_map("of")) entries.emplace_back(key, deep_copy(item));
      return Value::map(std::move(entries));
    }
    case Value::Kind::none:
    case Value::Kind::boolean:
    case Value::Kind::integer:
    case Value::Kind::number:
    case Value::Kind::text:
    case Value::Kind::dtype:
      return value;
    default:
      throw Error(str(describe(value), " cannot be copied"), "copy a module, a tensor, or a map or list of them");
  }
}

// Whether the tensor is a parameter of a module that the value is, or has in lists and maps.
bool has_parameter(const Value& value, const Tensor& tensor) {
  if (const nn::ModulePtr* module = value.get_if<nn::ModulePtr>()) {
    for (const nn::NamedParameter& entry : nn::named_parameters(*module))
      if (entry.tensor().same_as(tensor) || entry.trained().same_as(tensor)) return true;
  } else if (value.is(Value::Kind::list)) {
    for (const Value& item : value.as_list("a list"))
      if (has_parameter(item, tensor)) return true;
  } else if (value.is(Value::Kind::map)) {
    for (const auto& [key, item] : value.as_map("a map"))
      if (has_parameter(item, tensor)) return true;
  }
  return false;
}

// A routine may get a parameter of a model that only its caller has.
bool is_registered(const Tensor& tensor, const Frame& frame) {
  for (const auto& [name, value] : frame.names)
    if (has_parameter(value, tensor)) return true;
  const std::shared_ptr<const Frame> caller = frame.caller.lock();
  return caller && is_registered(tensor, *caller);
}

// Writes a value into a tensor in place. A number fills it; a tensor is copied with broadcasting.
void assign_to(const Tensor& tensor, const Value& value, const std::string& label) {
  if (value.is_number() || value.is(Value::Kind::boolean)) {
    const Number number = value.is_number() ? number_of(value, "value") : Number(*value.get_if<bool>());
    if (tensor.is_sharded() && layout::has_partial(*tensor.layout()))
      throw Error(str(label, " is ", describe_sharded(tensor), ", whose local tensors are terms of a sum"),
                  "redistribute it first");
    raw::fill_(tensor, number);
  } else {
    ops::copy_(tensor, value.as_tensor(str("the value assigned to ", label)));
  }
}

}  // namespace

Value model(StepCall& call) {
  nn::BuildOptions options;
  options.device = device_named(call.in.session(), call.text("device"));
  options.dtype = call.value("dtype").as_dtype("dtype");
  const NoGrad no_grad;
  const device::PurposeScope purpose(device::Purpose::parameter);
  Scope building = call.scope;
  building.build_options = &options;
  nn::ModulePtr module = evaluate(call.expr("build"), building).as_module("build");
  nn::name_parameters(module);
  return Value(std::move(module));
}

Value copy(StepCall& call) {
  const NoGrad no_grad;
  return deep_copy(call.value("of"));
}

Value to(StepCall& call) {
  const ModuleMatch target = call.module("model");
  const NoGrad no_grad;
  if (call.has("dtype")) nn::cast_module(target.module, call.value("dtype").as_dtype("dtype"));
  if (call.has("device")) nn::move_module(target.module, device_named(call.in.session(), call.text("device")));
  return Value();
}

Value to_empty(StepCall& call) {
  nn::materialize(call.module("model").module, device_named(call.in.session(), call.text("device")));
  return Value();
}

Value reset_parameters(StepCall& call) {
  const NoGrad no_grad;
  const std::vector<ModuleMatch> modules = call.modules("modules");
  for (const ModuleMatch& found : modules) parallel::refuse_stretches(*found.module);
  for (const ModuleMatch& found : modules) nn::redraw(found.module);
  return Value();
}

Value set_training(StepCall& call) {
  const ModuleMatch target = call.module("model");
  nn::set_training(target.module, call.boolean("to"));
  return Value();
}

Value set_requires_grad(StepCall& call) {
  const std::vector<TensorMatch> parameters = call.parameters("parameters");
  const bool to = call.boolean("to");
  for (const TensorMatch& parameter : parameters) {
    lockstep::set_requires_grad(parameter.tensor(), to);
    // While its group is unsharded, the slot holds another tensor than the optimizer.
    if (parameter.owner && !parameter.buffer)
      lockstep::set_requires_grad(parameter.owner->parameters[parameter.slot].trained(), to);
  }
  return Value();
}

Value set_parameter(StepCall& call) {
  const std::vector<TensorMatch> found = call.parameters("parameter");
  if (found.size() != 1 || !found[0].owner)
    throw Error(str("`parameter` must name one registered parameter, not ", found.size()));
  Tensor tensor = call.tensor("to");
  if (!is_leaf(tensor)) tensor = lockstep::detach(tensor);
  // A tensor that is a parameter already ties the two and keeps its name. Any other floating tensor becomes trainable.
  bool is_named = !tensor.name().empty();
  if (!is_registered(tensor, *call.scope.frame)) {
    // A tensor with the name of a parameter is a copy of it or, as in a state dict, an alias, which does not change
    // itself.
    if (std::exchange(is_named, false) && !lockstep::requires_grad(tensor)) tensor = lockstep::detach(tensor);
    if (is_floating(tensor.dtype()) && !lockstep::requires_grad(tensor)) lockstep::set_requires_grad(tensor, true);
  }
  found[0].owner->parameters[found[0].slot].tensor = tensor;
  if (!is_named) {
    const std::size_t dot = found[0].path.find('.');
    tensor.set_name(dot == std::string::npos ? found[0].path : found[0].path.substr(dot + 1));
  }
  return Value();
}

Value set_gradient(StepCall& call) {
  const Tensor parameter = call.tensor("parameter");
  const Value to = call.value("to");
  if (to.is_none()) {
    set_grad(parameter, Tensor());
    return Value();
  }
  const NoGrad no_grad;
  const device::PurposeScope purpose(device::Purpose::gradient);
  if (to.is_tensor()) {
    set_grad(parameter, lockstep::detach(to.as_tensor("to")));
  } else {
    const Tensor local = full(parameter.sizes(), to.as_number("to"), parameter.dtype(), parameter.device());
    const LayoutPtr wanted = layout::gradient_layout(parameter.layout());
    set_grad(parameter, wanted ? make_sharded(local, wanted) : local);
  }
  return Value();
}

Value assign(StepCall& call) {
  const NoGrad no_grad;
  const Value to = call.value("to");
  const Value value = call.value("value");
  if (!to.is(Value::Kind::list)) {
    assign_to(to.as_tensor("to"), value, "to");
    return Value();
  }
  const List& targets = to.as_list("to");
  if (targets.empty()) throw Error("`to` is an empty list: there is no tensor to assign to");
  const bool one_value_each = value.is(Value::Kind::list);
  if (one_value_each && value.as_list("value").size() != targets.size())
    throw Error(str(targets.size(), " tensors to assign to, but ", value.as_list("value").size(), " values"));
  for (std::size_t i = 0; i < targets.size(); ++i)
    assign_to(targets[i].as_tensor("an item of `to`"), one_value_each ? value.as_list("value")[i] : value,
              str("to[", i, "]"));
  return Value();
}

}  // namespace lockstep::run::verbs
