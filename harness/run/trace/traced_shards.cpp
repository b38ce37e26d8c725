#include "harness/run/trace/traced_shards.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "engine/autograd/autograd.hpp"
#include "engine/autograd/ops.hpp"
#include "engine/comm/process_group.hpp"
#include "engine/core/checked.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/device/stand_in_memory.hpp"
#include "engine/layout/compose.hpp"
#include "engine/layout/flat_shards.hpp"
#include "engine/tensor/ops.hpp"
#include "harness/run/trace/stand_in.hpp"

namespace lockstep::run {

namespace {

// The shard of a parameter, of which `like` is another form.
Tensor as_shard(const Tensor& local, const layout::ShardedLayout& layout, const Tensor& like) {
  const Tensor shard = make_sharded(local, layout);
  shard.set_name(like.name());
  if (requires_grad(like)) set_requires_grad(shard, true);
  return shard;
}

Dims sizes_on_rank(const layout::ShardedLayout& layout) {
  return layout::local_sizes(layout, RankContext::current().rank());
}

// This rank's local shard, without values.
Tensor local_shard(const layout::ShardedLayout& layout, DType dtype, device::Device device, const Tensor& like) {
  const NoGrad no_grad;
  const device::PurposeScope purpose(device::Purpose::parameter);
  return as_shard(empty(sizes_on_rank(layout), dtype, device), layout, like);
}

// The full sizes of a parameter on this rank: of its part, if tensor parallelism has distributed it.
Dims full_sizes(const TracedShards::Parameter& parameter) {
  return parameter.inner ? sizes_on_rank(*parameter.inner) : parameter.sizes;
}

void replace_tensors(nn::Inputs& inputs, const std::function<Tensor(const Tensor&)>& replace) {
  for (nn::Structure& value : inputs.positional) value = nn::map_tensors(value, replace);
  for (auto& [name, value] : inputs.named) value = nn::map_tensors(value, replace);
}

std::function<Tensor(const Tensor&)> cast_to(DType dtype) {
  return [dtype](const Tensor& tensor) { return is_floating(tensor.dtype()) ? ops::cast(tensor, dtype) : tensor; };
}

}  // namespace

TracedShards::TracedShards(plan::Planner& planner, Events events)
    : planner_(planner),
      events_(std::move(events)),
      buffers_({[this](const std::string& owner) { return planner_.shards().has_owner(owner); },
                [this](const std::string& owner) { return install_full(owner); }}) {}

// ---- groups ----
void TracedShards::add_group(const std::vector<nn::ModulePtr>& modules, const std::vector<plan::ModuleId>& ids,
                             std::vector<Parameter> parameters, const MeshPtr& mesh, const ShardPolicy& policy) {
  for (const plan::ModuleId id : ids) group_of_[id] = groups_.size();
  Group& group = groups_.emplace_back(Group{policy, mesh, std::move(parameters)});
  std::vector<Tensor> replaced;
  for (Parameter& parameter : group.parameters) {
    replaced.push_back(parameter.slots.front().get().tensor);
    shard_parameter(group, parameter);
  }
  // The plan still knows the full tensors. Their memory ends when nobody else refers to them.
  constexpr int num_owners = 2;  // the plan and this list
  for (const Tensor& full : replaced)
    if (full.impl_ptr().use_count() <= num_owners && full.storage().use_count() == 1) full.storage()->release();
  if (!group.parameters.empty()) reshard_before_reading(modules, ids.front(), group);
}

namespace {

// The last axis of the mesh shards. An axis before it replicates.
layout::DataParallelAxes axes_of(const DeviceMesh& mesh) {
  return {mesh.root_shape(), mesh.shape(), mesh.num_axes() - 1};
}

}  // namespace

void TracedShards::shard_parameter(const Group& group, Parameter& parameter) const {
  const Tensor full = parameter.slots.front().get().tensor;
  parameter.inner = full.layout();
  parameter.sizes = global_sizes(full);
  const layout::ShardedLayout layout =
      parameter.inner ? layout::compose(full.name(), axes_of(*group.mesh), *parameter.inner, parameter.dim,
                                        RankContext::current().rank())
                      : layout::data_parallel_layout(axes_of(*group.mesh), full.sizes(), parameter.dim);
  const bool is_meta = full.is_meta() && !is_stand_in(full.device());
  parameter.shard = local_shard(layout, full.dtype(), is_meta ? full.device() : group.policy.shard_device, full);
  events_.replaced(parameter.id, parameter.shard);
  for (const Slot& slot : parameter.slots) slot.get().tensor = slot.get().sharded = parameter.shard;
}

// The slots hold the shards before the state of a module is read, replaced, cast or moved.
void TracedShards::reshard_before_reading(const std::vector<nn::ModulePtr>& modules, plan::ModuleId first,
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

// ---- parameter slots ----
bool TracedShards::holds(const Tensor& tensor) const {
  for (const Group& group : groups_) {
    if (group.flat && group.flat->chunk.defined() && tensor.same_as(group.flat->chunk)) return true;
    for (const Parameter& parameter : group.parameters)
      if ((parameter.shard.defined() && tensor.same_as(parameter.shard)) ||
          (parameter.post_forward_shard.defined() && tensor.same_as(parameter.post_forward_shard)))
        return true;
  }
  return false;
}

void TracedShards::adopt_replaced() {
  for (Group& group : groups_) {
    if (group.flat) {
      adopt_replaced_in_unit(group);
      continue;
    }
    for (Parameter& parameter : group.parameters) {
      const Tensor now = parameter.slots.front().get().tensor;
      const auto is = [&now](const Tensor& known) { return known.defined() && now.same_as(known); };
      if (!now.defined() || is(parameter.shard) || is(parameter.post_forward_shard) || is(parameter.full)) continue;
      parameter.shard = now;
      events_.replaced(parameter.id, now);
      for (const Slot& slot : parameter.slots) slot.get().tensor = slot.get().sharded = now;
    }
  }
}

const Tensor& TracedShards::full_of(const Group& group, Parameter& parameter) {
  const Tensor& shard = parameter.shard;
  const bool casts = group.policy.param && is_floating(shard.dtype());
  const DType dtype = casts ? *group.policy.param : shard.dtype();
  if (!parameter.full.defined() || parameter.full.dtype() != dtype) {
    const bool keeps_layout = parameter.inner && !events_.is_distributed(parameter.id);
    const Dims sizes = keeps_layout ? sizes_on_rank(*parameter.inner) : parameter.sizes;
    parameter.full = without_memory(sizes, dtype, group.policy.compute_device);
    if (keeps_layout) parameter.full = make_sharded(parameter.full, parameter.inner);
    parameter.full.set_name(shard.name());
    set_accumulator(parameter.full, [this, id = parameter.id](const Tensor&, const Tensor& gradient) {
      hold_gradient(id, gradient);
      events_.gradient(id);
    });
    events_.replaced(parameter.id, parameter.full);
    events_.made_full(parameter.id, parameter.full);
  }
  const bool trains = requires_grad(trained(group, parameter));
  if (requires_grad(parameter.full) != trains) set_requires_grad(parameter.full, trains);
  return parameter.full;
}

// Each n consecutive ranks of the shard axis hold the full parameter together.
const Tensor& TracedShards::post_forward_shard_of(const Group& group, Parameter& parameter) {
  const int num_post_forward_ranks = planner_.shards().num_post_forward_ranks(parameter.id);
  const layout::ShardedLayout layout =
      layout::kept_layout(axes_of(*group.mesh), parameter.inner.get(), global_sizes(parameter.shard), parameter.dim,
                          num_post_forward_ranks, RankContext::current().rank());
  const DType dtype = full_of(group, parameter).dtype();
  const bool is_same = parameter.post_forward_shard.defined() && *parameter.post_forward_shard.layout() == layout &&
                       parameter.post_forward_shard.dtype() == dtype;
  if (!is_same) {
    const Tensor local = without_memory(sizes_on_rank(layout), dtype, group.policy.compute_device);
    parameter.post_forward_shard = as_shard(local, layout, parameter.shard);
    events_.replaced(parameter.id, parameter.post_forward_shard);
  }
  return parameter.post_forward_shard;
}

// This rank keeps the padded shards of several ranks, as the all-gather among few ranks sends them. The post-forward
// shard has no padding: it is a copy, unless its rows are these shards.
void TracedShards::hold_post_forward_shard(const Group& group, Parameter& parameter) const {
  const Tensor& shard = parameter.post_forward_shard;
  if (parameter.kept || !device::is_counted(shard.device())) return;
  const int num_shards = group.mesh->shape().sizes().back();
  const layout::ShardedParameter cut{full_sizes(parameter), parameter.dim, num_shards};
  Dims sizes = layout::padded_shard_sizes(cut);
  const int shards_per_rank = num_shards / planner_.shards().num_post_forward_ranks(parameter.id);
  sizes[cut.dim] = checked_multiply(sizes[cut.dim], shards_per_rank, "shards kept after forward");
  const auto allocate = [&shard](const Dims& of) {
    const std::size_t bytes = checked_bytes(of, size_of(shard.dtype()), "shards kept after forward");
    return device::allocate(shard.device(), bytes, device::Purpose::gathered);
  };
  parameter.kept = allocate(sizes);
  const bool is_view = cut.dim == 0 && cut.sizes[0] % num_shards == 0;
  if (!is_view) parameter.shown = allocate(shard.sizes());
}

void TracedShards::follow() {
  adopt_replaced();
  const device::Device device = groups_.empty() ? stand_in(device::Device{}) : groups_.front().policy.compute_device;
  for (Group& group : groups_) show(group);
  buffers_.follow(planner_.collectives(), device);
  deliver_gradients();
}

// Puts the tensors into the slots that the state of the planner shows.
void TracedShards::show(Group& group) {
  using SlotTensor = plan::ShardPlan::SlotTensor;
  if (group.flat && group.flat->casts_buffers && planner_.shards().root_of(group.flat->id) >= 0)
    cast_buffers(*group.flat);
  if (group.flat)
    for (const Parameter& parameter : group.parameters)
      planner_.shards().note_frozen(parameter.id, !requires_grad(trained(group, parameter)));
  if (group.flat && group.flat->shows_full) return;
  for (Parameter& parameter : group.parameters) {
    const SlotTensor shown = planner_.shards().slot_tensor(parameter.id);
    const Tensor& tensor = shown == SlotTensor::full                 ? full_of(group, parameter)
                           : shown == SlotTensor::post_forward_shard ? post_forward_shard_of(group, parameter)
                                                                     : parameter.shard;
    if (shown == SlotTensor::post_forward_shard) {
      hold_post_forward_shard(group, parameter);
    } else if (!planner_.shards().is_from_post_forward_shards(parameter.id)) {
      parameter.kept.reset();
      parameter.shown.reset();
    }
    if (!planner_.shards().is_unsharded(parameter.id)) parameter.gathered.reset();
    for (const Slot& slot : parameter.slots) slot.get().tensor = tensor;
  }
}

bool TracedShards::install_full(const std::string& owner) {
  bool is_shown = false;
  for (Group& group : groups_) {
    if (group.parameters.empty() || planner_.shards().owner(group.parameters.front().id) != owner) continue;
    for (Parameter& parameter : group.parameters) {
      if (!planner_.shards().is_unsharded(parameter.id)) continue;
      is_shown = true;
      if (parameter.gathered || !parameter.full.defined()) continue;
      const std::size_t bytes =
          checked_bytes(full_sizes(parameter), size_of(parameter.full.dtype()), "a full parameter");
      parameter.gathered = device::allocate(parameter.full.device(), bytes, device::Purpose::gathered);
    }
    for (Parameter& parameter : group.parameters)
      if (parameter.gathered) {
        parameter.kept.reset();
        parameter.shown.reset();
      }
  }
  return is_shown;
}

// ---- gradients ----
void TracedShards::hold_gradient(plan::TensorId id, const Tensor& gradient) {
  if (!device::is_counted(gradient.device())) return;
  for (Group& group : groups_)
    for (Parameter& parameter : group.parameters)
      if (parameter.id == id) parameter.fresh = gradient;
}

void TracedShards::end_backward() {
  follow();
  buffers_.end_backward();
  for (const Group& group : groups_)
    if (group.flat) note_gradients_kept_back(group);
}

// The bytes of the output of a reduction for this shard that are no gradient: the sum is added to an earlier gradient,
// or cast to another type.
std::int64_t TracedShards::bytes_beside_gradient(const Group& group, const Tensor& shard) {
  const std::int64_t added = grad(shard).defined() ? shard.num_bytes() : 0;
  const ShardPolicy& policy = group.policy;
  const DType type = policy.reduce.value_or(policy.param.value_or(shard.dtype()));
  if (group.flat || type == shard.dtype() || !(policy.shard_device == policy.compute_device)) return added;
  return added + bounded_product(shard.num_elements(), static_cast<std::int64_t>(size_of(type)));
}

// A reduced gradient has the layout and the type of the shard. Hooks on shards run after all gradients are set.
void TracedShards::deliver_gradients() {
  const NoGrad no_grad;
  const device::PurposeScope purpose(device::Purpose::gradient);
  std::vector<Tensor> given;
  std::vector<const Group*> groups_of_given;
  std::set<const Group*> units;
  for (const plan::TensorId id : planner_.shards().take_reduced())
    for (Group& group : groups_)
      for (Parameter& parameter : group.parameters) {
        if (parameter.id == id) parameter.fresh = Tensor();
        if (parameter.id != id || (group.flat && !units.insert(&group).second)) continue;
        if (group.flat) {
          const std::vector<Tensor> all = give_gradients(group);
          given.insert(given.end(), all.begin(), all.end());
        } else {
          given.push_back(parameter.shard);
        }
        groups_of_given.resize(given.size(), &group);
      }
  for (std::size_t i = 0; i < given.size();) {  // the reduction of each group has an output of its own
    const std::size_t first = i;
    std::int64_t added_bytes = 0;
    for (; i < given.size() && groups_of_given[i] == groups_of_given[first]; ++i)
      added_bytes += bytes_beside_gradient(*groups_of_given[i], given[i]);
    buffers_.hold_reduced(added_bytes, given[first].device());
  }
  for (const Tensor& shard : given)
    if (!grad(shard).defined())
      set_grad(shard, make_sharded(empty(shard.sizes(), shard.dtype(), shard.device()), shard.layout()));
  const comm::PhaseScope phase(comm::Phase::backward);  // in a run, the hooks run within the backward
  for (const Tensor& shard : given)
    if (has_post_accumulate_hooks(shard)) run_post_accumulate_hooks(shard);
}

// ---- calls ----
void TracedShards::prepare_inputs(plan::ModuleId module, nn::Inputs& inputs) {
  const auto at = group_of_.find(module);
  if (at == group_of_.end()) return;
  Group& group = groups_[at->second];
  const ShardPolicy& policy = group.policy;
  if (!in_backward()) group.moves_inputs = planner_.shards().moves_inputs(module);
  if (!device::is_host(real_device_of(policy.compute_device)) && group.moves_inputs)
    replace_tensors(inputs, [&](const Tensor& tensor) {
      return tensor.device() == policy.compute_device ? tensor : ops::to_device(tensor, policy.compute_device);
    });
  const bool casts = policy.casts_inputs || (policy.casts_inputs_of_root && planner_.shards().is_root(module));
  if (casts && policy.param) replace_tensors(inputs, cast_to(*policy.param));
}

void TracedShards::finish_outputs(plan::ModuleId module, nn::Structure& outputs) const {
  const auto at = group_of_.find(module);
  if (at == group_of_.end() || !groups_[at->second].policy.output) return;
  outputs = nn::map_tensors(outputs, cast_to(*groups_[at->second].policy.output));
}

}  // namespace lockstep::run
