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
// Gradients must lie on one device and be whole on each rank. Throws Error for max_norm < 0 or kind <= 0.
Tensor clip_grad_norm(const std::vector<Tensor>& parameters, double max_norm, double kind = 2.0);

}  // namespace lockstep::optim
