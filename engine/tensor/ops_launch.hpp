// Launches kernels on tensors; for the ops*.cpp of this folder. One call declares the memory that is read and written,
// passes views of the operands to the kernel, and does nothing on meta.
//
//   Tensor out = empty(a.sizes(), a.dtype(), a.device());
//   run_kernel("sqrt", kernels::sqrt, out, a);
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <utility>

#include "engine/device/stream.hpp"
#include "engine/kernels/view.hpp"
#include "engine/tensor/tensor.hpp"

namespace lockstep::raw {

inline kernels::View view_of(const Tensor& tensor) {
  return {nullptr, tensor.dtype(), tensor.sizes(), tensor.strides()};
}

template <class Kernel, class... Operands>
void run_kernel_at(const char* name, const Kernel& kernel, const device::Access& out_access, const Tensor& out,
                   const Operands&... operands) {
  constexpr std::size_t count = 1 + sizeof...(Operands);
  const std::array<device::Access, count> accesses = {out_access, read(operands)...};
  std::array<kernels::View, count> views = {view_of(out), view_of(operands)...};
  device::launch(device::current_stream(out.device()), name, accesses,
                 [kernel, views](const device::Pointers& pointers) {
                   std::array<kernels::View, count> at = views;
                   for (std::size_t i = 0; i < count; ++i) at[i].data = pointers.at(i);
                   [&]<std::size_t... i>(std::index_sequence<i...>) { kernel(pointers.execution(), at[i]...); }
                   (std::make_index_sequence<count>());
                 });
}

// Launches kernel(execution, out, operands...), which writes all of `out`.
template <class Kernel, class... Operands>
void run_kernel(const char* name, const Kernel& kernel, const Tensor& out, const Operands&... operands) {
  if (out.is_meta() || out.num_elements() == 0) return;
  run_kernel_at(name, kernel, write(out), out, operands...);
}
// The same for a kernel that also reads `out`.
template <class Kernel, class... Operands>
void run_update(const char* name, const Kernel& kernel, const Tensor& out, const Operands&... operands) {
  if (out.is_meta() || out.num_elements() == 0) return;
  run_kernel_at(name, kernel, update(out), out, operands...);
}

// For kernels with optional operands or several outputs. Launches kernel(execution, views) with one view per operand in
// the given order; the view of an undefined tensor has no data. Does nothing on meta and when `elements` is 0.
struct Operand {
  const Tensor& tensor;
  device::Mode mode = device::Mode::read;
};
template <std::size_t count, class Kernel>
void run_operands(const char* name, device::Device device, std::int64_t elements, const Operand (&operands)[count],
                  const Kernel& kernel) {
  if (!device::computes(device) || elements == 0) return;
  std::array<device::Access, count> accesses;
  std::array<kernels::View, count> views;
  std::array<int, count> positions;
  std::size_t used = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const Tensor& tensor = operands[i].tensor;
    positions[i] = tensor.defined() ? static_cast<int>(used) : -1;
    if (!tensor.defined()) continue;
    views[i] = view_of(tensor);
    accesses[used] = read(tensor);
    accesses[used++].mode = operands[i].mode;
  }
  device::launch(device::current_stream(device), name, std::span<const device::Access>(accesses.data(), used),
                 [kernel, views, positions](const device::Pointers& pointers) {
                   std::array<kernels::View, count> at = views;
                   for (std::size_t i = 0; i < count; ++i)
                     if (positions[i] >= 0) at[i].data = pointers.at(static_cast<std::size_t>(positions[i]));
                   kernel(pointers.execution(), at);
                 });
}

// Each throws Error that names the operation and the operands.
void require_same_device(const char* operation, const Tensor& a, const Tensor& b);
void require_floating(const char* operation, const Tensor& a);
void require_not_bool(const char* operation, const Tensor& a);
void require_defined(const char* operation, const Tensor& a);
// Throws Error when a dim of `tensor` is expanded, so that several elements share one address.
void require_not_expanded(const char* operation, const Tensor& tensor);
// Throws Error when a finite number is beyond the range of the type; an integer type has neither infinity nor NaN.
void require_representable(const char* operation, double number, DType dtype);
// The dims in the order of the strides, the largest first. PyTorch draws random numbers in this order of elements.
Dims dims_in_memory_order(const Tensor& tensor);
// The second operand of a product or quotient of this type. As in PyTorch, a single element of another type beside a
// 16-bit type is float32 and is not rounded to that type.
Tensor factor_in(const Tensor& factor, DType dtype);
// Throws Error when the memory of `from` overlaps that of `to` without being the same elements in the same order. As in
// PyTorch, this is checked where both fill their memory without gaps.
void require_no_partial_overlap(const char* operation, const Tensor& to, const Tensor& from);
// `from`, or a copy of it when its memory overlaps that of `to` without being the same elements in the same order.
Tensor copy_if_overlapping(const Tensor& from, const Tensor& to);

}  // namespace lockstep::raw
