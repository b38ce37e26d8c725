// What a kernel works on: raw views of memory, handed out for the length of one launch by device::launch. A view owns
// nothing and checks nothing; sizes, types and devices were checked by the operation that launches (engine/tensor/ops).
//
// Kernels are plain functions, callable from any number of threads at once. Their sources alone know Kokkos and BLAS.
//
//   kernels::add(Space::host, {out, DType::float32, {2, 3}, {3, 1}}, {a, ...}, {b, ...});
#pragma once

#include <cstdint>

#include "engine/core/shape.hpp"
#include "engine/core/types.hpp"

namespace lockstep::kernels {

// Which backend runs the kernel. The memory of cpu and of the simulated accelerator is the host's.
enum class Space : std::uint8_t { host, cuda };

struct View {
  void* data = nullptr;  // the element at index 0 in every dim
  DType dtype = DType::float32;
  Dims sizes;
  Dims strides;  // in elements, 0 where an element is repeated, never negative
};

inline bool is_contiguous(const View& view) { return lockstep::is_contiguous(view.sizes, view.strides); }
inline std::int64_t num_elements(const View& view) { return lockstep::num_elements(view.sizes); }

}  // namespace lockstep::kernels
