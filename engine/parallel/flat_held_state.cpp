#include "engine/parallel/flat_held_state.hpp"

#include <algorithm>
#include <map>

#include "engine/autograd/autograd.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/mesh/sharded.hpp"
#include "engine/parallel/flat_pieces.hpp"
#include "engine/parallel/flat_state_entries.hpp"
#include "engine/parallel/flat_trained.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::parallel {

namespace {

// Whether the ranks of tensor parallelism hold parts of different sizes under a layout.
bool has_uneven_parts(const layout::ShardedLayout& inner) {
  const std::vector<int>& ranks = inner.mesh.ranks();
  return std::any_of(ranks.begin(), ranks.end(), [&inner, first = local_sizes(inner, ranks.front())](int rank) {
    return local_sizes(inner, rank) != first;
  });
}

// Whether a parameter is sharded over the axis of that name. Another one is replicated over it, also a plain one.
bool is_sharded_over(const LayoutPtr& inner, const std::string& axis) {
  if (!inner) return false;
  const std::vector<std::string>& names = inner->mesh.names();
  const auto at = std::find(names.begin(), names.end(), axis);
  return at != names.end() && inner->placements[static_cast<std::size_t>(at - names.begin())].is_shard();
}

// Whether this rank is the first of the ranks of tensor parallelism that hold replicas of the parameter at different
// places of their flat parameters, because they hold parts of different sizes of a parameter of the unit. All meshes
// are slices of one root mesh, so the name of an axis identifies it.
bool is_first_along_moved_replicas(const FlatParameterShards& unit, std::size_t index) {
  for (std::size_t i = 0; i < unit.num_parameters(); ++i) {
    const LayoutPtr& inner = unit.parameter(i).inner_layout;
    if (!inner || !has_uneven_parts(*inner)) continue;
    const auto at = inner->mesh.coordinates_of(RankContext::current().rank());
    for (std::size_t axis = 0; axis < at.size(); ++axis)
      if (at[axis] != 0 && !is_sharded_over(unit.parameter(index).inner_layout, inner->mesh.names()[axis]))
        return false;
  }
  return true;
}

FlatStretch stretch_of(const FlatParameterShards& unit, std::size_t index) {
  FlatStretch stretch;
  stretch.sizes = full_sizes(unit, index);
  stretch.inner = unit.parameter(index).inner_layout;
  stretch.part = unit.flat().entries[index].sizes;
  stretch.begin = unit.stretch(index).begin;
  stretch.has_replicas = unit.settings().mesh.num_shards() < RankContext::current().world_size();
  stretch.speaks = is_first_along_moved_replicas(unit, index);
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
  std::map<const TensorImpl*, Tensor> casts;  // one per buffer, also for a shared one
  for (const StateEntry& entry : state_entries_of(root, {}).entries) {
    if (entry.unit && entry.unit->settings().mesh.is_sharded()) {
      values.push_back(held_in_chunk(entry.path, *entry.unit, entry.index, detach(entry.unit->shard())));
    } else if (entry.type && *entry.type != entry.held.dtype()) {
      Tensor& cast = casts[&entry.held.impl()];
      if (!cast.defined()) cast = raw::cast(detach(entry.held), *entry.type);
      values.push_back({entry.path, cast, std::nullopt, detach(entry.held)});
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
