// Whole state dicts for sharded modules: cut into the parts that this rank holds, as load_state_dict takes them.
//
//   load_state_dict(model, parts_of_whole(model, whole));                     // every rank has the whole
//   load_state_dict(model, parts_of_whole(model, whole, /*from_first=*/true));  // rank 0 has it, the others nothing
#pragma once

#include "engine/nn/module.hpp"

namespace lockstep::nn {

// Each tensor of `whole` whose place in the module is sharded becomes this rank's part; others, and names that the
// module does not have, stay as they are. With `from_first` all ranks of the world call together and get what rank 0
// has, one broadcast a tensor (family checkpoint), on the device of the place. Throws Error, with `from_first` on every
// rank, when the sizes of a tensor are not those of its place as a whole.
StateDict parts_of_whole(const ModulePtr& root, const StateDict& whole, bool from_first = false);

}  // namespace lockstep::nn
