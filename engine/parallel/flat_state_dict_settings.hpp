// The form of the state dicts of flat-sharded units.
#pragma once

#include <string_view>

namespace lockstep::parallel {

enum class StateDictType {
  full,     // every parameter in full, under its own name
  sharded,  // every parameter as a sharded tensor, Shard(0) over the mesh of its unit
  local,    // the chunk of each unit, named `_flat_param`
};
std::string_view name_of(StateDictType type);

struct StateDictSettings {
  StateDictType type = StateDictType::full;
  bool cpu = false;         // on the host
  bool rank0_only = false;  // only the first rank of each shard axis has entries of the units; goes with full
  friend bool operator==(const StateDictSettings&, const StateDictSettings&) = default;
};

}  // namespace lockstep::parallel
