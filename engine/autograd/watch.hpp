// Observing the progress of backward without changing the order in which gradients are summed.
//
//   tensors = watch_passing(tensors, [] { /* their gradients are complete */ });
#pragma once

#include <functional>
#include <vector>

#include "engine/tensor/tensor.hpp"

namespace lockstep {

// As watch_gradients(), but `before` gets no gradients. Each gradient of these tensors is passed on as it arrives
// instead of being summed first. So a tensor that has other uses gets the same bits as in a graph without the watch.
// `before` is called once per backward, when all gradients have arrived, and not at all when none arrived.
std::vector<Tensor> watch_passing(std::vector<Tensor> tensors, std::function<void()> before);

}  // namespace lockstep
