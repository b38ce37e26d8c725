// Matrix products of the vendor libraries, on one thread. Operands are taken as they lie when a dim of the matrix has
// stride 1 (a transposed operand is a flag, not a copy; the flag changes the last bits, alignment does not).
#pragma once

#include "engine/kernels/view.hpp"

namespace lockstep::kernels {

// Whether the last two dims can be handed to the library as they lie.
bool is_product_operand(const View& matrix);

// out (..., m, n) = a (..., m, k) x b (..., k, n), float32 or float64. The leading dims are equal; an operand that is
// repeated along one has stride 0 there. `out` has rows whose elements lie one after the other, and overlaps no
// operand.
void matmul(Space space, const View& out, const View& a, const View& b);
// out (m, n) = x (m, k) x weight (n, k) transposed, plus bias (n) where given: the product is added to the bias.
void linear(Space space, const View& out, const View& x, const View& weight, const View* bias);

}  // namespace lockstep::kernels
