#include "harness/run/trace/plan_shards.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "engine/autograd/autograd.hpp"
#include "engine/autograd/ops.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/layout/placement.hpp"
#include "engine/tensor/ops.hpp"
#include "harness/run/trace/stand_in.hpp"

namespace lockstep::run {

namespace {

// The part of this rank, without values.
Tensor part_of(const layout::ShardedLayout& layout, DType dtype, device::Device device, const Tensor& like) {
  const NoGrad no_grad;
  const Dims sizes = layout::local_sizes(layout, RankContext::current().rank());
  const Tensor part = make_sharded(empty(sizes, dtype, device), layout);
  part.set_name(like.name());
  if (requires_grad(like)) set_requires_grad(part, true);
  return part;
}

void replace_tensors(nn::Inputs& inputs, const std::function<Tensor(const Tensor&)>& replace) {
  for (nn::Value& value : inputs.positional) value = nn::map_tensors(value, replace);
  for (auto& [name, value] : inputs.named) value = nn::map_tensors(value, replace);
}

std::function<Tensor(const Tensor&)> cast_to(DType dtype) {
  return [dtype](const Tensor& tensor) { return is_floating(tensor.dtype()) ? ops::cast(tensor, dtype) : tensor; };
}

}  // namespace

// ---- what is applied ----
void TracedShards::add(const std::vector<nn::ModulePtr>& modules, const std::vector<plan::ModuleId>& ids,
                       std::vector<Parameter> parameters, const MeshPtr& mesh, const ShardPolicy& policy) {
  for (const plan::ModuleId id : ids) group_of_[id] = groups_.size();
  Group& group = groups_.emplace_back(Group{policy, mesh, std::move(parameters)});
  for (Parameter& parameter : group.parameters) cut(group, parameter);
  if (!group.parameters.empty()) settle_before_reading(modules, ids.front(), group);
}

// The last axis of the mesh cuts, the one before it replicates.
void TracedShards::cut(Group& group, Parameter& parameter) {
  const Tensor whole = parameter.slots.front().get().tensor;
  layout::ShardedLayout layout{group.mesh->shape(), {}, whole.sizes()};
  layout.placements.assign(static_cast<std::size_t>(group.mesh->num_axes()), layout::replicate());
  layout.placements.back() = layout::shard(parameter.dim);
  const bool is_meta = whole.device().kind == device::Kind::meta && !is_stand_in(whole.device());
  parameter.part = part_of(layout, whole.dtype(), is_meta ? whole.device() : group.policy.parts_on, whole);
  tell_.stands_for(parameter.part, parameter.id);
  for (const Slot& slot : parameter.slots) slot.get().tensor = slot.get().sharded = parameter.part;
}

// Before the state of a module is read, replaced, cast or moved, its slots show the parts.
void TracedShards::settle_before_reading(const std::vector<nn::ModulePtr>& modules, plan::ModuleId first,
                                         const Group& group) {
  std::set<nn::Module*> owners;
  for (const nn::ModulePtr& module : modules) owners.insert(module.get());
  for (const Parameter& parameter : group.parameters)
    for (const Slot& slot : parameter.slots) owners.insert(slot.owner.get());
  for (nn::Module* owner : owners)
    owner->settle = [this, first, before = std::move(owner->settle)] {
      if (before) before();
      planner_.shards().reshard(first);
      follow();
    };
}

// ---- what the slots show ----
bool TracedShards::holds(const Tensor& tensor) const {
  for (const Group& group : groups_)
    for (const Parameter& parameter : group.parameters)
      if ((parameter.part.defined() && tensor.same_as(parameter.part)) ||
          (parameter.kept.defined() && tensor.same_as(parameter.kept)))
        return true;
  return false;
}

void TracedShards::adopt() {
  for (Group& group : groups_)
    for (Parameter& parameter : group.parameters) {
      const Tensor now = parameter.slots.front().get().tensor;
      const auto is = [&now](const Tensor& known) { return known.defined() && now.same_as(known); };
      if (!now.defined() || is(parameter.part) || is(parameter.kept) || is(parameter.full)) continue;
      parameter.part = now;
      tell_.stands_for(now, parameter.id);
      for (const Slot& slot : parameter.slots) slot.get().tensor = slot.get().sharded = now;
    }
}

const Tensor& TracedShards::full_of(const Group& group, Parameter& parameter) {
  const Tensor& part = parameter.part;
  const bool casts = group.policy.param && is_floating(part.dtype());
  const DType dtype = casts ? *group.policy.param : part.dtype();
  if (!parameter.full.defined() || parameter.full.dtype() != dtype) {
    parameter.full = empty(global_sizes(part), dtype, group.policy.computes_on);
    parameter.full.set_name(part.name());
    set_accumulator(parameter.full, [this, id = parameter.id](const Tensor&, const Tensor&) { tell_.gradient(id); });
    tell_.stands_for(parameter.full, parameter.id);
  }
  if (requires_grad(parameter.full) != requires_grad(part)) set_requires_grad(parameter.full, requires_grad(part));
  return parameter.full;
}

// n consecutive ranks of the axis that cuts hold a parameter together, the next n the same.
const Tensor& TracedShards::kept_of(const Group& group, Parameter& parameter) {
  const int num_keeping = planner_.shards().num_keeping(parameter.id);
  const std::vector<std::string>& names = group.mesh->shape().names();
  const DeviceMesh axis = group.mesh->num_axes() == 1 ? *group.mesh : group.mesh->slice({names.back()});
  const layout::MeshShape mesh({axis.num_ranks() / num_keeping, num_keeping}, {"kept_replicate", "kept_shard"},
                               axis.shape().ranks());
  const layout::ShardedLayout layout{
      mesh, {layout::replicate(), layout::shard(parameter.dim)}, global_sizes(parameter.part)};
  const bool is_same = parameter.kept.defined() && *parameter.kept.impl().layout == layout &&
                       parameter.kept.dtype() == full_of(group, parameter).dtype();
  if (!is_same) {
    parameter.kept = part_of(layout, full_of(group, parameter).dtype(), group.policy.computes_on, parameter.part);
    tell_.stands_for(parameter.kept, parameter.id);
  }
  return parameter.kept;
}

void TracedShards::follow() {
  adopt();
  using Shown = plan::ShardPlan::Shown;
  for (Group& group : groups_)
    for (Parameter& parameter : group.parameters) {
      const Shown shown = planner_.shards().shown(parameter.id);
      const Tensor& tensor = shown == Shown::full   ? full_of(group, parameter)
                             : shown == Shown::kept ? kept_of(group, parameter)
                                                    : parameter.part;
      for (const Slot& slot : parameter.slots) slot.get().tensor = tensor;
    }
  deliver();
}

// ---- gradients ----
// What a reduction gives lies as the part does, and has its type. Hooks on the parts run when all of it is there.
void TracedShards::deliver() {
  const NoGrad no_grad;
  std::vector<Tensor> parts;
  for (const plan::TensorId id : planner_.shards().take_reduced())
    for (const Group& group : groups_)
      for (const Parameter& parameter : group.parameters)
        if (parameter.id == id) parts.push_back(parameter.part);
  for (const Tensor& part : parts)
    if (!grad(part).defined())
      set_grad(part, make_sharded(empty(part.sizes(), part.dtype(), part.device()), part.impl().layout));
  for (const Tensor& part : parts)
    if (has_post_accumulate_hooks(part)) run_post_accumulate_hooks(part);
}

// ---- calls ----
void TracedShards::prepare(plan::ModuleId module, nn::Inputs& inputs) const {
  const auto at = group_of_.find(module);
  if (at == group_of_.end()) return;
  const ShardPolicy& policy = groups_[at->second].policy;
  if (stood_for(policy.computes_on).kind != device::Kind::cpu && planner_.shards().moves_inputs(module))
    replace_tensors(inputs, [&](const Tensor& tensor) {
      return tensor.device() == policy.computes_on ? tensor : ops::to_device(tensor, policy.computes_on);
    });
  if (policy.casts_inputs && policy.param) replace_tensors(inputs, cast_to(*policy.param));
}

void TracedShards::finish(plan::ModuleId module, nn::Value& outputs) const {
  const auto at = group_of_.find(module);
  if (at == group_of_.end() || !groups_[at->second].policy.output) return;
  outputs = nn::map_tensors(outputs, cast_to(*groups_[at->second].policy.output));
}

}  // namespace lockstep::run
