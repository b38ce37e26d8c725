// Whole optimizer state for sharded parameters: cut into the parts that this rank trains, as load_state_dict takes
// them.
//
//   optimizer.load_state_dict(parts_of_whole(optimizer, whole));                     // every rank has the whole
//   optimizer.load_state_dict(parts_of_whole(optimizer, whole, /*from_first=*/true));  // rank 0 has it, the others
//   none
#pragma once

#include "engine/optim/optimizer.hpp"

namespace lockstep::optim {

// Each tensor of the sizes that its parameter has as a whole becomes this rank's part, laid out as the parameter, on
// its device; others (a step count, tensors that are sharded already, of parameters that the optimizer does not have)
// stay as they are. With `from_first` all ranks of the world call together and get what rank 0 has - groups and options
// too - one broadcast a tensor (family checkpoint). Throws Error, on every rank, when a tensor has neither the sizes of
// its parameter nor is a number.
Optimizer::StateDict parts_of_whole(Optimizer& optimizer, const Optimizer::StateDict& whole, bool from_first = false);

}  // namespace lockstep::optim
