// Full state dicts for sharded modules: converts them to this rank's shards, which load_state_dict expects.
//
//   load_state_dict(model, shard_state_dict(model, full));                       // every rank has the full state dict
//   load_state_dict(model, shard_state_dict(model, full, /*from_rank_0=*/true));  // only rank 0 has it
#pragma once

#include "engine/nn/module.hpp"

namespace lockstep::nn {

// Replaces each full tensor of a sharded parameter or buffer by this rank's shard. Other tensors, and names that the
// module does not have, stay unchanged. With `from_rank_0`, all ranks of the world call it together: rank 0's state
// dict is broadcast, with one broadcast per tensor (family checkpoint) on the device of the module's tensor; names that
// the module does not have get undefined tensors. Throws Error if a tensor does not have the full sizes of the module's
// tensor, with `from_rank_0` on every rank.
StateDict shard_state_dict(const ModulePtr& root, const StateDict& full, bool from_rank_0 = false);

}  // namespace lockstep::nn
