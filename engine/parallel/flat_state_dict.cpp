#include "engine/parallel/flat_state_dict.hpp"

#include <map>
#include <memory>
#include <utility>

#include "engine/autograd/autograd.hpp"
#include "engine/core/error.hpp"
#include "engine/mesh/sharded.hpp"
#include "engine/parallel/flat_parameter_shards.hpp"
#include "engine/parallel/flat_pieces.hpp"
#include "engine/parallel/flat_state_entries.hpp"
#include "engine/parallel/flat_units.hpp"
#include "engine/parallel/shard_state.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::parallel {

std::string_view name_of(StateDictType type) {
  static constexpr const char* names[] = {"full", "sharded", "local"};
  return names[static_cast<int>(type)];
}

void set_state_dict_type(const nn::ModulePtr& root, const StateDictSettings& settings) {
  if (settings.rank0_only && settings.type != StateDictType::full)
    throw Error(str("set_state_dict_type: rank0_only goes with full state dicts, not with ", name_of(settings.type)),
                "give `type: full`");
  const auto units = flat_units_below(root);
  if (units.empty())
    throw Error(str("set_state_dict_type: ", root->type(), " has no flat-sharded unit"), "apply flat_shard first");
  for (const FlatUnitShards& unit : units) unit.shards->state_dict = settings;
}

StateDictSettings state_dict_settings(const nn::ModulePtr& root) {
  const auto units = flat_units_below(root);
  if (units.empty())
    throw Error(str("state_dict_type: ", root->type(), " has no flat-sharded unit"), "apply flat_shard first");
  for (const FlatUnitShards& unit : units)
    if (!(unit.shards->state_dict == units.front().shards->state_dict))
      throw Error(str("All FSDP modules must have the same state dict settings: ",
                      units.front().shards->settings().owner, " has ", name_of(units.front().shards->state_dict.type),
                      ", ", unit.shards->settings().owner, " has ", name_of(unit.shards->state_dict.type)),
                  "set the type of the outermost module");
  return units.front().shards->state_dict;
}

