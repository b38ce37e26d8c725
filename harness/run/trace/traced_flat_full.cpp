// The full parameters of units of flat_shard in a dry run, while summon_full_parameters shows them.
#include <algorithm>

#include "engine/autograd/autograd.hpp"
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

// A rank without elements of the parameter knows only that some rank has reduced gradients.
bool TracedShards::has_gradient(const Group& group, const Parameter& parameter) {
  const FlatUnit& unit = *group.flat;
  const Tensor& mine = trained(group, parameter);
  if (!requires_grad(mine)) return false;
  return mine.num_elements() > 0 ? grad(mine).defined() : unit.has_reduced;
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
        set_grad(full, full_tensor_of(parameter.sizes, parameter.inner, dtype, device));
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
      const bool has = grad(parameter.slots.front().get().tensor).defined();
      found = found || has;
      if (writes_gradients && !unit.slot)
        give_gradient(group, parameter.shard, has && parameter.shard.num_elements() > 0);
      for (const Slot& slot : parameter.slots) {
        slot.get().tensor = slot.get().sharded = parameter.shard;
        slot.get().listed = !unit.slot;
      }
    }
    if (unit.slot) unit.slot->get().listed = true;
    if (writes_gradients && unit.slot) give_gradient(group, unit.chunk, found);
    if (writes_gradients) unit.has_reduced = found;
    if (writes_values) unit.chunk.bump_version();
    unit.shows_full = false;
  }
}

// Where this rank holds elements that the step changes, the step itself has changed the chunk.
void TracedShards::note_step(const std::vector<Tensor>& stepped) {
  for (Group& group : groups_) {
    if (!group.flat || !group.flat->has_reduced) continue;
    bool holds_parameter = false, holds_elements = false;
    for (const Tensor& tensor : stepped) {
      if (tensor.storage() != group.flat->storage || !requires_grad(tensor)) continue;
      holds_parameter = true;
      holds_elements = holds_elements || tensor.num_elements() > 0;
    }
    if (holds_parameter && !holds_elements) group.flat->chunk.bump_version();
  }
}

}  // namespace lockstep::run
