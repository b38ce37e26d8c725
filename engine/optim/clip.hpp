// Clipping gradients by the norm of all of them together.
//
//   const Tensor norm = clip_grad_norm(parameters, 1.0);   // before the step
#pragma once

#include <vector>

#include "engine/tensor/tensor.hpp"

namespace lockstep::optim {

// Multiplies every gradient by min(1, max_norm / (norm + 1e-6)), also where that is 1, and gives the norm before it: a
// scalar on the device of the gradients, of float32 or wider. `kind` is the p of the norm, infinity for the largest
// magnitude. Nothing waits for the device. Parameters without a gradient do not count; without any the norm is 0.
// Gradients must lie on one device. Of sharded ones each rank adds up its parts, and the sums of all parameters
// together go through one all_reduce a mesh axis that cuts any of them (family tensor_parallel, the inner axis first),
// none for axes that only replicate: the norm is then that of the whole gradients, the same on all ranks. Plain ones,
// which are whole on each rank, may be among them. Throws Error for max_norm < 0, kind <= 0 and partial gradients.
Tensor clip_grad_norm(const std::vector<Tensor>& parameters, double max_norm, double kind = 2.0);

}  // namespace lockstep::optim
