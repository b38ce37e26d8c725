#include "engine/parallel/flat_state_entries.hpp"

#include <map>
#include <set>
#include <utility>

#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"
#include "engine/nn/state_slots.hpp"
#include "engine/parallel/flat_pieces.hpp"
#include "engine/parallel/shard_state.hpp"

namespace lockstep::parallel {

bool gives_chunk(const FlatParameterShards& unit, const StateDictSettings& settings) {
  return settings.type == StateDictType::local && unit.settings().mesh.is_sharded();
}

bool keeps_entries(const FlatParameterShards& unit, const StateDictSettings& settings) {
  if (!settings.rank0_only || defect_armed(Defect::flat_state_on_every_rank)) return true;
  return unit.settings().mesh.shard_rank() == 0;
}

namespace {

using SlotKey = std::pair<const nn::Module*, std::size_t>;

// Buffers of units, with the original type of those that compute in another one.
std::map<SlotKey, std::optional<DType>> managed_buffers(const nn::ModulePtr& root) {
  std::map<SlotKey, std::optional<DType>> found;
  for (const nn::NamedModule& entry : nn::named_modules(root)) {
    const ShardStatePtr state = shard_state_of(*entry.module);
    if (!state || state->settings().api != flat_shard_name) continue;
    for (const UnitBuffer& buffer : state->settings().buffers)
      if (const nn::ModulePtr owner = buffer.owner.lock()) found.try_emplace({owner.get(), buffer.slot});
    for (const UnitBuffer& buffer : state->cast_buffers())
      if (const nn::ModulePtr owner = buffer.owner.lock())
        if (!defect_armed(Defect::flat_buffers_saved_as_computed)) found[{owner.get(), buffer.slot}] = buffer.original;
  }
  return found;
}

// The owners of the units that shard the parameters of the slots.
std::map<SlotKey, std::string> owners_of_slots() {
  std::map<SlotKey, std::string> owners;
  for (const auto& [unit, module] : living_flat_units()) {
    if (!unit->settings().mesh.is_sharded()) continue;
    for (std::size_t i = 0; i < unit->num_parameters(); ++i)
      for (const ParameterSlotRef& slot : unit->parameter(i).slots)
        owners[{slot.owner.lock().get(), slot.slot}] = unit->settings().owner;
  }
  return owners;
}

}  // namespace

StateEntries state_entries_of(const nn::ModulePtr& root, const StateDictSettings& settings) {
  StateEntries made{settled_flat_units_below(root), {}, settings};  // refuses before anything is resharded
  nn::settle(root);
  std::map<SlotKey, std::pair<const FlatUnitShards*, std::size_t>> parameters;
  std::set<SlotKey> flat_slots;
  for (const FlatUnitShards& unit : made.units)
    for (std::size_t i = 0; i < unit.shards->num_parameters(); ++i)
      for (const ParameterSlotRef& slot : unit.shards->parameter(i).slots)
        parameters[{slot.owner.lock().get(), slot.slot}] = {&unit, i};
  const auto buffers = managed_buffers(root);
  const auto owners = owners_of_slots();
  std::set<const FlatParameterShards*> chunks;
  for (const nn::StateSlot& slot : nn::state_slots(root)) {
    const SlotKey key{slot.owner.get(), slot.index};
    if (slot.is_buffer) {
      const auto managed = buffers.find(key);
      made.entries.push_back({slot.path, slot.tensor(), nullptr, 0, false, managed != buffers.end(),
                              managed != buffers.end() ? managed->second : std::nullopt});
      continue;
    }
    if (is_flat_slot(made.units, slot)) continue;
    const auto at = parameters.find(key);
    if (at == parameters.end()) {
      if (const auto above = owners.find(key); above != owners.end())
        throw Error(str("the state of ", root->type(), ": `", slot.path, "` is a part of the flat parameter of ",
                        above->second, ", a unit above it"),
                    "give the module of that unit, or one above it");
      made.entries.push_back({slot.path, slot.tensor(), nullptr});
      continue;
    }
    const FlatUnitShards& unit = *at->second.first;
    if (!gives_chunk(*unit.shards, settings))
      made.entries.push_back({slot.path, slot.tensor(), unit.shards, at->second.second});
    else if (chunks.insert(unit.shards.get()).second)
      made.entries.push_back(
          {unit.path.empty() ? "_flat_param" : unit.path + "._flat_param", {}, unit.shards, 0, true});
  }
  return made;
}

}  // namespace lockstep::parallel
