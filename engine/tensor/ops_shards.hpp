// Operations without gradients on a local shard that depend on the position of the shard in the full tensor: indices of
// elements that other ranks hold, random numbers of the full tensor. The conventions of ops.hpp hold.
//
//   const Tensor positions = raw::positions_in("embedding", indices, num_rows, held);
//   const Tensor rows = raw::select_held(local_rows, 0, positions);     // zeros for rows of other ranks
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/layout/placement.hpp"
#include "engine/tensor/tensor.hpp"

namespace lockstep::raw {

// ---- indices (ops_index.cpp) ----
// The positions of `indices` (int64 or int32, any sizes, from 0 to size - 1) among the elements that the ranges in
// `held` list in order: int64 of the same sizes, -1 for an element that no range contains, and -2 for the index
// `ignored`, which may be any number. `operation` names the Error for an index out of range.
Tensor positions_in(const char* operation, const Tensor& indices, std::int64_t size,
                    const std::vector<layout::Chunk>& held, std::optional<std::int64_t> ignored = {});
// index_select and index_add_ with a list of positions (one dim) in which -1 stands for zeros: they are the result, and
// their gradient is dropped.
Tensor select_held(const Tensor& a, int dim, const Tensor& positions);
void add_held_(const Tensor& to, int dim, const Tensor& positions, const Tensor& value);

// ---- losses over sharded classes (ops_losses.cpp) ----
// The target of a row that does not count, among positions of positions_in().
inline constexpr std::int64_t ignored_row = -2;
struct ClassSums {
  Tensor sums;    // one per row: sum of e^(x - top) over the local classes
  Tensor picked;  // one per row: the logit of the target, 0 where another rank holds it
};
// logits (..., local classes) floating; targets (...), positions among the local classes or negative; tops (...).
// Results and `tops` have the computation type of the logits: float32 for 16-bit types.
ClassSums class_sums(const Tensor& logits, const Tensor& targets, const Tensor& tops);

// ---- random numbers (ops_attention.cpp) ----
// The local shard of the keep_mask of a full tensor. Draws the numbers of the full mask, so that the generator of every
// rank advances as that of an unsharded model does. `held`: the ranges of each dim that the rank holds.
Tensor keep_mask_of_shard(const Dims& full_sizes, const std::vector<std::vector<layout::Chunk>>& held, double p,
                          device::Device device);

}  // namespace lockstep::raw
