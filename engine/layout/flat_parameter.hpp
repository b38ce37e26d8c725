// The layout of a flat parameter, as pure values: several parameters one after the other in one 1-d tensor, which is
// padded to a multiple of the ranks and cut into one equal chunk per rank.
//
//   w (2, 3) and b (5) on 2 ranks, aligned to 4 elements:
//
//     w w w w | w w . . | b b b b | b .        . is padding
//     [---------- rank 0 ---][- rank 1 -----------]
//
// A parameter may straddle ranks. The stretch of a parameter on a rank is the range of its elements, in row-major
// order, that the chunk of the rank holds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/core/shape.hpp"

namespace lockstep::layout {

struct FlatEntry {
  Dims sizes;               // of the parameter
  std::int64_t offset = 0;  // in the flat parameter
  std::int64_t length = 0;  // number of its elements
};

struct FlatParameter {
  std::vector<FlatEntry> entries;
  std::int64_t total = 0;     // elements with the padding between parameters, without that at the end
  std::int64_t per_rank = 0;  // elements of a chunk
  int num_ranks = 1;
  std::int64_t padded() const { return per_rank * num_ranks; }
};
// `alignment`: each parameter but the last is padded to a multiple of that many elements; 1: no padding between them.
// Throws Error when the number of elements does not fit in 64 bits.
FlatParameter make_flat_parameter(const std::vector<Dims>& sizes, int num_ranks, std::int64_t alignment = 1);

// The elements [begin, begin + length) of a parameter, at `offset` in the chunk of a rank. Length 0: none, at offset 0.
struct Stretch {
  std::int64_t begin = 0, length = 0, offset = 0;
  bool operator==(const Stretch&) const = default;
};
Stretch stretch_of(const FlatParameter& flat, std::size_t index, int rank);

// Some consecutive elements of a parameter, in row-major order, as boxes of the parameter.
struct StretchBox {
  Dims offsets, sizes;
  std::int64_t at = 0;  // of its first element, counted from the begin of the stretch; its elements are consecutive
};
// At most 2n - 1 boxes of a parameter of n dims: partial rows at both ends, full rows between them. None for length 0.
std::vector<StretchBox> boxes_of_stretch(const Dims& sizes, std::int64_t begin, std::int64_t length);

// The ranges of the flat parameter that hold no parameter, in order: between parameters and at the end.
struct FlatGap {
  std::int64_t begin = 0, length = 0;
};
std::vector<FlatGap> gaps_of(const FlatParameter& flat);

}  // namespace lockstep::layout
