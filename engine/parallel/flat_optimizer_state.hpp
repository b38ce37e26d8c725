// State dicts of optimizers over flat-sharded models, in the form of the state dicts of the model
// (flat_state_dict.hpp): by the names of the original parameters, with state of their sizes.
//
//   set_state_dict_type(model, {StateDictType::sharded});
//   const auto state = optimizer_state_dict(*adam);            // all ranks together
//   load_optimizer_state_dict(*adam, state);
//
//   type      state of a parameter                 collectives of state_dict              of load_state_dict
//   full      plain, of its full sizes             one all-gather per unit and key        none
//   sharded   Shard(0) on the mesh of the unit     one all-gather per unit and key        one all-gather per tensor
//   local     as the optimizer holds it            none                                   none
//
// A key is a name of a state tensor, such as exp_avg. Parameters that no rank has state of (frozen, or without a
// gradient so far) have no entry. The state of other parameters is as Optimizer::state_dict gives it.
//
// After PyTorch's FullyShardedDataParallel.optim_state_dict and optim_state_dict_to_load.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/optim/optimizer.hpp"
#include "engine/parallel/flat_state_dict.hpp"

namespace lockstep::parallel {

using OptimizerState = optim::Optimizer::StateDict;

// `settings`: nullopt for those of the units. Throws Error when the units of the optimizer have different settings, and
// when the ranks disagree on a step count.
OptimizerState optimizer_state_dict(optim::Optimizer& optimizer,
                                    const std::optional<StateDictSettings>& settings = std::nullopt);
// Throws Error, before a value is written, for a tensor of other sizes or another layout than that of its entry, for a
// flat parameter of which only some parameters have state, or state of several steps, and as Optimizer::load_state_dict
// does.
void load_optimizer_state_dict(optim::Optimizer& optimizer, const OptimizerState& state,
                               const std::optional<StateDictSettings>& settings = std::nullopt);
// What load_optimizer_state_dict expects of the state tensors of each parameter, by name.
std::vector<std::pair<std::string, StateDictTarget>> optimizer_state_targets(optim::Optimizer& optimizer);

// The same state with the positions of the parameters in the groups as names ("0", "1", ...), and back. `names`: of the
// parameters in the order of their positions. Throws Error for a position beyond the last name.
OptimizerState keyed_by_position(const OptimizerState& state);
OptimizerState keyed_by_name(const OptimizerState& state, const std::vector<std::string>& names);
// The names of the original parameters of the optimizer, in the order of their positions.
std::vector<std::string> original_names(optim::Optimizer& optimizer);
// The parameters of the optimizer that are divided among ranks and of which this rank has no element: no step gives
// them state here.
std::set<std::string> names_elsewhere(optim::Optimizer& optimizer);

}  // namespace lockstep::parallel
