// Clips gradients by their joint norm.
//
//   const Tensor norm = clip_grad_norm(parameters, 1.0);   // before the step
#pragma once

#include <vector>

#include "engine/tensor/tensor.hpp"

namespace lockstep::optim {

// Multiplies every gradient by min(1, max_norm / (norm + 1e-6)) and returns the norm before clipping: a scalar on the
// device of the gradients, of float32 or wider. `kind` is the p of the norm; infinity selects the largest magnitude.
// The host does not wait for the device. Parameters without a gradient are skipped; the norm of no gradients is 0. All
// gradients are on one device.
//
// For sharded gradients the norm is that of the full gradients and the same on all ranks. Each rank sums over its
// shards. The sums of all parameters are then reduced with one all_reduce per shard axis (family tensor_parallel,
// innermost axis first); replicate axes need none. Plain gradients, which are full on each rank, may be among them. All
// ranks call together. Throws Error for max_norm < 0, kind <= 0 and partial gradients.
Tensor clip_grad_norm(const std::vector<Tensor>& parameters, double max_norm, double kind = 2.0);

}  // namespace lockstep::optim
