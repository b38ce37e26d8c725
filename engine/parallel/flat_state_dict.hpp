// State dicts of models that hold flat-sharded units. Keys and their order are those of the model before sharding.
//
//   set_state_dict_type(model, {StateDictType::sharded});
//   const nn::StateDict state = model_state_dict(model);          // all ranks together
//   load_model_state_dict(model, state);
//
//   type      entry of a parameter                         collectives of state_dict       of load_state_dict
//   full      plain, of its full sizes                     one all-gather per unit         none
//   sharded   Shard(0) on the mesh of the unit             one all-gather per unit         one all-gather per parameter
//   local     none; UNIT._flat_param holds the chunk       none                            none
//
// A unit that does not shard (no_shard) gives plain full tensors under every type. Parameters of tensor parallelism are
// full on all axes under `full`, at the cost of one more all-gather per parameter, and keep their axes under `sharded`.
// Parameters outside of the units are as nn::state_dict gives them. Buffers that compute in another type have their
// original type.
//
// After PyTorch's FullyShardedDataParallel.state_dict_type. Departures: loading full tensors communicates nothing; a
// local chunk has no padding at its end; under `local` buffers have their original type, too; before the first forward
// their values are not rounded to the type of the computation.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/nn/module.hpp"
#include "engine/nn/state_slots.hpp"
#include "engine/parallel/flat_state_dict_settings.hpp"

namespace lockstep::parallel {

// Sets the form for all units at and below the module. Throws Error when there is none, and for rank0_only with another
// type than full.
void set_state_dict_type(const nn::ModulePtr& root, const StateDictSettings& settings);
// Throws Error when the module has no unit at or below it, and when its units differ.
StateDictSettings state_dict_settings(const nn::ModulePtr& root);

// Tensors of sharded units are copies; others share their storage with the module. All ranks of the units call
// together. Throws Error during forward and backward, and within summon_full_parameters.
nn::StateDict model_state_dict(const nn::ModulePtr& root);
nn::StateDict model_state_dict(const nn::ModulePtr& root, const StateDictSettings& settings);

// What load_state_dict expects of each entry: the form, and the type and the device of the values in the model.
struct StateDictTarget {
  nn::StateTarget form;
  DType dtype;
  device::Device device;
};
std::vector<StateDictTarget> state_dict_targets(const nn::ModulePtr& root);

// Takes the form that the settings of the units name. Throws Error, before a value is written, as nn::load_state_dict
// does, and for `assign` into a module with units.
nn::LoadReport load_model_state_dict(const nn::ModulePtr& root, const nn::StateDict& state, bool strict = true,
                                     bool assign = false);
nn::LoadReport load_model_state_dict(const nn::ModulePtr& root, const nn::StateDict& state, bool strict,
                                     const StateDictSettings& settings);

}  // namespace lockstep::parallel
