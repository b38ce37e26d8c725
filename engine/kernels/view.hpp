// The operands of kernels: raw views of memory that device::launch hands out for the duration of one launch. A view
// owns nothing and checks nothing. The launching operation (engine/tensor/ops) has checked sizes, types and devices.
//
// Kernels are plain functions and may run on any number of threads at once. Only their sources use Kokkos and BLAS.
//
//   kernels::add(Space::host, {out, DType::float32, {2, 3}, {3, 1}}, {a, ...}, {b, ...});
#pragma once

#include <cstdint>

#include "engine/core/shape.hpp"
#include "engine/core/types.hpp"
#include "engine/device/execution.hpp"

namespace lockstep::kernels {

using device::Execution;
using device::Space;

struct View {
  void* data = nullptr;  // the element with index 0 in every dim
  DType dtype = DType::float32;
  Dims sizes;
  Dims strides;  // in elements; 0 for broadcast dims, never negative
};

inline bool is_contiguous(const View& view) { return lockstep::is_contiguous(view.sizes, view.strides); }
inline std::int64_t num_elements(const View& view) { return lockstep::num_elements(view.sizes); }

}  // namespace lockstep::kernels
