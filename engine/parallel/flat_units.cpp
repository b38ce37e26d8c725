#include "engine/parallel/flat_units.hpp"

#include <optional>

#include "engine/autograd/autograd.hpp"
#include "engine/autograd/grad_of_peers.hpp"
#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/optim/grad_scaler.hpp"
#include "engine/parallel/flat_parameter_shards.hpp"
#include "engine/parallel/shard_state.hpp"

namespace lockstep::parallel {

namespace {

template <class Visit>
void visit_units(const nn::ModulePtr& module, const Visit& visit) {
  for (const nn::NamedModule& entry : nn::named_modules(module)) {
    const ShardStatePtr state = shard_state_of(*entry.module);
    if (!state || state->settings().api != flat_shard_name || !state->group()) continue;
    visit(entry.path, *state);
  }
}

FlatUnitShards unit_of(const std::string& path, const ShardState& state) {
  return {path, std::static_pointer_cast<FlatParameterShards>(state.group()->shared_shards())};
}

}  // namespace

std::vector<FlatUnitShards> flat_units_below(const nn::ModulePtr& module) {
  std::vector<FlatUnitShards> units;
  visit_units(module, [&](const std::string& path, const ShardState& state) { units.push_back(unit_of(path, state)); });
  return units;
}

bool holds_flat_units(const nn::ModulePtr& module) { return !flat_units_below(module).empty(); }

std::vector<FlatUnitShards> settled_flat_units_below(const nn::ModulePtr& module, bool recurse) {
  std::vector<FlatUnitShards> units;
  visit_units(module, [&](const std::string& path, const ShardState& state) {
    if (!recurse && !path.empty()) return;
    if (state.context->in_forward() || in_backward())
      throw Error("Cannot manually unshard parameters during forward/backward",
                  str("summon or save the parameters of ", state.owner(), " before or after it"));
    units.push_back(unit_of(path, state));
    if (units.back().shards->shows_full())
      throw Error("Cannot manually unshard parameters when already unsharding parameters",
                  str("leave the summon_full_parameters that holds ", state.owner(), " first"));
    state.group()->refuse_replaced_leaves();
    state.group()->reshard();
    state.group()->adopt_slots();
  });
  return units;
}

namespace {

struct LivingUnits {
  explicit LivingUnits(RankContext&) {}
  struct Unit {
    std::weak_ptr<FlatParameterShards> shards;
    std::weak_ptr<nn::Module> module;
  };
  std::vector<Unit> units;
};

// The shard axis of the units that shard, and the axes of tensor parallelism below all units.
std::vector<layout::MeshShape> meshes_of_stretches(optim::Optimizer& optimizer) {
  std::vector<layout::MeshShape> meshes;
  if (defect_armed(Defect::flat_scaler_of_one_rank)) [[unlikely]]
    return meshes;
  const std::map<const TensorImpl*, FlatMember> members = flat_members();
  for (const optim::Group& group : optimizer.groups())
    for (const optim::ParameterRef& parameter : group.parameters) {
      const auto at = members.find(&parameter.get().impl());
      if (at == members.end()) continue;
      const FlatParameterShards& unit = *at->second.unit;
      if (const ShardMesh& mesh = unit.settings().mesh; mesh.is_sharded()) {
        const std::string axis = mesh.mesh.shape().names()[static_cast<std::size_t>(mesh.shard_axis)];
        meshes.push_back(mesh.mesh.slice({axis}).shape());
      }
      for (std::size_t i = 0; i < unit.num_parameters(); ++i)
        if (const LayoutPtr& inner = unit.parameter(i).inner_layout) meshes.push_back(inner->mesh);
    }
  return meshes;
}

// A step changes the shards of the ranks that hold elements of a parameter with a gradient. The others note it.
void note_step(optim::Optimizer&, const optim::Group& group) {
  std::optional<std::map<const TensorImpl*, FlatMember>> members;  // made if this rank has something to note
  for (const optim::ParameterRef& parameter : group.parameters) {
    const Tensor tensor = parameter.get();
    // The optimizer itself has noted the step of a parameter with a gradient.
    if (tensor.num_elements() > 0 || grad(tensor).defined() || !has_grad_of_peers(tensor)) continue;
    if (!members) members = flat_members();
    if (const auto at = members->find(&tensor.impl()); at != members->end()) at->second.unit->note_step_elsewhere();
  }
}

}  // namespace

void register_flat_unit(const std::shared_ptr<FlatParameterShards>& unit, const nn::ModulePtr& module) {
  auto& units = RankContext::current().service<LivingUnits>().units;
  std::erase_if(units, [](const auto& one) { return one.shards.expired(); });
  units.push_back({unit, module});
  RankContext::current().service<optim::MeshesOfParts>().find = meshes_of_stretches;
  RankContext::current().service<optim::StepObserver>().stepped = note_step;
}

std::vector<std::pair<std::shared_ptr<FlatParameterShards>, nn::ModulePtr>> living_flat_units() {
  std::vector<std::pair<std::shared_ptr<FlatParameterShards>, nn::ModulePtr>> living;
  if (!RankContext::current().has_service<LivingUnits>()) return living;
  for (const auto& one : RankContext::current().service<LivingUnits>().units)
    if (auto unit = one.shards.lock()) living.emplace_back(std::move(unit), one.module.lock());
  return living;
}

void refuse_stretches(const nn::Module& module) {
  for (const auto& [unit, at] : living_flat_units()) {
    if (!unit->settings().mesh.is_sharded() || unit->holds_full()) continue;
    for (std::size_t i = 0; i < unit->num_parameters(); ++i)
      for (const ParameterSlotRef& slot : unit->parameter(i).slots)
        if (slot.owner.lock().get() == &module)
          throw Error(str("reset_parameters: `", slot.get().name, "` of a ", module.type(),
                          " is the stretch of a flat parameter"),
                      "reset it within summon_full_parameters, or before flat_shard");
  }
}

std::string owner_of_summoned(const Tensor& tensor) {
  for (const auto& [unit, module] : living_flat_units())
    for (std::size_t i = 0; unit->shows_full() && i < unit->num_parameters(); ++i)
      if (unit->parameter(i).slots.front().get().tensor.same_as(tensor)) return unit->settings().owner;
  return "";
}

std::map<const TensorImpl*, FlatMember> flat_members() {
  std::map<const TensorImpl*, FlatMember> members;
  for (const auto& [unit, module] : living_flat_units())
    for (std::size_t i = 0; i < unit->num_trained(); ++i) members[&unit->trained(i).impl()] = {unit, i};
  return members;
}

nn::ModulePtr module_of(const FlatParameterShards& unit) {
  for (const auto& [living, module] : living_flat_units())
    if (living.get() == &unit) return module;
  return nullptr;
}

}  // namespace lockstep::parallel
