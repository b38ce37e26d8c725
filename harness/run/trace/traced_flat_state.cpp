// State dicts of modules with units of flat_shard in a dry run: what is gathered, and tensors without values of the
// forms that set_state_dict_type names.
#include <algorithm>
#include <utility>

#include "engine/autograd/autograd.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/layout/compose.hpp"
#include "engine/nn/state_slots.hpp"
#include "engine/tensor/ops.hpp"
#include "harness/run/trace/stand_in.hpp"
#include "harness/run/trace/traced_shards.hpp"

namespace lockstep::run {

namespace {

layout::DataParallelAxes axes_of(const DeviceMesh& mesh) {
  return {mesh.root_shape(), mesh.shape(), mesh.num_axes() - 1};
}

Dims sizes_on_rank(const layout::ShardedLayout& layout) {
  return layout::local_sizes(layout, RankContext::current().rank());
}

Tensor empty_shard(const LayoutPtr& layout, DType dtype, device::Device device) {
  return make_sharded(empty(sizes_on_rank(*layout), dtype, device), layout);
}

Tensor on_host(const Tensor& tensor) {
  const Tensor local = raw::to_device(local_tensor(tensor), stand_in(device::Device{}));
  return tensor.is_sharded() ? make_sharded(local, tensor.layout()) : local;
}

bool keeps_state(const TracedShards::Group& group) {
  const TracedShards::FlatUnit& unit = *group.flat;
  return !unit.state.only_first_rank || !unit.settings.choices.shards || unit.rank == 0;
}

}  // namespace

void TracedShards::set_state_settings(const nn::ModulePtr& root, const StateSettings& settings) {
  for (const plan::ModuleId id : units_below(root)) groups_[group_of_.at(id)].flat->state = settings;
}

const TracedShards::StateSettings& TracedShards::state_settings(const nn::ModulePtr& root) const {
  return unit(units_below(root).front()).flat->state;
}

// The rows of the parameter, by ceiling division.
LayoutPtr TracedShards::piece_layout(const Group& group, const Parameter& parameter) {
  const layout::DataParallelAxes axes = axes_of(*group.mesh);
  return std::make_shared<const layout::ShardedLayout>(
      parameter.inner
          ? layout::compose(parameter.shard.name(), axes, *parameter.inner, 0, RankContext::current().rank())
          : layout::data_parallel_layout(axes, parameter.sizes, 0));
}

Tensor TracedShards::state_tensor(const Group& group, const Parameter& parameter, DType dtype,
                                  const StateSettings& settings) {
  const device::Device device = settings.on_host ? stand_in(device::Device{}) : group.policy.compute_device;
  const bool is_piece = settings.type == plan::StateType::sharded && group.flat->settings.choices.shards;
  if (is_piece) return empty_shard(piece_layout(group, parameter), dtype, device);
  return empty(parameter.sizes, dtype, device);
}

// In the order of the slots. The chunk stands in the place of the first parameter.
std::vector<TracedShards::StateEntry> TracedShards::state_entries(const nn::ModulePtr& root) const {
  using SlotKey = std::pair<const nn::Module*, std::size_t>;
  std::map<SlotKey, std::pair<const Group*, std::size_t>> parameters;
  std::map<const nn::Module*, const Group*> buffers;
  std::set<SlotKey> chunks;
  for (const plan::ModuleId id : units_below(root)) {
    const Group& group = unit(id);
    for (std::size_t i = 0; i < group.parameters.size(); ++i)
      for (const Slot& slot : group.parameters[i].slots) parameters[{slot.owner.get(), slot.index}] = {&group, i};
    for (const nn::ModulePtr& module : group.flat->modules) buffers[module.get()] = &group;
    if (group.flat->slot) chunks.insert({group.flat->slot->owner.get(), group.flat->slot->index});
  }
  std::map<const nn::Module*, std::string> paths;
  for (const nn::NamedModule& entry : nn::named_modules(root)) paths.emplace(entry.module.get(), entry.path);
  std::vector<StateEntry> entries;
  std::set<const Group*> given;
  for (const nn::StateSlot& slot : nn::state_slots(root)) {
    const SlotKey key{slot.owner.get(), slot.index};
    if (slot.is_buffer) {
      const auto at = buffers.find(slot.owner.get());
      entries.push_back({slot.path, &slot.owner->buffers[slot.index], {}, at == buffers.end() ? nullptr : at->second});
      continue;
    }
    if (chunks.contains(key)) continue;
    const auto at = parameters.find(key);
    if (at == parameters.end()) {
      entries.push_back({slot.path, nullptr, slot.tensor()});
      continue;
    }
    const auto [group, index] = at->second;
    const FlatUnit& unit = *group->flat;
    if (unit.state.type != plan::StateType::local || !unit.settings.choices.shards) {
      entries.push_back({slot.path, nullptr, {}, group, index});
    } else if (given.insert(group).second) {
      const std::string& path = paths.at(unit.modules.front().get());
      entries.push_back({path.empty() ? "_flat_param" : path + "._flat_param", nullptr, {}, group, 0, true});
    }
  }
  return entries;
}

nn::StateDict TracedShards::state_of(const nn::ModulePtr& root) {
  nn::settle(root);
  bool keeps_buffers = true;
  for (const plan::ModuleId id : units_below(root)) {
    const Group& group = unit(id);
    planner_.shards().reshard(id);
    keeps_buffers = keeps_buffers && keeps_state(group);
    if (group.parameters.empty()) continue;
    plan::Planner::FlatState state{id, group.flat->chunk.dtype()};
    for (const Parameter& parameter : group.parameters)
      if (parameter.inner) state.distributed.push_back(*parameter.inner);
    planner_.save_flat_state(state, group.flat->state.type);
  }
  follow();
  nn::StateDict dict;
  for (const StateEntry& entry : state_entries(root)) {
    if (!entry.group) {
      dict.emplace_back(entry.path, detach(entry.buffer ? entry.buffer->tensor : entry.held));
      continue;
    }
    const Group& group = *entry.group;
    const FlatUnit& unit = *group.flat;
    if (entry.buffer ? !keeps_buffers : !entry.is_chunk && !keeps_state(group)) continue;
    Tensor value;
    if (entry.buffer) {
      value = detach(entry.buffer->tensor);
    } else if (entry.is_chunk) {
      const layout::ShardedLayout layout = layout::data_parallel_layout(axes_of(*group.mesh), {unit.layout.total()}, 0);
      value =
          empty_shard(std::make_shared<const layout::ShardedLayout>(layout), unit.chunk.dtype(), unit.chunk.device());
    } else {
      value = state_tensor(group, group.parameters[entry.index], unit.chunk.dtype(), unit.state);
    }
    dict.emplace_back(entry.path, unit.state.on_host ? on_host(value) : value);
  }
  return dict;
}

// A shared parameter is loaded once, from the last of its entries that is given.
void TracedShards::load_state(const nn::ModulePtr& root, const TypeOfEntry& type_of) {
  nn::settle(root);
  const std::vector<StateEntry> entries = state_entries(root);
  const auto given = [&](const StateEntry& entry) -> std::optional<DType> {
    if (!entry.group || entry.buffer || entry.is_chunk) return std::nullopt;
    return type_of(entry.path, entry.group->flat->chunk.dtype());
  };
  std::map<std::pair<const Group*, std::size_t>, const StateEntry*> last;
  for (const StateEntry& entry : entries)
    if (given(entry)) last[{entry.group, entry.index}] = &entry;
  for (const StateEntry& entry : entries) {
    const std::optional<DType> dtype = given(entry);
    if (!dtype || last.at({entry.group, entry.index}) != &entry) continue;
    const Parameter& parameter = entry.group->parameters[entry.index];
    const Dims sizes = parameter.inner ? sizes_on_rank(*parameter.inner) : parameter.sizes;
    planner_.load_flat_state(entry.group->flat->id, sizes, *dtype, entry.group->flat->state.type);
  }
}

}  // namespace lockstep::run
