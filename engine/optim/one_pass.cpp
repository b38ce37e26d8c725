#include "engine/optim/one_pass.hpp"

#include <cstddef>
#include <memory>

#include "engine/core/checked.hpp"
#include "engine/device/stream.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::optim {

namespace {

// Whether a copy of an operand that is not contiguous would miss an update of another parameter, or undo it.
bool shares_strided(const std::vector<Operand>& operands, std::size_t stride) {
  for (std::size_t i = 0; i < operands.size(); ++i) {
    const Operand& strided = operands[i];
    if (!strided.tensor.defined() || strided.tensor.is_contiguous()) continue;
    for (std::size_t j = 0; j < operands.size(); ++j) {
      const Operand& other = operands[j];
      if (i / stride != j / stride && other.tensor.defined() && (strided.written || other.written) &&
          other.tensor.storage() == strided.tensor.storage())
        return true;
    }
  }
  return false;
}

}  // namespace

void one_pass(const char* name, std::vector<Operand> operands, std::size_t stride,
              const std::function<void(kernels::Execution on, const std::vector<kernels::View>& views,
                                       const std::vector<std::size_t>& rows)>& body) {
  const std::size_t num_rows = operands.size() / stride;
  if (shares_strided(operands, stride)) [[unlikely]] {
    for (std::size_t row = 0; row < num_rows; ++row) {
      const auto begin = operands.begin() + static_cast<std::ptrdiff_t>(element_offset(row, stride));
      one_pass(name, std::vector<Operand>(begin, begin + static_cast<std::ptrdiff_t>(stride)), stride,
               [row, body](kernels::Execution on, const std::vector<kernels::View>& views,
                           const std::vector<std::size_t>&) { body(on, views, {row}); });
    }
    return;
  }
  std::vector<std::pair<Tensor, Tensor>> copied_back;  // contiguous copies and their strided originals
  for (Operand& operand : operands) {
    if (!operand.tensor.defined() || operand.tensor.is_contiguous()) continue;
    Tensor copy = raw::contiguous(operand.tensor);
    if (operand.written) copied_back.emplace_back(copy, operand.tensor);
    operand.tensor = std::move(copy);
  }
  std::vector<bool> done(num_rows, false);
  for (std::size_t first = 0; first < num_rows; ++first) {
    if (done[first]) continue;
    const device::Device device = operands[element_offset(first, stride)].tensor.device();
    const DType dtype = operands[element_offset(first, stride)].tensor.dtype();
    std::vector<std::size_t> rows;
    std::vector<device::Access> accesses;
    std::vector<kernels::View> views;
    for (std::size_t row = first; row < num_rows; ++row) {
      const Tensor& lead = operands[element_offset(row, stride)].tensor;
      if (done[row] || !(lead.device() == device) || lead.dtype() != dtype) continue;
      done[row] = true;
      if (lead.is_meta() || lead.num_elements() == 0) continue;
      rows.push_back(row);
      for (std::size_t i = 0; i < stride; ++i) {
        const auto& [tensor, written] = operands[element_offset(row, stride) + i];
        if (!tensor.defined()) {
          accesses.emplace_back();  // an access of 0 bytes has a null pointer
          views.emplace_back();
          continue;
        }
        accesses.push_back(written ? update(tensor) : read(tensor));
        views.push_back({nullptr, tensor.dtype(), tensor.sizes(), tensor.strides()});
      }
    }
    if (rows.empty()) continue;
    device::launch(device::current_stream(device), name, accesses,
                   [views = std::move(views), rows = std::move(rows), body](const device::Pointers& pointers) {
                     std::vector<kernels::View> filled = views;
                     for (std::size_t i = 0; i < filled.size(); ++i) filled[i].data = pointers.at(i);
                     body(pointers.execution(), filled, rows);
                   });
  }
  for (const auto& [copy, original] : copied_back) raw::copy_(original, copy);
  for (const Operand& operand : operands)
    if (operand.written && operand.tensor.defined()) operand.tensor.bump_version();
}

}  // namespace lockstep::optim
