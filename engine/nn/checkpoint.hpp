// The activation checkpoint (engine/autograd/checkpoint.hpp) for functions whose inputs and outputs are structures.
//
//   Structure h = checkpoint([layer](const Inputs& in) { return layer->call(in); }, Inputs{{x}, {}});
#pragma once

#include <functional>

#include "engine/autograd/checkpoint.hpp"
#include "engine/nn/module.hpp"

namespace lockstep::nn {

// Returns function(inputs), and runs the function again in backward. The function should not hold tensors itself.
Structure checkpoint(const std::function<Structure(const Inputs&)>& function, const Inputs& inputs,
                     const CheckpointOptions& options = {});

}  // namespace lockstep::nn
