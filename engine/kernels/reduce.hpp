// Reductions in one fixed order, whatever the layout, the offset or the backend:
//
//   the elements of one result, counted in row-major order of the reduced dims, are cut into blocks of 1024; in a
//   block, lane l of 32 adds the elements l, l + 32, l + 64, ... in order; the lanes are added as a pairwise tree
//   (0+16, 1+17, ...; 0+8, ...; ...; 0+1); the block sums are added in order.
//
// Lanes and tree run in the type that is computed in (float for float32 and the 16-bit types), the running total over
// blocks in float64; it is rounded once to the type computed in, divided by `divisor` there, and stored. Integers and
// bool add up in int64.
#pragma once

#include "engine/kernels/view.hpp"

namespace lockstep::kernels {

inline constexpr std::int64_t reduce_block = 1024;
inline constexpr std::int64_t reduce_lanes = 32;

// Reduces the last `num_reduced` dims of `a`; `out` is contiguous and has the other dims. The type of `out` is that of
// `a`, int64 for integers and bool. `divisor` is for means, of floating types.
void sum(Space space, const View& out, const View& a, int num_reduced, double divisor = 1.0);
// Sum over all elements of the squares of a - b, divided by `divisor`; a and b contiguous, out one element.
void sum_squared_difference(Space space, const View& out, const View& a, const View& b, double divisor);
// out: one bool, false when an element is infinite or not a number. Floating types.
void all_finite(Space space, const View& out, const View& a);

}  // namespace lockstep::kernels
