// `x.name`: attributes of tensors, meshes, observations and scalers, members of modules, entries of maps.
#include <algorithm>

#include "engine/autograd/autograd.hpp"
#include "engine/autograd/ops_sharded.hpp"
#include "harness/run/observe/observation.hpp"
#include "harness/run/trace/stand_in.hpp"
#include "harness/run/trace/traced_layouts.hpp"
#include "harness/run/values/evaluate.hpp"
#include "harness/scenario/diagnostics.hpp"

namespace lockstep::run {

namespace {

[[noreturn]] void unknown(const Value& of, const std::string& name, const std::vector<std::string>& known) {
  throw Error(str(describe(of), " has no `", name, "`", scenario::suggestion(name, known)));
}

std::vector<std::string> texts_of(const Placements& placements) {
  std::vector<std::string> texts;
  for (const layout::Placement& placement : placements) texts.push_back(layout::to_text(placement));
  return texts;
}

// An attribute of a value whose layout a dry run has noted. Empty for other values and attributes.
std::optional<Value> noted_attribute(const Tensor& tensor, const std::string& name) {
  TracedLayouts* traced = TracedLayouts::active();
  if (traced && tensor.is_sharded() && name == "local") return Value(traced->local(tensor));
  const TracedLayouts::Note* note = traced ? traced->find(tensor) : nullptr;
  if (!note) return {};
  if (name == "sharded") return Value(true);
  if (name == "local") return Value(traced->local(tensor));
  if (!note->layout) return {};
  if (name == "mesh") return Value(std::make_shared<const DeviceMesh>(note->layout->mesh));
  if (name == "placements") return Value::texts(texts_of(note->layout->placements));
  return {};
}

Value tensor_attribute(const Value& of, const Tensor& tensor, const std::string& name) {
  if (std::optional<Value> noted = noted_attribute(tensor, name)) return *std::move(noted);
  if (name == "grad") {
    const Tensor gradient = grad(tensor);
    return gradient.defined() ? Value(gradient) : Value();
  }
  if (name == "dtype") return Value(tensor.dtype());
  if (name == "device") return Value(device::name_of(real_device_of(tensor.device()).kind));
  if (name == "shape") {
    List sizes;
    for (std::int64_t size : global_sizes(tensor)) sizes.push_back(Value(size));
    return Value::list(std::move(sizes));
  }
  if (name == "numel") return Value(num_elements(global_sizes(tensor)));
  if (name == "bytes") return Value(tensor.num_bytes());
  if (name == "name") return Value(tensor.name());
  if (name == "requires_grad") return Value(requires_grad(tensor));
  if (name == "pinned") {
    if (is_stand_in(tensor.device()) && device::is_host(real_device_of(tensor.device())))
      throw UnknownBeforeRun("`pinned`");
    return Value(!tensor.is_meta() && tensor.storage()->has_memory() && tensor.storage()->bytes() > 0 &&
                 tensor.storage()->memory().pinned());
  }
  if (name == "storage") return Value(StorageIdentity{tensor.storage()});
  if (name == "sharded") return Value(tensor.is_sharded());
  if (name == "local") return tensor.is_sharded() ? Value(ops::to_local(tensor)) : of;
  if (tensor.is_sharded() && name == "mesh") return Value(std::make_shared<const DeviceMesh>(tensor.layout()->mesh));
  if (tensor.is_sharded() && name == "placements") return Value::texts(texts_of(tensor.layout()->placements));
  if (name == "mesh" || name == "placements")
    throw Error(str("only sharded tensors have `", name, "`; this is ", describe(of)), "ask `sharded` first");
  unknown(of, name,
          {"grad", "dtype", "device", "shape", "numel", "bytes", "name", "requires_grad", "pinned", "storage",
           "sharded", "local", "mesh", "placements"});
}

Value mesh_attribute(const Value& of, const MeshPtr& mesh, const std::string& name) {
  if (name == "rank") return Value(std::int64_t{mesh->mesh_group().rank()});
  if (name == "size") return Value(std::int64_t{mesh->num_ranks()});
  const std::vector<std::string>& names = mesh->shape().names();
  if (name == "names") return Value::texts(names);
  if (std::find(names.begin(), names.end(), name) != names.end())
    return Value(std::make_shared<const DeviceMesh>(mesh->slice({name})));
  std::vector<std::string> known = names;
  known.insert(known.end(), {"rank", "size", "names"});
  unknown(of, name, known);
}

Value observation_attribute(const Value& of, const std::string& name) {
  const Observation& seen = *of.as_observation("observation");
  if (seen.planned && (name == "peak_bytes" || name == "seconds")) throw UnknownBeforeRun(str("`", name, "`"));
  if (!(name == "peak_bytes" ? seen.allocated : seen.worked)) note_trivial_reading();
  if (name == "peak_bytes") return Value(seen.peak_bytes);
  if (name == "seconds") return Value(seen.seconds);
  unknown(of, name, {"peak_bytes", "seconds"});
}

Value scaler_attribute(const Value& of, const std::string& name) {
  const optim::GradScaler& scaler = *of.as_scaler("scaler");
  if (name == "scale") return Value(scaler.scale());
  if (name == "growth_tracker") return Value(scaler.growth_tracker());
  unknown(of, name, {"scale", "growth_tracker"});
}

Value module_attribute(const Value& of, const nn::ModulePtr& module, const std::string& name) {
  Value found;
  if (find_member(module, name, found)) return found;
  std::vector<std::string> known = module->methods();
  for (const nn::ChildSlot& slot : module->children) known.push_back(slot.name);
  for (const nn::ParameterSlot& slot : module->parameters) known.push_back(slot.name);
  for (const nn::BufferSlot& slot : module->buffers) known.push_back(slot.name);
  unknown(of, name, known);
}

}  // namespace

bool find_member(const nn::ModulePtr& module, const std::string& name, Value& found) {
  if (nn::ModulePtr child = module->child(name)) {
    found = Value(std::move(child));
    return true;
  }
  if (nn::ParameterSlot* slot = module->parameter_slot(name)) {
    found = slot->tensor.defined() ? Value(slot->tensor) : Value();
    return true;
  }
  if (nn::BufferSlot* slot = module->buffer_slot(name)) {
    found = slot->tensor.defined() ? Value(slot->tensor) : Value();
    return true;
  }
  for (const std::string& method : module->methods())
    if (method == name) {
      found = Value(BoundMethod{module, name});
      return true;
    }
  return false;
}

Value attribute_of(const Value& of, const std::string& name) {
  switch (of.kind()) {
    case Value::Kind::tensor:
      return tensor_attribute(of, *of.get_if<Tensor>(), name);
    case Value::Kind::mesh:
      return mesh_attribute(of, *of.get_if<MeshPtr>(), name);
    case Value::Kind::module:
      return module_attribute(of, *of.get_if<nn::ModulePtr>(), name);
    case Value::Kind::handle:
      if (const Handle* handle = of.get_if<Handle>(); handle->result) return attribute_of(*handle->result, name);
      break;
    case Value::Kind::observation:
      return observation_attribute(of, name);
    case Value::Kind::scaler:
      return scaler_attribute(of, name);
    case Value::Kind::map: {
      if (const Value* value = of.find(Key(name))) return *value;
      std::vector<std::string> known;
      for (const auto& [key, value] : of.as_map("map")) known.push_back(key.text);
      unknown(of, name, known);
    }
    default:
      break;
  }
  throw Error(str(describe(of), " has no attribute `", name, "`"));
}

}  // namespace lockstep::run
