// Matrix products by the vendor libraries, on the calling thread only (internal to engine/kernels).
//
// float64 uses OpenBLAS. float32 uses oneDNN, except where OpenBLAS was measured to be faster (blas.cpp). oneDNN
// generates code for the processor it runs on and copies small panels cheaply: with AVX-512 it is 5 to 100 % faster
// than OpenBLAS at the sizes of a transformer step. It has no float64 product.
#pragma once

#include <cstdint>

namespace lockstep::kernels {

// How a library reads a matrix in memory: row-major, or column-major when `transposed`. Consecutive rows (columns)
// start `leading` elements apart. `supported` is false when the strides fit neither.
struct MatrixLayout {
  bool supported = false;
  bool transposed = false;
  std::int64_t leading = 1;
};

// out (m, n) = a (m, k) x b (k, n); with `add_to_out` the product is added to `out`. `out` is row-major with `leading`
// elements between the starts of its rows. k is at least 1.
void product(float* out, std::int64_t leading, std::int64_t m, std::int64_t n, std::int64_t k, const float* a,
             MatrixLayout layout_a, const float* b, MatrixLayout layout_b, bool add_to_out);
void product(double* out, std::int64_t leading, std::int64_t m, std::int64_t n, std::int64_t k, const double* a,
             MatrixLayout layout_a, const double* b, MatrixLayout layout_b, bool add_to_out);

// Computes the product without a library if n is 2 to 8, m is a multiple of 32 and `a` is column-major. Otherwise
// returns false and writes nothing. The choice depends on sizes and layout only.
bool narrow_product(float* out, std::int64_t leading, std::int64_t m, std::int64_t n, std::int64_t k, const float* a,
                    MatrixLayout layout_a, const float* b, MatrixLayout layout_b);

}  // namespace lockstep::kernels
