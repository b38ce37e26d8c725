#include "engine/parallel/shard_apply.hpp"

#include <set>
#include <utility>

#include "engine/autograd/autograd.hpp"
#include "engine/core/error.hpp"
#include "engine/parallel/contract.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::parallel {

using nn::ModulePtr;
using nn::Structure;

void check_unmanaged(const nn::Module& module, std::string_view api) {
  if (is_applied(module, replicate_name))
    throw Error(str("Cannot apply `", api, "()` on a Module already managed by `replicate`"),
                "shard it over a mesh with a replicate axis instead");
  for (const std::string_view other : {fully_shard_name, flat_shard_name})
    if (other != api && is_applied(module, other))
      throw Error(str("Cannot apply `", api, "()` on a Module already managed by `", other, "`"),
                  "shard it with one of the two");
}

void move_to_device(const std::vector<CollectedParameter>& parameters, const std::vector<nn::ModulePtr>& modules,
                    device::Device device) {
  const NoGrad no_grad;
  const auto move = [device](const Tensor& tensor, device::Purpose purpose) {
    if (!tensor.defined() || tensor.is_meta() || tensor.device() == device) return;
    const device::PurposeScope scope(purpose);
    nn::swap_data(tensor, raw::to_device(detach(tensor), device));
  };
  for (const CollectedParameter& parameter : parameters) move(parameter.tensor, device::Purpose::parameter);
  for (const ModulePtr& module : modules)
    for (const nn::BufferSlot& buffer : module->buffers) move(buffer.tensor, device::Purpose::other);
}

void add_hooks(const ModulePtr& module, const ShardStatePtr& state) {
  module->add_pre_forward([weak = std::weak_ptr(state)](nn::Module&, nn::Inputs& inputs) {
    if (const auto alive = weak.lock()) alive->pre_forward(inputs);
  });
  module->add_post_forward([weak = std::weak_ptr(state)](nn::Module& of, const nn::Inputs&, Structure& outputs) {
    if (const auto alive = weak.lock()) alive->post_forward(of, outputs);
  });
}

namespace {

void add_settling_to(const ModulePtr& module, const std::shared_ptr<ShardGroup>& group) {
  module->settle = [before = std::move(module->settle), weak = std::weak_ptr(group)] {
    if (before) before();
    const auto alive = weak.lock();
    if (!alive) return;
    alive->refuse_replaced_leaves();
    alive->reshard();
  };
}

}  // namespace

void add_settling(const std::vector<ModulePtr>& modules, const std::shared_ptr<ShardGroup>& group) {
  std::set<nn::Module*> settled;
  const auto add = [&settled, &group](const ModulePtr& module) {
    if (module && settled.insert(module.get()).second) add_settling_to(module, group);
  };
  for (const ModulePtr& module : modules) add(module);
  for (std::size_t i = 0; i < group->shards().num_parameters(); ++i)
    for (const ParameterSlotRef& slot : group->shards().parameter(i).slots) add(slot.owner.lock());
}

}  // namespace lockstep::parallel
