// The flat-sharded units of a module tree.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/nn/module.hpp"

namespace lockstep::parallel {

class FlatParameterShards;

struct FlatUnitShards {
  std::string path;  // of the module of the unit, "" for the root itself
  std::shared_ptr<FlatParameterShards> shards;
};
// The units with parameters at and below the module, in module pre-order.
std::vector<FlatUnitShards> flat_units_below(const nn::ModulePtr& module);
bool holds_flat_units(const nn::ModulePtr& module);
// flat_units_below(), without `recurse` that of the module alone, with the shards in the slots. Throws Error during
// forward and backward, and for a unit whose full parameters are summoned.
std::vector<FlatUnitShards> settled_flat_units_below(const nn::ModulePtr& module, bool recurse = true);

// ---- from a trained tensor to its unit ----
struct FlatMember {
  std::shared_ptr<FlatParameterShards> unit;  // null: none
  std::size_t index = 0;                      // among GroupShards::trained()
};
// Of the current rank. `module`: that of the unit.
void register_flat_unit(const std::shared_ptr<FlatParameterShards>& unit, const nn::ModulePtr& module);
nn::ModulePtr module_of(const FlatParameterShards& unit);  // null if it is gone
// The units of the current rank that are alive, with their modules.
std::vector<std::pair<std::shared_ptr<FlatParameterShards>, nn::ModulePtr>> living_flat_units();
// Throws Error when a parameter of the module is the stretch of a flat parameter: its initial values cannot be drawn.
void refuse_stretches(const nn::Module& module);
// The owner of the unit that shows its full parameters and has this tensor in a slot, empty if there is none. A rank
// that gets no full parameters has stretches in the slots.
std::string owner_of_summoned(const Tensor& tensor);
// The tensors that the units of the current rank train.
std::map<const TensorImpl*, FlatMember> flat_members();

}  // namespace lockstep::parallel
