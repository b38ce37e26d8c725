// The calls of the vendor libraries' matrix products, on the calling thread alone: OpenBLAS for float64; for float32
// oneDNN, except where OpenBLAS was measured to be faster (blas.cpp). oneDNN generates its code for the processor it
// runs on and copies small panels cheaply. With AVX-512 it is 5 to 100 % faster than OpenBLAS at the sizes of a
// transformer step. It has no float64.
#pragma once

#include <cstdint>

namespace lockstep::kernels {

// A matrix as it lies: its rows one after the other, or (transposed) its columns, `leading` elements apart.
struct Lay {
  bool usable = false;
  bool transposed = false;
  std::int64_t leading = 1;
};

// out (m, n), its rows `leading` elements apart, = a (m, k) x b (k, n), or the product added to `out`. k is at least 1.
void product(float* out, std::int64_t leading, std::int64_t m, std::int64_t n, std::int64_t k, const float* a,
             Lay lay_a, const float* b, Lay lay_b, bool add_to_out);
void product(double* out, std::int64_t leading, std::int64_t m, std::int64_t n, std::int64_t k, const double* a,
             Lay lay_a, const double* b, Lay lay_b, bool add_to_out);

// Where the result has 2 to 8 columns, whole blocks of rows, and `a` lies by columns: the product without a library;
// false, and nothing done, elsewhere. Which of the two depends on sizes and layout alone.
bool narrow_product(float* out, std::int64_t leading, std::int64_t m, std::int64_t n, std::int64_t k, const float* a,
                    Lay lay_a, const float* b, Lay lay_b);

}  // namespace lockstep::kernels
