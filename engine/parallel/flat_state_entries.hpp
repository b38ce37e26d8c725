// The entries of the state dict of a model with flat-sharded units, and what each stands for.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/parallel/flat_parameter_shards.hpp"
#include "engine/parallel/flat_units.hpp"

namespace lockstep::parallel {

// An entry of the state dict of a model with flat-sharded units.
struct StateEntry {
  std::string path;
  Tensor held;                                // in the slot; undefined for a chunk
  std::shared_ptr<FlatParameterShards> unit;  // null: not of a flat parameter
  std::size_t index = 0;                      // of the parameter in the unit
  bool is_chunk = false;                      // the flat parameter itself
  bool is_managed = false;                    // a buffer of a unit
  std::optional<DType> type{};                // of a buffer that computes in another one: its original type
};

// The entries of a state dict in their order, and the units in the order of their all-gathers.
struct StateEntries {
  std::vector<FlatUnitShards> units;
  std::vector<StateEntry> entries;
  StateDictSettings settings;
};

// Whether the entry of a unit is its chunk.
bool gives_chunk(const FlatParameterShards& unit, const StateDictSettings& settings);
// Whether this rank has entries of the unit: under rank0_only the first rank of its shard axis does.
bool keeps_entries(const FlatParameterShards& unit, const StateDictSettings& settings);
// Settles the module. Throws Error as settled_flat_units_below() does, and for a module whose parameters a unit above
// it shards.
StateEntries state_entries_of(const nn::ModulePtr& root, const StateDictSettings& settings);

}  // namespace lockstep::parallel
