// The functional activation checkpoint (engine/autograd/checkpoint.hpp) for what modules take and give: arguments and
// outputs of any structure.
//
//   Value h = checkpoint([layer](const Inputs& in) { return layer->call(in); }, Inputs{{x}, {}});
#pragma once

#include <functional>

#include "engine/autograd/checkpoint.hpp"
#include "engine/nn/module.hpp"

namespace lockstep::nn {

// function(inputs); in backward the function runs again. It should hold no tensors itself.
Value checkpoint(const std::function<Value(const Inputs&)>& function, const Inputs& inputs,
                 const CheckpointOptions& options = {});

}  // namespace lockstep::nn
