#include "engine/parallel/flat_held_state.hpp"

#include <algorithm>

#include "engine/autograd/autograd.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/mesh/sharded.hpp"
#include "engine/parallel/flat_pieces.hpp"
#include "engine/parallel/flat_state_entries.hpp"
#include "engine/parallel/flat_trained.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::parallel {

namespace {

bool is_first_along_replicas(const layout::ShardedLayout& layout) {
  const auto at = layout.mesh.coordinates_of(RankContext::current().rank());
  for (std::size_t axis = 0; axis < layout.placements.size(); ++axis)
    if (layout.placements[axis].is_replicate() && at[axis] != 0) return false;
  return true;
}

// Whether the ranks of tensor parallelism hold parts of different sizes of a parameter of the unit. Later parameters
// then begin at other places in their flat parameters.
bool has_uneven_parts(const FlatParameterShards& unit) {
  for (std::size_t i = 0; i < unit.num_parameters(); ++i) {
    const LayoutPtr& inner = unit.parameter(i).inner_layout;
    if (!inner) continue;
    for (int axis = 0; axis < inner->mesh.num_axes(); ++axis)
      if (const layout::Placement& placement = inner->placements[static_cast<std::size_t>(axis)];
          placement.is_shard() && inner->sizes[placement.dim] % inner->mesh.size(axis) != 0)
        return true;
  }
  return false;
}

FlatStretch stretch_of(const FlatParameterShards& unit, std::size_t index) {
  FlatStretch stretch;
  stretch.sizes = full_sizes(unit, index);
  stretch.inner = unit.parameter(index).inner_layout;
  stretch.part = unit.flat().entries[index].sizes;
  stretch.begin = unit.stretch(index).begin;
  stretch.has_replicas = unit.settings().mesh.num_shards() < RankContext::current().world_size();
  stretch.speaks = !stretch.inner || !has_uneven_parts(unit) || is_first_along_replicas(*stretch.inner);
  return stretch;
}

// The stretch of a parameter in a chunk, which is laid out as the shard.
HeldValue held_in_chunk(const std::string& path, const FlatParameterShards& unit, std::size_t index,
                        const Tensor& chunk) {
  const layout::Stretch at = unit.stretch(index);
  return {path, slice(chunk, 0, at.offset, at.offset + at.length), stretch_of(unit, index)};
}

}  // namespace

std::vector<HeldValue> held_state(const nn::ModulePtr& root) {
  const NoGrad no_grad;
  std::vector<HeldValue> values;
  for (const StateEntry& entry : state_entries_of(root, {}).entries) {
    if (entry.unit && entry.unit->settings().mesh.is_sharded()) {
      values.push_back(held_in_chunk(entry.path, *entry.unit, entry.index, detach(entry.unit->shard())));
    } else if (entry.type && *entry.type != entry.held.dtype()) {
      values.push_back({entry.path, raw::cast(detach(entry.held), *entry.type), std::nullopt, detach(entry.held)});
    } else {
      values.push_back({entry.path, detach(entry.held)});
    }
  }
  return values;
}

namespace {

void add_state(HeldOptimizerState& state, const Trained& trained, const std::map<std::string, Tensor>& tensors) {
  const bool shards = trained.unit && trained.unit->settings().mesh.is_sharded();
  for (const Original& original : originals_of(trained)) {
    if (shards && trained.unit->stretch(original.index).length == 0) continue;
    HeldParameterState& made = state.state.emplace_back(HeldParameterState{original.name});
    for (const auto& [key, tensor] : tensors) {
      if (key == "step")
        made.step = static_cast<std::int64_t>(item(tensor));
      else if (trained.is_chunk && shards)
        made.tensors.push_back(held_in_chunk(key, *trained.unit, original.index, tensor));
      else if (trained.is_chunk)
        made.tensors.push_back({key, trained.unit->part_of(tensor, original.index)});
      else if (shards)
        made.tensors.push_back({key, local_tensor(tensor), stretch_of(*trained.unit, original.index)});
      else
        made.tensors.push_back({key, tensor});
    }
  }
}

}  // namespace

HeldOptimizerState held_optimizer_state(optim::Optimizer& optimizer) {
  const NoGrad no_grad;
  const optim::Optimizer::StateDict dict = optimizer.state_dict();
  std::map<std::string, const std::map<std::string, Tensor>*> held;
  for (const auto& [name, tensors] : dict.state) held[name] = &tensors;
  const std::vector<std::vector<Trained>> groups = trained_by(optimizer);
  HeldOptimizerState state;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    auto& [names, options] = state.groups.emplace_back();
    options = dict.groups[i].second;
    for (const Trained& one : groups[i]) {
      for (const Original& original : originals_of(one)) names.push_back(original.name);
      if (const auto at = held.find(one.name); at != held.end()) add_state(state, one, *at->second);
    }
  }
  return state;
}

std::map<std::string, std::vector<std::string>> original_names_of(optim::Optimizer& optimizer) {
  std::map<std::string, std::vector<std::string>> names;
  for (const auto& group : trained_by(optimizer))
    for (const Trained& one : group)
      for (const Original& original : originals_of(one)) names[one.name].push_back(original.name);
  return names;
}

}  // namespace lockstep::parallel
