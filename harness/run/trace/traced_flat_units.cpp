// The units of flat_shard in a dry run: the chunk of this rank, and the views of it that optimizers see.
#include <algorithm>
#include <utility>

#include "engine/autograd/autograd.hpp"
#include "engine/autograd/grad_of_peers.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/tensor/ops.hpp"
#include "harness/run/trace/stand_in.hpp"
#include "harness/run/trace/traced_shards.hpp"

namespace lockstep::run {

const Tensor& TracedShards::trained(const Group& group, const Parameter& parameter) {
  return group.flat && group.flat->slot ? group.flat->chunk : parameter.shard;
}

// ---- making a unit ----
void TracedShards::make_chunk(Group& group, DType dtype, device::Device device) {
  FlatUnit& unit = *group.flat;
  unit.chunk = empty({unit.layout.chunk()}, dtype, device);
  unit.storage = unit.chunk.storage();
}

Tensor TracedShards::part_of_chunk(const FlatUnit& unit, const Parameter& parameter, std::size_t index) {
  const Tensor chunk = detach(unit.chunk);
  if (unit.settings.choices.shards) {
    const plan::FlatLayout::Part part = unit.layout.part(index, unit.rank);
    return slice(chunk, 0, part.begin, part.begin + part.length);
  }
  const Dims sizes =
      parameter.inner ? layout::local_sizes(*parameter.inner, RankContext::current().rank()) : parameter.sizes;
  const Tensor whole = as_strided(chunk, sizes, contiguous_strides(sizes), unit.layout.begin(index));
  return parameter.inner ? make_sharded(whole, parameter.inner) : whole;
}

void TracedShards::add_unit(plan::ModuleId id, const std::vector<nn::ModulePtr>& modules,
                            std::vector<Parameter> parameters, const MeshPtr& mesh, const ShardPolicy& policy,
                            const UnitSettings& settings) {
  const NoGrad no_grad;
  group_of_[id] = groups_.size();
  Group& group = groups_.emplace_back(Group{policy, mesh, std::move(parameters), FlatUnit{settings, id, modules}});
  FlatUnit& unit = *group.flat;
  unit.casts_buffers = settings.buffer.has_value();
  if (group.parameters.empty()) return;
  std::vector<Dims> sizes;
  for (Parameter& parameter : group.parameters) {
    const Tensor full = parameter.slots.front().get().tensor;
    parameter.inner = full.layout();
    parameter.sizes = global_sizes(full);
    sizes.push_back(full.sizes());
  }
  const Tensor first = group.parameters.front().slots.front().get().tensor;
  const DType dtype = first.dtype(), computed = policy.param.value_or(dtype);
  const int num_chunks = settings.choices.shards ? mesh->shape().size(mesh->num_axes() - 1) : 1;
  if (settings.choices.shards) unit.rank = mesh->coordinates().back();
  unit.layout = plan::FlatLayout(sizes, num_chunks, settings.choices.aligned ? plan::flat_step(computed) : 1);
  make_chunk(group, dtype, policy.shard_device);
  const bool owner_trains = requires_grad(first);
  for (std::size_t i = 0; i < group.parameters.size(); ++i) {
    Parameter& parameter = group.parameters[i];
    const Tensor full = parameter.slots.front().get().tensor;
    parameter.shard = part_of_chunk(unit, parameter, i);
    parameter.shard.set_name(full.name());
    if (settings.original_parameters && requires_grad(full)) set_requires_grad(parameter.shard, true);
    events_.replaced(parameter.id, parameter.shard);
    for (const Slot& slot : parameter.slots) slot.get().tensor = slot.get().sharded = parameter.shard;
  }
  if (!settings.original_parameters) {
    if (owner_trains) set_requires_grad(unit.chunk, true);
    events_.replaced(group.parameters.front().id, unit.chunk);
    const nn::ModulePtr& owner = modules.front();
    unit.slot = Slot{owner, owner->parameters.size()};
    owner->parameters.push_back({"_flat_param", unit.chunk, unit.chunk});
    for (const Parameter& parameter : group.parameters)
      for (const Slot& slot : parameter.slots) slot.get().listed = false;
  }
  reshard_before_reading({modules.front()}, id, group);
}

// ---- replaced tensors ----
// A tensor in the place of a view is copied into the chunk, and the view comes back. If the type has changed, so has
// that of the chunk.
void TracedShards::adopt_replaced_in_unit(Group& group) {
  FlatUnit& unit = *group.flat;
  if (!unit.chunk.defined() || unit.shows_full) return;
  const NoGrad no_grad;
  std::optional<DType> written;
  if (unit.chunk.storage() != unit.storage) written = unit.chunk.dtype();  // cast or moved in place
  for (const Parameter& parameter : group.parameters) {
    const Tensor now = parameter.slots.front().get().tensor;
    if (!now.defined() || (parameter.full.defined() && now.same_as(parameter.full))) continue;
    if (!now.same_as(parameter.shard) || (!unit.slot && now.storage() != unit.storage)) written = now.dtype();
  }
  if (!written) return;
  if (*written != unit.chunk.dtype())
    nn::swap_data(unit.chunk, empty(unit.chunk.sizes(), *written, unit.chunk.device()));
  unit.storage = unit.chunk.storage();
  unit.storage->bump_version();
  for (std::size_t i = 0; i < group.parameters.size(); ++i) {
    Parameter& parameter = group.parameters[i];
    nn::swap_data(parameter.shard, part_of_chunk(unit, parameter, i));
    for (const Slot& slot : parameter.slots) slot.get().tensor = slot.get().sharded = parameter.shard;
  }
}

void TracedShards::cast_buffers(FlatUnit& unit) {
  unit.casts_buffers = false;
  const NoGrad no_grad;
  for (const nn::ModulePtr& module : unit.modules)
    for (const nn::BufferSlot& buffer : module->buffers)
      if (buffer.tensor.defined() && is_floating(buffer.tensor.dtype()))
        nn::swap_data(buffer.tensor, raw::cast(detach(buffer.tensor), *unit.settings.buffer));
}

// ---- gradients ----
DType TracedShards::gradient_type(const Group& group) {
  const bool computes = group.flat->settings.keeps_compute_type && group.policy.param;
  return computes ? *group.policy.param : group.flat->chunk.dtype();
}

// A parameter without elements on this rank gets none. One that had none keeps what waits for synchronization.
void TracedShards::give_gradient(const Group& group, const Tensor& shard, bool has) {
  if (!has) {
    if (grad(shard).defined() || has_grad_of_peers(shard)) set_grad(shard, Tensor());
    return;
  }
  if (shard.num_elements() == 0) return note_grad_of_peers(shard);
  if (grad(shard).defined()) return;
  const Tensor made = empty(shard.sizes(), gradient_type(group), shard.device());
  set_grad(shard, shard.layout() ? make_sharded(made, shard.layout()) : made, GradientType::any_floating);
}

// zero_grad drops the gradients of a unit that wait for synchronization.
void TracedShards::note_gradients_kept_back(const Group& group) {
  for (std::size_t i = 0; i < group.parameters.size(); ++i)
    if (planner_.shards().keeps_back(group.parameters[i].id))
      keep_back(trained(group, group.parameters[i]),
                {Tensor(), [this, id = group.flat->id, i] { forget_gradient_kept_back(id, i); }});
}

// All parameters of a chunk are trained as one tensor.
void TracedShards::forget_gradient_kept_back(plan::ModuleId unit, std::size_t index) {
  Group& group = groups_[group_of_.at(unit)];
  for (Parameter& parameter : group.parameters) {
    if (!trained(group, parameter).same_as(trained(group, group.parameters[index]))) continue;
    planner_.shards().forget_kept_back(parameter.id);
    parameter.fresh = Tensor();
  }
}

std::vector<plan::ModuleId> TracedShards::units_below(const nn::ModulePtr& module) const {
  std::vector<plan::ModuleId> units;
  for (const nn::NamedModule& entry : nn::named_modules(module))
    for (const Group& group : groups_)
      if (group.flat && group.flat->modules.front() == entry.module) units.push_back(group.flat->id);
  return units;
}

std::vector<plan::Planner::Gradient> TracedShards::norms_of_unit(plan::ModuleId id) const {
  const Group& group = groups_[group_of_.at(id)];
  std::vector<plan::Planner::Gradient> norms;
  if (group.parameters.empty()) return norms;
  const bool computes = group.flat->settings.keeps_compute_type && group.policy.param;
  const DType type = computes ? *group.policy.param : group.flat->chunk.dtype();
  for (const Parameter& parameter : group.parameters) {
    std::vector<int> sizes;
    std::vector<std::string> names;
    std::vector<layout::Placement> placements;
    if (group.flat->settings.choices.shards) {
      const layout::MeshShape& mesh = group.mesh->shape();
      sizes.push_back(mesh.size(mesh.num_axes() - 1));
      names.push_back(mesh.names().back());
      placements.push_back(layout::shard(0));
    }
    if (parameter.inner)
      for (int axis = 0; axis < parameter.inner->mesh.num_axes(); ++axis) {
        sizes.push_back(parameter.inner->mesh.size(axis));
        names.push_back(parameter.inner->mesh.names()[static_cast<std::size_t>(axis)]);
        placements.push_back(parameter.inner->placements[static_cast<std::size_t>(axis)]);
      }
    if (sizes.empty()) continue;
    norms.push_back(
        {{layout::MeshShape(sizes, names), placements, parameter.sizes}, size_of(type) == 2 ? DType::float32 : type});
  }
  return norms;
}

std::vector<Tensor> TracedShards::give_gradients(Group& group) {
  FlatUnit& unit = *group.flat;
  std::vector<Tensor> given;
  const auto give = [&](const Tensor& shard) {
    give_gradient(group, shard, true);
    if (shard.num_elements() > 0) given.push_back(shard);
  };
  for (const Parameter& parameter : group.parameters)
    if (!unit.slot && requires_grad(parameter.shard)) give(parameter.shard);
  if (unit.slot) give(unit.chunk);
  return given;
}

}  // namespace lockstep::run
