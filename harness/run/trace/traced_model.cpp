#include "harness/run/trace/traced_model.hpp"

#include "engine/autograd/autograd.hpp"

namespace lockstep::run {

namespace {

int number_of(device::Device device) {
  constexpr int most_indices = 1 << 16;
  return static_cast<int>(device.kind) * most_indices + device.index;
}

}  // namespace

plan::ModuleId TracedModel::id_of(const nn::ModulePtr& module) {
  const auto [at, added] = module_ids_.emplace(module.get(), static_cast<int>(modules_.size()));
  if (added) modules_.push_back(module);
  return at->second;
}

plan::TensorId TracedModel::id_of(const Tensor& tensor) {
  const auto [at, added] = tensor_ids_.emplace(&tensor.impl(), static_cast<int>(tensors_.size()));
  if (!added) return at->second;
  tensors_.push_back(tensor);
  // Sharding replaces the tensor. A gradient that the replaced tensor still gets belongs to no parameter.
  if (is_leaf(tensor) && is_floating(tensor.dtype()))
    add_post_accumulate_hook(tensor, [this, id = at->second](const Tensor& leaf) {
      if (tensor_ids_.contains(&leaf.impl())) on_gradient_(id);
    });
  return at->second;
}

void TracedModel::replace(plan::TensorId id, const Tensor& tensor) {
  const Tensor& first = tensors_[static_cast<std::size_t>(id)];
  if (const auto at = tensor_ids_.find(&first.impl()); at != tensor_ids_.end() && at->second == id)
    tensor_ids_.erase(at);
  tensor_ids_[&tensor.impl()] = id;
  replacements_.push_back(tensor);
}

plan::Facts TracedModel::facts_of(const nn::ModulePtr& root) {
  plan::Facts facts;
  for (const nn::NamedModule& entry : nn::named_modules(root)) {
    plan::ModuleFacts& module = facts.modules[id_of(entry.module)];
    for (const nn::ChildSlot& child : entry.module->children) module.children.push_back(id_of(child.module));
    const auto add = [&](std::vector<plan::NamedTensor>& list, const std::string& name, const Tensor& tensor) {
      if (!tensor.defined()) return;
      const plan::TensorId id = id_of(tensor);
      // A group shards the local shard of a parameter that is sharded already. Its sizes stay those of that shard.
      const Dims sizes = planner_.shards().owns(id) ? planner_.facts().tensor(id).sizes : tensor.sizes();
      list.push_back({name, id});
      facts.tensors[id] = {sizes, tensor.dtype(), requires_grad(tensor), tensor.storage()->version(),
                           number_of(tensor.device())};
    };
    for (const nn::ParameterSlot& slot : entry.module->parameters) add(module.parameters, slot.name, slot.trained());
    for (const nn::BufferSlot& slot : entry.module->buffers) add(module.buffers, slot.name, slot.tensor);
  }
  return facts;
}

std::set<plan::TensorId> TracedModel::reached_by_backward(const std::function<bool(const Tensor&)>& is_left_out) const {
  std::set<plan::TensorId> reached;
  for (const std::vector<Tensor>* tensors : {&tensors_, &replacements_})
    for (const Tensor& tensor : *tensors) {
      const auto id = tensor_ids_.find(&tensor.impl());
      if (id == tensor_ids_.end() || is_left_out(tensor)) continue;
      if (is_leaf(tensor) && is_floating(tensor.dtype()) && backward_reaches(tensor)) reached.insert(id->second);
    }
  return reached;
}

}  // namespace lockstep::run
