// One launch over all tensors of an optimizer step (internal to engine/optim).
#pragma once

#include <functional>
#include <vector>

#include "engine/kernels/view.hpp"
#include "engine/tensor/tensor.hpp"

namespace lockstep::optim {

// A tensor that an update reads or, if `written`, reads and writes.
struct Operand {
  Tensor tensor;
  bool written = false;
};
// Calls `body` in one launch per device and type. `operands` has `stride` tensors per parameter; an undefined tensor
// gets an empty view. `body` receives the views of the launch's parameters and the indices of these parameters.
// Operands that are not contiguous are copied before the launch, and written ones copied back after it. If one of them
// shares its storage with another parameter, there is a launch per parameter, in order. Increments the versions of
// written tensors.
void one_pass(const char* name, std::vector<Operand> operands, std::size_t stride,
              const std::function<void(kernels::Execution on, const std::vector<kernels::View>& views,
                                       const std::vector<std::size_t>& rows)>& body);

}  // namespace lockstep::optim
