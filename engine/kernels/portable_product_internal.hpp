// Matrix products without a library, for every space but the host (internal to engine/kernels).
#pragma once

#include "engine/kernels/view.hpp"

namespace lockstep::kernels {

// out (..., m, n) = a (..., m, k) x b (..., k, n), plus `out` with `adds`; float32 or float64. The leading dims are
// equal. The stride of the last dim of `out` is 1, all other strides are free. `out` has elements and overlaps no
// operand.
void portable_product(Execution on, const char* label, const View& out, const View& a, const View& b, bool adds);

}  // namespace lockstep::kernels
