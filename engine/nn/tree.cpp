// Traversal of a module tree, and operations on all of it: copies, casts, moves.
#include <cmath>
#include <set>
#include <unordered_map>

#include "engine/autograd/autograd.hpp"
#include "engine/autograd/grad_of_peers.hpp"
#include "engine/mesh/sharded.hpp"
#include "engine/nn/module.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::nn {

namespace {

std::string joined(const std::string& path, const std::string& name) { return path.empty() ? name : path + "." + name; }

// Pre-order. With `once`, a shared module is visited only under its first path.
void walk(const ModulePtr& module, const std::string& path, bool once, std::set<const Module*>& seen,
          std::vector<NamedModule>& found) {
  if (!seen.insert(module.get()).second && once) return;
  found.push_back({path, module});
  for (const ChildSlot& child : module->children) walk(child.module, joined(path, child.name), once, seen, found);
}

std::vector<NamedModule> all_paths(const ModulePtr& root) {
  std::vector<NamedModule> found;
  std::set<const Module*> seen;
  walk(root, "", false, seen, found);
  return found;
}

}  // namespace

std::vector<NamedModule> named_modules(const ModulePtr& root) {
  std::vector<NamedModule> found;
  std::set<const Module*> seen;
  walk(root, "", true, seen, found);
  return found;
}

std::vector<NamedParameter> named_parameters(const ModulePtr& root, bool once) {
  std::vector<NamedParameter> found;
  std::set<const TensorImpl*> seen;
  for (const auto& [path, module] : once ? named_modules(root) : all_paths(root))
    for (std::size_t slot = 0; slot < module->parameters.size(); ++slot) {
      const auto& [name, tensor, sharded, num_draws, listed] = module->parameters[slot];
      if (!tensor.defined() || !listed) continue;
      if (once && !seen.insert(&tensor.impl()).second) continue;
      found.push_back({joined(path, name), module, slot});
    }
  return found;
}

std::vector<NamedBuffer> named_buffers(const ModulePtr& root) {
  std::vector<NamedBuffer> found;
  std::set<const TensorImpl*> seen;
  for (const auto& [path, module] : named_modules(root))
    for (std::size_t slot = 0; slot < module->buffers.size(); ++slot) {
      const BufferSlot& buffer = module->buffers[slot];
      if (!buffer.tensor.defined() || !seen.insert(&buffer.tensor.impl()).second) continue;
      found.push_back({joined(path, buffer.name), module, slot});
    }
  return found;
}

void settle(const ModulePtr& root) {
  for (const NamedModule& entry : named_modules(root))
    if (entry.module->settle) entry.module->settle();
}

void name_parameters(const ModulePtr& root) {
  for (const NamedParameter& parameter : named_parameters(root)) {
    parameter.tensor().set_name(parameter.path);
    Storage& storage = *parameter.tensor().storage();
    storage.owner = parameter.path;
    if (storage.memory_ptr()) storage.memory_ptr()->label = parameter.path;
  }
}

// ---- copies ----
namespace {

class Cloner {
 public:
  explicit Cloner(const ModulePtr& root) {
    for (const NamedParameter& parameter : named_parameters(root)) ++num_tensors_[parameter.tensor().storage().get()];
    for (const NamedBuffer& buffer : named_buffers(root)) ++num_tensors_[buffer.tensor().storage().get()];
  }
  ModulePtr module(const ModulePtr& from) {
    if (ModulePtr& known = modules_[from.get()]) return known;
    if (!from->copy_refusal.empty()) throw Error(from->copy_refusal);
    ModulePtr made = from->clone_shell();
    LOCKSTEP_CHECK(made->children.empty() && made->parameters.empty() && made->buffers.empty(), "clone_shell of ",
                   from->type(), " is not empty");
    modules_[from.get()] = made;
    made->training = from->training;
    for (const ParameterSlot& slot : from->parameters)
      made->parameters.push_back({slot.name, tensor(slot.tensor, device::Purpose::parameter), {}, slot.num_draws});
    for (const BufferSlot& slot : from->buffers)
      made->buffers.push_back({slot.name, tensor(slot.tensor, device::Purpose::other), slot.persistent});
    for (const ChildSlot& child : from->children) made->children.push_back({child.name, module(child.module)});
    return made;
  }

 private:
  Tensor tensor(const Tensor& from, device::Purpose purpose) {
    if (!from.defined()) return {};
    if (const auto known = tensors_.find(&from.impl()); known != tensors_.end()) return known->second;
    if (!is_leaf(from))
      throw Error(str("clone_module: ", from.name().empty() ? "a parameter" : from.name().c_str(), " is the result of ",
                      grad_fn_name(from)),
                  "copy the module while its parameters are leaves");
    Tensor made = copy_in_memory_order(from, purpose);
    if (requires_grad(from)) set_requires_grad(made, true);
    if (const Tensor gradient = grad(from); gradient.defined())
      set_grad(made, copy(gradient, device::Purpose::gradient));
    tensors_[&from.impl()] = made;
    return made;
  }
  // Of tensors that share a storage, the copies share one.
  Tensor copy_in_memory_order(const Tensor& from, device::Purpose purpose) {
    const Tensor local = local_tensor(from);
    const Storage* storage = local.storage().get();
    if (local.is_contiguous() && num_tensors_[storage] <= 1) return copy(from, purpose);
    Tensor& memory = memory_[storage];
    if (!memory.defined()) {
      const auto count = static_cast<std::int64_t>(storage->bytes() / size_of(local.dtype()));
      memory = copy(as_strided(local, {count}, {1}, 0), purpose);
    }
    Tensor made = sharded_like(as_strided(memory, local.sizes(), local.strides(), local.offset()), from);
    made.set_name(from.name());
    return made;
  }
  static Tensor copy(const Tensor& from, device::Purpose purpose) {
    const device::PurposeScope scope(purpose);
    Tensor made = sharded_like(raw::clone(detach(from)), from);
    made.set_name(from.name());
    made.storage()->owner = from.storage()->owner;
    return made;
  }

