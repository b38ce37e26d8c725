// Observing the progress of backward without changing the order in which gradients are summed, and the operations of a
// rank.
//
//   tensors = watch_passing(tensors, [] { /* their gradients are complete */ });
//   const OperationWatch watch([](const char* name, auto& inputs, auto& results) { ... });
#pragma once

#include <functional>
#include <vector>

#include "engine/tensor/tensor.hpp"

namespace lockstep {

// As watch_gradients(), but `before` gets no gradients. Each gradient of these tensors is passed on as it arrives
// instead of being summed first. So a tensor that has other uses gets the same bits as in a graph without the watch.
// `before` is called once per backward, when all gradients have arrived, and not at all when none arrived.
std::vector<Tensor> watch_passing(std::vector<Tensor> tensors, std::function<void()> before);

// Called with the name, the differentiable inputs and the results of an operation. Both lists may contain undefined
// tensors.
using SeenOperation =
    std::function<void(const char* name, const std::vector<Tensor>& inputs, const std::vector<Tensor>& results)>;
// Within the scope `seen` is called for every differentiable operation of this rank, recorded or not, backward
// excepted. It must not perform operations itself. Of nested scopes the innermost applies.
class OperationWatch {
 public:
  explicit OperationWatch(SeenOperation seen);
  ~OperationWatch();
  OperationWatch(const OperationWatch&) = delete;
  OperationWatch& operator=(const OperationWatch&) = delete;

 private:
  SeenOperation seen_;
  const SeenOperation* previous_;
};

}  // namespace lockstep
