// Full state dicts for sharded modules and optimizers: converts them to this rank's shards, which load_state_dict
// expects. Both forms work on the tree of (key, tensor, layout).
//
//   nn::load_state_dict(model, shard_state_dict(model, full));                      // every rank has the full one
//   adam->load_state_dict(shard_state_dict(*adam, full, /*from_rank_0=*/true));     // only rank 0 has it
#pragma once

#include "engine/nn/module.hpp"
#include "engine/optim/optimizer.hpp"

namespace lockstep::state {

// Replaces each full tensor of a sharded parameter or buffer by this rank's shard. Other tensors, and names that the
// module does not have, stay unchanged. With `from_rank_0`, all ranks of the world call it together: rank 0's state
// dict is broadcast, with one broadcast per tensor (family checkpoint) on the device of the module's tensor; names that
// the module does not have get undefined tensors. Throws Error if a tensor does not have the full sizes of the module's
// tensor, with `from_rank_0` on every rank. A rank then holds one full tensor at a time beside the shards.
nn::StateDict shard_state_dict(const nn::ModulePtr& root, const nn::StateDict& full, bool from_rank_0 = false);

// Replaces each state tensor with the full sizes of its parameter by this rank's shard, with the layout and on the
// device of the parameter. Step counts, sharded tensors, and the state of parameters that the optimizer does not have
// stay unchanged. With `from_rank_0`, all ranks of the world call it together: rank 0's groups, options and tensors are
// broadcast, with one broadcast per tensor (family checkpoint); the state of other parameters is left out. Throws
// Error, on every rank, if a tensor is not a scalar and does not have the full sizes of its parameter.
optim::Optimizer::StateDict shard_state_dict(optim::Optimizer& optimizer, const optim::Optimizer::StateDict& full,
                                             bool from_rank_0 = false);

}  // namespace lockstep::state