  std::unordered_map<const Module*, ModulePtr> modules_;
  std::unordered_map<const TensorImpl*, Tensor> tensors_;
  std::unordered_map<const Storage*, int> num_tensors_;
  std::unordered_map<const Storage*, Tensor> memory_;  // the copies of storages, in one dim
};

// Visits every parameter, its gradients and every buffer, each once.
void for_each_tensor(const ModulePtr& root, const std::function<void(const Tensor&, device::Purpose)>& visit) {
  for (const NamedParameter& parameter : named_parameters(root)) {
    visit(parameter.tensor(), device::Purpose::parameter);
    if (const Tensor kept_back = kept_back_grad(parameter.tensor()); kept_back.defined())
      visit(kept_back, device::Purpose::gradient);
    const Tensor gradient = grad(parameter.tensor());
    if (!gradient.defined()) continue;
    // The gradient may be shared (a view of a bucket), so it is replaced instead of changed.
    const Tensor replacement = detach(gradient);
    visit(replacement, device::Purpose::gradient);
    set_grad(parameter.tensor(), replacement);
  }
  for (const NamedBuffer& buffer : named_buffers(root)) visit(buffer.tensor(), device::Purpose::other);
}

}  // namespace

ModulePtr clone_module(const ModulePtr& root) { return Cloner(root).module(root); }

void swap_data(const Tensor& tensor, const Tensor& data) {
  LOCKSTEP_CHECK(tensor.sizes() == data.sizes(), to_text(tensor.sizes()), " against ", to_text(data.sizes()));
  TensorImpl& to = tensor.impl();
  const TensorImpl& from = data.impl();
  from.storage->owner = to.storage->owner;
  to.storage = from.storage;
  to.strides = from.strides;
  to.offset = from.offset;
  to.dtype = from.dtype;
}

void set_training(const ModulePtr& root, bool training) {
  for (const NamedModule& entry : named_modules(root)) entry.module->training = training;
}

void cast_module(const ModulePtr& root, DType dtype) {
  if (!is_floating(dtype))
    throw Error(str("cast_module: ", name_of(dtype), " is not a floating type"), "cast to a floating type");
  settle(root);
  const NoGrad no_grad;
  for_each_tensor(root, [dtype](const Tensor& tensor, device::Purpose purpose) {
    if (!is_floating(tensor.dtype())) return;
    const device::PurposeScope scope(purpose);
    swap_data(tensor, raw::cast(detach(tensor), dtype));
  });
}

void move_module(const ModulePtr& root, device::Device device) {
  settle(root);
  const NoGrad no_grad;
  for_each_tensor(root, [device](const Tensor& tensor, device::Purpose purpose) {
    if (tensor.device() == device) return;
    const device::PurposeScope scope(purpose);
    swap_data(tensor, raw::to_device(detach(tensor), device));
  });
}

void materialize(const ModulePtr& root, device::Device device) {
  settle(root);
  const NoGrad no_grad;
  for_each_tensor(root, [device](const Tensor& tensor, device::Purpose purpose) {
    if (!tensor.is_meta()) return;
    const device::PurposeScope scope(purpose);
    swap_data(tensor, full(tensor.sizes(), is_floating(tensor.dtype()) ? std::nan("") : 0.0, tensor.dtype(), device));
  });
}

void redraw(const ModulePtr& module) {
  if (module->settle) module->settle();
  const NoGrad no_grad;
  std::vector<std::pair<ParameterSlot*, Tensor>> sharded;
  for (ParameterSlot& slot : module->parameters) {
    if (!slot.tensor.defined() || !slot.tensor.is_sharded()) continue;
    const device::PurposeScope scope(device::Purpose::other);
    sharded.emplace_back(&slot, slot.tensor);
    slot.tensor = empty(global_sizes(slot.tensor), slot.tensor.dtype(), slot.tensor.device());
  }
  module->reset_parameters();
  for (auto& [slot, kept] : sharded) {
    raw::copy_(local_tensor(kept), local_shard_of(slot->tensor, *kept.layout()));
    slot->tensor = kept;
  }
}

void zero_grad(const ModulePtr& root, bool set_to_none) {
  for (const NamedParameter& parameter : named_parameters(root)) {
    if (set_to_none) {
      set_grad(parameter.trained(), Tensor());
      continue;
    }
    forget_kept_back(parameter.trained());
    if (const Tensor gradient = grad(parameter.trained()); gradient.defined()) raw::zero_(gradient);
  }
}

}  // namespace lockstep::nn
