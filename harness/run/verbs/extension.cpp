// extend_gather: what travels when sharded parameters are gathered, as methods of a model.
#include <algorithm>

#include "engine/parallel/gather_extension.hpp"
#include "harness/run/verbs/verbs.hpp"

namespace lockstep::run::verbs {

namespace {

Value list_of(const Dims& sizes) {
  List items;
  for (const std::int64_t size : sizes) items.push_back(Value(size));
  return Value::list(std::move(items));
}

Value site_value(const parallel::GatherSite& site) {
  Map map;
  map.emplace_back("name", Value(site.parameter));
  map.emplace_back("mesh", Value(std::make_shared<const DeviceMesh>(site.mesh)));
  map.emplace_back("shape", list_of(site.sizes));
  map.emplace_back("dim", Value(std::int64_t{site.dim}));
  map.emplace_back("part_shape", list_of(site.part_sizes));
  map.emplace_back("dtype", Value(site.type));
  return Value::map(std::move(map));
}

std::vector<Tensor> tensors_in(const Value& value) {
  if (!value.is(Value::Kind::list)) return {value.as_tensor("what `send` gives")};
  std::vector<Tensor> tensors;
  for (const Value& item : value.as_list("what `send` gives")) tensors.push_back(item.as_tensor("a tensor to send"));
  return tensors;
}

parallel::GatherInputs inputs_in(const Value& value) {
  if (!value.is(Value::Kind::map)) return {tensors_in(value), {}};
  const Value* tensors = value.find(Key("tensors"));
  const Value* metadata = value.find(Key("metadata"));
  if (!tensors || !metadata || value.as_map("map").size() != 2)
    throw Error("extend_gather: `send` gives a map that is not of `tensors` and `metadata`",
                "give a tensor, a list of tensors, or {'tensors': [...], 'metadata': ...}");
  return {tensors_in(*tensors), to_nn(*metadata)};
}

void require_method(const nn::ModulePtr& module, const std::string& name) {
  const std::vector<std::string> methods = module->methods();
  if (std::find(methods.begin(), methods.end(), name) == methods.end())
    throw Error(str("extend_gather: ", module->type(), " has no method `", name, "`"),
                "give a model with send(part, site) and build(gathered, metadata, site)");
}

}  // namespace

Value extend_gather(StepCall& call) {
  const nn::ModulePtr through = call.value("through").as_module("through");
  for (const char* name : {"send", "build"}) require_method(through, name);
  parallel::GatherExtension extension;
  extension.send = [through](const Tensor& part, const parallel::GatherSite& site) {
    return inputs_in(call_module(through, "send", {Value(part), site_value(site)}, {}));
  };
  extension.build = [through](const std::vector<Tensor>& gathered, const nn::Value& metadata,
                              const parallel::GatherSite& site) {
    List tensors;
    for (const Tensor& tensor : gathered) tensors.push_back(Value(tensor));
    const std::vector<Value> inputs = {Value::list(std::move(tensors)), from_nn(metadata), site_value(site)};
    return call_module(through, "build", inputs, {}).as_tensor("what `build` gives");
  };
  for (const TensorAt& found : call.parameters("parameters")) {
    if (!found.owner || found.buffer) throw Error(str("`", found.path, "` is no parameter of a module"));
    parallel::extend_gather(found.owner, found.slot, extension);
  }
  return Value();
}

}  // namespace lockstep::run::verbs
