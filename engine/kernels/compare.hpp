// Comparisons, selection and extremes.
#pragma once

#include "engine/kernels/view.hpp"

namespace lockstep::kernels {

enum class Comparison : std::uint8_t { eq, ne, lt, le, gt, ge };
// out (bool) = a <comparison> b, element by element. a and b have the sizes of out and one type; strides are free.
void compare(Execution on, const View& out, const View& a, const View& b, Comparison comparison);
// out = condition ? a : b, element by element. All views have the same sizes; condition is bool; out, a and b have one
// type; strides are free.
void where(Execution on, const View& out, const View& condition, const View& a, const View& b);

// The largest (or smallest) element of each row along the last dim of a contiguous `a`, and its index (int64), the
// first one if several are equal. NaN is larger (smaller) than all numbers. `values` and `indices` are contiguous with
// one element per row; either may have no data.
void extremes(Execution on, const View& values, const View& indices, const View& a, bool largest);

}  // namespace lockstep::kernels
