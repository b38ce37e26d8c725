// Matrix products on a GPU by cuBLAS (internal to engine/kernels). A build without it has cublas_stand_in.cpp.
//
// The bits of a product depend on its sizes and flags and on the GPU, and not on the addresses of its operands: the
// library chooses its kernel for the lowest alignment. Numbers are multiplied as they are (no TF32). If the library
// splits the inner dim, the parts are added in a fixed order.
#pragma once

#include <cstdint>

#include "engine/core/types.hpp"
#include "engine/device/execution.hpp"
#include "engine/kernels/blas_internal.hpp"

namespace lockstep::kernels::cublas {

// `batches` products out (m, n) = a (m, k) x b (k, n), added to `out` with `adds`; float32 or float64. `out` is
// row-major with `leading` elements between the starts of its rows. Strides between batches are in elements.
struct Product {
  DType dtype = DType::float32;
  std::int64_t m = 0, n = 0, k = 0;
  void* out = nullptr;
  const void* a = nullptr;
  const void* b = nullptr;
  std::int64_t leading = 1;
  MatrixLayout layout_a, layout_b;
  std::int64_t batches = 1, stride_out = 0, stride_a = 0, stride_b = 0;
  bool adds = false;
};

// Enqueues the product on the stream. Throws ResourceError with cuBLAS' name of the error if it refuses, and
// UnsupportedError in a build without CUDA where there is no stand-in of CUDA.
void multiply(device::Execution on, const Product& product);

}  // namespace lockstep::kernels::cublas
