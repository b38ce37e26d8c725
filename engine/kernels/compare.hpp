// Comparisons, choices, extremes.
#pragma once

#include "engine/kernels/view.hpp"

namespace lockstep::kernels {

enum class Comparison : std::uint8_t { eq, ne, lt, le, gt, ge };
// out (bool) = a ? b, element by element; a and b of one type, any strides.
void compare(Space space, const View& out, const View& a, const View& b, Comparison comparison);
// out = condition ? a : b; condition bool; out, a and b of one type, any strides.
void where(Space space, const View& out, const View& condition, const View& a, const View& b);

// The largest (or smallest) of each row of the last dim of a contiguous `a`, and the index (int64) of the first of
// them; what is no number comes before all. Either output may have no data.
void extremes(Space space, const View& values, const View& indices, const View& a, bool largest);

}  // namespace lockstep::kernels
