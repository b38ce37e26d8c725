// Full optimizer state dicts for sharded parameters: converts them to this rank's shards, which load_state_dict
// expects.
//
//   optimizer.load_state_dict(shard_state_dict(optimizer, full));                       // every rank has the full
//   state optimizer.load_state_dict(shard_state_dict(optimizer, full, /*from_rank_0=*/true));  // only rank 0 has it
#pragma once

#include "engine/optim/optimizer.hpp"

namespace lockstep::optim {

// Replaces each state tensor with the full sizes of its parameter by this rank's shard, with the layout and on the
// device of the parameter. Step counts, sharded tensors, and the state of parameters that the optimizer does not have
// stay unchanged. With `from_rank_0`, all ranks of the world call it together: rank 0's groups, options and tensors are
// broadcast, with one broadcast per tensor (family checkpoint). Throws Error, on every rank, if a tensor is not a
// scalar and does not have the full sizes of its parameter.
Optimizer::StateDict shard_state_dict(Optimizer& optimizer, const Optimizer::StateDict& full, bool from_rank_0 = false);

}  // namespace lockstep::optim
