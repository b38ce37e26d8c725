#include "harness/plan/flat_plan.hpp"

#include <functional>
#include <set>
#include <utility>

#include "engine/core/checked.hpp"
#include "engine/core/error.hpp"
#include "harness/plan/planner.hpp"

namespace lockstep::plan {

void apply_strategy(FlatStrategy strategy, const std::vector<Axis>& axes, ShardChoices& choices) {
  using enum FlatStrategy;
  const bool hybrid = strategy == hybrid_shard || strategy == hybrid_shard_grad_op;
  LOCKSTEP_CHECK(axes.size() == (hybrid ? 2u : 1u), "a strategy of flat_shard on ", axes.size(), " axes");
  const bool reshards = strategy == full_shard || strategy == hybrid_shard;
  FlatChoices& flat = choices.flat.emplace();
  flat.shards = strategy != no_shard && axes.back().size > 1;
  flat.stays_unsharded_without_sync = !(flat.shards && reshards);
  if (flat.shards) choices.shard = axes.back();
  if (hybrid || !flat.shards) choices.replicate = axes.front();
  choices.reshard_after_forward = {flat.shards && reshards ? Reshard::Kind::yes : Reshard::Kind::no, 0};
}

// Bottom-up. A unit has the parameters below its module that no other unit, API or ignore list has, modules first.
std::vector<Planner::FlatUnit> Planner::flat_units(ModuleId root, const std::set<ModuleId>& of_types,
                                                   const Ignored& ignored) const {
  std::vector<FlatUnit> units;
  std::set<ModuleId> outside = ignored.modules;
  std::set<TensorId> taken = ignored.parameters;
  const auto is_managed = [&](ModuleId id) { return id != root && (replicated_.contains(id) || shards_.has(id)); };
  const auto make_unit = [&](ModuleId top) {
    std::set<ModuleId> without = outside;
    for (const ModuleId id : facts_.pre_order(top))
      if (is_managed(id)) without.insert(id);
    FlatUnit& unit = units.emplace_back(FlatUnit{top, {}, facts_.pre_order(top, without)});
    for (const ModuleId id : unit.modules)
      for (const NamedTensor& parameter : facts_.module(id).parameters)
        if (!shards_.owns(parameter.id) && taken.insert(parameter.id).second) unit.parameters.push_back(parameter.id);
    outside.insert(top);
  };
  std::set<ModuleId> visited;
  const std::function<void(ModuleId)> visit = [&](ModuleId id) {
    if (outside.contains(id) || is_managed(id) || !visited.insert(id).second) return;
    for (const ModuleId child : facts_.module(id).children) visit(child);
    if (id == root || of_types.contains(id)) make_unit(id);
  };
  visit(root);
  return units;
}

void Planner::flat_shard(const FlatUnit& unit, ShardChoices choices) {
  shards_.add_group({unit.module}, unit.parameters, std::move(choices));
}

// ---- state dicts ----
void Planner::save_flat_state(const FlatState& state, StateType type) {
  const bool shards = shards_.shard_axis_of_unit(state.unit).has_value();
  if (shards && type == StateType::local) return;
  shards_.gather_flat(state.unit, state.dtype);
  if (shards && type == StateType::sharded) return;
  for (const layout::ShardedLayout& layout : state.distributed)
    tensor_parallel_.issue("", layout.mesh, gather_in_full(layout, tensor_parallel_.rank()), state.dtype);
}

void Planner::load_flat_state(ModuleId unit, const Dims& sizes, DType dtype, StateType type) {
  const std::optional<Axis> axis = shards_.shard_axis_of_unit(unit);
  if (!axis || type != StateType::sharded) return;
  const layout::ShardedLayout piece{layout::MeshShape({axis->size}, {axis->name}), {layout::shard(0)}, sizes};
  constexpr int any_member = 0;  // every rank sends a shard of the same size, with padding
  tensor_parallel_.issue("", piece.mesh, gather_in_full(piece, any_member), dtype);
}

// One broadcast of all values per axis. With several dtypes, it may contain padding between them.
void Planner::broadcast_states(const std::vector<FlatUnit>& units, const std::vector<Axis>& axes,
                               const std::string& owner) {
  std::vector<TensorId> values;
  for (const FlatUnit& unit : units) {
    values.insert(values.end(), unit.parameters.begin(), unit.parameters.end());
    for (const ModuleId module : unit.modules)
      for (const NamedTensor& buffer : facts_.module(module).buffers) values.push_back(buffer.id);
  }
  if (values.empty()) return;
  Collective broadcast;
  broadcast.family = "start_up";
  broadcast.operation = "broadcast";
  broadcast.owner = owner;
  for (const TensorId id : values) {
    const TensorFacts& value = facts_.tensor(id);
    broadcast.bytes = checked_add(broadcast.bytes, bytes_of(value.sizes, value.dtype), "plan");
    broadcast.bytes_are_least = broadcast.bytes_are_least || value.dtype != facts_.tensor(values.front()).dtype;
  }
  for (const Axis& axis : axes) {
    broadcast.axis = axis.name;
    broadcast.group_size = axis.size;
    issue()(broadcast);
  }
}

}  // namespace lockstep::plan
