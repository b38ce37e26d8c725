// The full parameters of units of flat_shard in a dry run, while summon_full_parameters shows them.
#include <algorithm>

#include "engine/autograd/autograd.hpp"
#include "engine/autograd/grad_of_peers.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/tensor/ops.hpp"
#include "harness/run/trace/stand_in.hpp"
#include "harness/run/trace/traced_shards.hpp"

namespace lockstep::run {

namespace {

Tensor full_tensor_of(const Dims& sizes, const LayoutPtr& inner, DType dtype, device::Device device) {
  if (!inner) return empty(sizes, dtype, device);
  return make_sharded(empty(layout::local_sizes(*inner, RankContext::current().rank()), dtype, device), inner);
}

}  // namespace

// A rank without elements of the parameter has no gradient of it, whatever other ranks have.
bool TracedShards::has_gradient(const Group& group, const Parameter& parameter) {
  const Tensor& mine = trained(group, parameter);
  if (!requires_grad(mine)) return false;
  return grad(mine).defined() || has_grad_of_peers(mine);
}

void TracedShards::show_full(const std::vector<plan::ModuleId>& ids, const Summon& summon) {
  const NoGrad no_grad;
  for (const plan::ModuleId id : ids) {
    Group& group = groups_[group_of_.at(id)];
    FlatUnit& unit = *group.flat;
    if (group.parameters.empty()) continue;
    unit.shows_full = true;
    if (summon.only_first_rank && unit.rank != 0) continue;
    const device::Device device = summon.on_host ? stand_in(device::Device{}) : group.policy.compute_device;
    const DType dtype = unit.chunk.dtype();
    for (Parameter& parameter : group.parameters) {
      const Tensor full = full_tensor_of(parameter.sizes, parameter.inner, dtype, device);
      full.set_name(parameter.shard.name());
      events_.replaced(parameter.id, full);
      if (requires_grad(trained(group, parameter))) set_requires_grad(full, true);
      if (summon.gradients && has_gradient(group, parameter))
        set_grad(full, full_tensor_of(parameter.sizes, parameter.inner, gradient_type(group), device),
                 GradientType::any_floating);
      for (const Slot& slot : parameter.slots) {
        slot.get().tensor = slot.get().sharded = full;
        slot.get().listed = true;
      }
    }
    if (unit.slot) unit.slot->get().listed = false;
  }
}

// The shards come back, with the values and gradients of the full parameters if these are written.
void TracedShards::hide_full(const std::vector<plan::ModuleId>& ids, bool writes_values, bool writes_gradients) {
  const NoGrad no_grad;
  for (const plan::ModuleId id : ids) {
    Group& group = groups_[group_of_.at(id)];
    FlatUnit& unit = *group.flat;
    if (group.parameters.empty()) continue;
    bool found = false;
    for (Parameter& parameter : group.parameters) {
      const Tensor& shown = parameter.slots.front().get().tensor;
      const bool has = grad(shown).defined();
      found = found || has;
      if (!unit.slot && requires_grad(shown) != requires_grad(parameter.shard))  // frozen or thawed in the meantime
        set_requires_grad(parameter.shard, requires_grad(shown));
      if (writes_gradients && !unit.slot) give_gradient(group, parameter.shard, has);
      for (const Slot& slot : parameter.slots) {
        slot.get().tensor = slot.get().sharded = parameter.shard;
        slot.get().listed = !unit.slot;
      }
    }
    if (unit.slot) unit.slot->get().listed = true;
    if (writes_gradients && unit.slot) give_gradient(group, unit.chunk, found);
    if (writes_values) unit.chunk.bump_version();
    unit.shows_full = false;
  }
}

std::optional<plan::Planner::Gradient> TracedShards::gradient_of_chunk(plan::ModuleId id) const {
  const Group& group = groups_[group_of_.at(id)];
  const FlatUnit& unit = *group.flat;
  if (group.parameters.empty() || !unit.settings.choices.shards) return std::nullopt;
  const DeviceMesh axis = group.mesh->slice({group.mesh->shape().names().back()});
  const DType dtype = unit.chunk.dtype();
  return plan::Planner::Gradient{{axis.shape(), {layout::shard(0)}, {unit.layout.padded()}},
                                 size_of(dtype) == 2 ? DType::float32 : dtype};
}

std::vector<plan::Planner::Gradient> TracedShards::gradients_of_part(const Tensor& trained) const {
  std::vector<plan::Planner::Gradient> gradients;
  for (const Group& group : groups_) {
    if (!group.flat || trained.storage() != group.flat->storage) continue;
    const DType type = group.flat->chunk.dtype();
    if (const auto chunk = gradient_of_chunk(group.flat->id)) gradients.push_back(*chunk);
    for (const Parameter& parameter : group.parameters)
      if (parameter.inner) gradients.push_back({*parameter.inner, size_of(type) == 2 ? DType::float32 : type});
  }
  return gradients;
}

std::optional<TracedShards::TrainedPart> TracedShards::trained_as(const Tensor& tensor) const {
  for (const Group& group : groups_) {
    if (!group.flat || group.parameters.empty()) continue;
    if (group.flat->slot && tensor.same_as(group.flat->chunk)) return TrainedPart{group.flat->id, 0, true};
    for (std::size_t i = 0; i < group.parameters.size(); ++i)
      if (tensor.same_as(group.parameters[i].shard)) return TrainedPart{group.flat->id, i, false};
  }
  return std::nullopt;
}

// Where this rank holds elements that the step changes, the step itself has changed the chunk.
void TracedShards::note_step(const std::vector<Tensor>& stepped) {
  std::map<plan::ModuleId, bool> changed;  // by the step itself, on this rank
  for (const Tensor& tensor : stepped) {
    const std::optional<TrainedPart> part = trained_as(tensor);
    if (!part || part->is_chunk) continue;
    const Group& group = unit(part->unit);
    if (!has_gradient(group, group.parameters[part->index])) continue;
    bool& here = changed.emplace(part->unit, false).first->second;
    here = here || tensor.num_elements() > 0;
  }
  for (const auto& [id, here] : changed)
    if (!here) groups_[group_of_.at(id)].flat->chunk.bump_version();
}

}  // namespace lockstep::run
