// One launch over all tensors of a step: the parameters of a group that lie on one device. Only the optimizers use it.
#pragma once

#include <functional>
#include <vector>

#include "engine/kernels/view.hpp"
#include "engine/tensor/tensor.hpp"

namespace lockstep::optim {

// A tensor that an update reads, or reads and writes.
struct Operand {
  Tensor tensor;
  bool written = false;
};
// Calls `body` in one launch a device and type, with a view for each operand, `stride` of them a parameter. Rows whose
// operands are not all contiguous are made so first, and written back after. Bumps the versions of what is written.
void one_pass(
    const char* name, std::vector<Operand> operands, std::size_t stride,
    const std::function<void(const std::vector<kernels::View>& views, const std::vector<std::size_t>& rows)>& body);

}  // namespace lockstep::optim
