// Matrix products, on the host by the vendor libraries on one thread, on a GPU by cuBLAS, elsewhere by a tiled kernel.
// Operands are read in place if one dim of the matrix has stride 1: a transposed operand is a flag, not a copy. The
// flag changes the last bits of the result; alignment does not.
#pragma once

#include "engine/kernels/view.hpp"

namespace lockstep::kernels {

// Whether the library can read the last two dims of the view in place.
bool is_product_operand(const View& matrix);

// out (..., m, n) = a (..., m, k) x b (..., k, n), all float32 or all float64. The leading dims are equal; an operand
// that is broadcast along a leading dim has stride 0 there. The rows of `out` are contiguous, and `out` overlaps no
// operand. Throws UnsupportedError for a space that the build lacks.
void matmul(Execution on, const View& out, const View& a, const View& b);
// out (m, n) = x (m, k) x transposed weight (n, k), plus bias (n) unless null; all float32 or all float64. The product
// is added to the bias.
void linear(Execution on, const View& out, const View& x, const View& weight, const View* bias);

}  // namespace lockstep::kernels
