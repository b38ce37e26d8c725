// Watching where backward has come to, without a trace in its sums.
//
//   tensors = watch_passing(tensors, [] { /* their gradients are complete */ });
#pragma once

#include <functional>
#include <vector>

#include "engine/tensor/tensor.hpp"

namespace lockstep {

// As watch_gradients(), for who wants to know when and not what: each gradient of these tensors goes on as it comes
// instead of being summed up first, so that a tensor that is also used elsewhere gets its gradient with the bits of a
// graph that nobody watches. `before` is called once, when all have come, unless none did.
std::vector<Tensor> watch_passing(std::vector<Tensor> tensors, std::function<void()> before);

}  // namespace lockstep