namespace {

using Entry = StateEntry;
using Inventory = StateEntries;

LayoutPtr layout_of(const Entry& entry, const StateDictSettings& settings) {
  if (!entry.unit) return entry.held.layout();
  if (entry.is_chunk) return chunk_layout(*entry.unit);
  const bool sharded = settings.type == StateDictType::sharded && entry.unit->settings().mesh.is_sharded();
  return sharded ? piece_layout(*entry.unit, entry.index) : nullptr;
}

StateDictTarget target_of(const Entry& entry, const StateDictSettings& settings) {
  const LayoutPtr layout = layout_of(entry, settings);
  if (!entry.unit)
    return {{entry.path, global_sizes(entry.held), layout, !entry.held.is_meta()},
            entry.type.value_or(entry.held.dtype()),
            entry.held.device()};
  const FlatParameterShards& unit = *entry.unit;
  return {{entry.path, entry.is_chunk ? layout->sizes : full_sizes(unit, entry.index), layout, !unit.shard().is_meta()},
          unit.shard().dtype(),
          unit.settings().device};
}

// The entries of one unit, by parameter.
std::vector<Tensor> values_of(const FlatParameterShards& unit, const StateDictSettings& settings) {
  const bool is_sharded = unit.settings().mesh.is_sharded();
  const Tensor flat = is_sharded ? unit.gather_flat(unit.shard()) : detach(unit.shard());
  const bool keeps = keeps_entries(unit, settings);
  std::vector<Tensor> values;
  for (std::size_t i = 0; i < unit.num_parameters(); ++i) {
    const Tensor part = unit.part_of(flat, i);
    const Tensor made = is_sharded && settings.type == StateDictType::sharded ? piece_of(unit, i, part) : full_of(part);
    values.push_back(keeps ? made : Tensor());
  }
  return values;
}

Tensor chunk_of(const FlatParameterShards& unit) {
  const LayoutPtr layout = chunk_layout(unit);
  return make_sharded(slice(detach(unit.shard()), 0, 0, local_length(unit)), layout);
}

bool keeps_buffers(const Inventory& inventory) {
  for (const FlatUnitShards& unit : inventory.units)
    if (unit.shards->settings().mesh.is_sharded()) return keeps_entries(*unit.shards, inventory.settings);
  return true;
}

nn::StateDict state_dict_of(const Inventory& inventory) {
  const StateDictSettings& settings = inventory.settings;
  std::map<const FlatParameterShards*, std::vector<Tensor>> values;
  for (const FlatUnitShards& unit : inventory.units)
    if (!gives_chunk(*unit.shards, settings)) values[unit.shards.get()] = values_of(*unit.shards, settings);
  const bool has_buffers = keeps_buffers(inventory);
  nn::StateDict state;
  for (const Entry& entry : inventory.entries) {
    Tensor value;
    if (entry.is_chunk) {
      value = chunk_of(*entry.unit);
    } else if (entry.unit) {
      value = values.at(entry.unit.get())[entry.index];
      if (!value.defined()) continue;
    } else {
      if (entry.is_managed && !has_buffers) continue;
      value = detach(entry.held);
      if (entry.type) value = raw::cast(value, *entry.type);
    }
    state.emplace_back(entry.path, settings.cpu && (entry.unit || entry.is_managed) ? on_host(value) : value);
  }
  return state;
}

// Writes an entry of a unit.
void write(const Entry& entry, const Tensor& given, const StateDictSettings& settings) {
  const FlatParameterShards& unit = *entry.unit;
  const Tensor shard = detach(unit.shard());
  if (entry.is_chunk) return raw::copy_(slice(shard, 0, 0, local_length(unit)), local_tensor(given));
  const bool sharded = settings.type == StateDictType::sharded && unit.settings().mesh.is_sharded();
  const Tensor full = sharded ? full_of_piece(unit, entry.index, given) : local_of_full(unit, entry.index, given);
  write_stretch(unit, entry.index, shard, full);
}

nn::LoadReport load_into(const nn::ModulePtr& root, const Inventory& inventory, const nn::StateDict& state,
                         bool strict) {
  std::vector<nn::StateTarget> targets;
  for (const Entry& entry : inventory.entries) targets.push_back(target_of(entry, inventory.settings).form);
  nn::LoadReport report = nn::check_state_dict(root->type(), targets, state, strict);
  std::map<std::string, const Tensor*> given;
  for (const auto& [name, tensor] : state) given[name] = &tensor;
  // A shared parameter has several entries. As into a plain model, the last one counts.
  std::map<std::pair<const FlatParameterShards*, std::size_t>, const Entry*> last;
  for (const Entry& entry : inventory.entries)
    if (entry.unit && given.contains(entry.path)) last[{entry.unit.get(), entry.index}] = &entry;
  for (const Entry& entry : inventory.entries) {
    const auto found = given.find(entry.path);
    if (found == given.end()) continue;
    if (!entry.unit)
      raw::copy_(entry.held, *found->second);
    else if (last.at({entry.unit.get(), entry.index}) == &entry)
      write(entry, *found->second, inventory.settings);
  }
  return report;
}

}  // namespace

nn::StateDict model_state_dict(const nn::ModulePtr& root, const StateDictSettings& settings) {
  const NoGrad no_grad;
  return state_dict_of(state_entries_of(root, settings));
}

nn::StateDict model_state_dict(const nn::ModulePtr& root) {
  if (!holds_flat_units(root)) return nn::state_dict(root);
  return model_state_dict(root, state_dict_settings(root));
}

std::vector<StateDictTarget> state_dict_targets(const nn::ModulePtr& root) {
  const bool has_units = holds_flat_units(root);
  const StateDictSettings settings = has_units ? state_dict_settings(root) : StateDictSettings{};
  std::vector<StateDictTarget> targets;
  for (const Entry& entry : state_entries_of(root, settings).entries) targets.push_back(target_of(entry, settings));
  return targets;
}

nn::LoadReport load_model_state_dict(const nn::ModulePtr& root, const nn::StateDict& state, bool strict,
                                     const StateDictSettings& settings) {
  const NoGrad no_grad;
  return load_into(root, state_entries_of(root, settings), state, strict);
}

nn::LoadReport load_model_state_dict(const nn::ModulePtr& root, const nn::StateDict& state, bool strict, bool assign) {
  if (!holds_flat_units(root)) return nn::load_state_dict(root, state, strict, assign);
  if (assign)
    throw Error(str("load_state_dict into ", root->type(), ": `assign` would replace views of a flat parameter"),
                "load without `assign`, or before flat_shard");
  return load_model_state_dict(root, state, strict, state_dict_settings(root));
}

}  // namespace lockstep::parallel
