// Reductions in one fixed order, independent of strides, offset and backend.
//
//   The elements of one result, in row-major order of the reduced dims, are divided into blocks of 1024.
//   Within a block, lane l of 32 adds the elements l, l + 32, l + 64, ... in order.
//   The lanes are added as a pairwise tree: 0+16, 1+17, ...; 0+8, ...; ...; 0+1.
//   The block sums are added in order in groups of 256 blocks, and the sums of the groups are added in order. An
//   accelerator adds the groups side by side.
//
// Lanes and tree use the computation type: float for float32 and the 16-bit types, double for float64. The sums of the
// groups and the total are float64. It is rounded once to the computation type, divided by `divisor`, and stored.
// Integers and bool are summed in int64.
#pragma once

#include "engine/kernels/view.hpp"

namespace lockstep::kernels {

inline constexpr std::int64_t reduce_block = 1024;
inline constexpr std::int64_t reduce_lanes = 32;
inline constexpr std::int64_t reduce_group = 256;  // blocks

// Sums the last `num_reduced` dims of `a`. `out` is contiguous and has the other dims; its type is the type of `a`, or
// int64 for integers and bool. `divisor` computes means and is for floating types only.
void sum(Execution on, const View& out, const View& a, int num_reduced, double divisor = 1.0);
// The sum of (a - b)^2 over all elements, divided by `divisor`. a and b are contiguous and have one size and one
// floating type; out is one element of it.
void sum_squared_difference(Execution on, const View& out, const View& a, const View& b, double divisor);
// out (one bool) is false if an element of `a` (a floating type) is infinite or NaN.
void all_finite(Execution on, const View& out, const View& a);

}  // namespace lockstep::kernels
