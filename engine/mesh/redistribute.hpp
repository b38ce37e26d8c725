// Runs the plans of engine/layout/redistribute.hpp on this rank's part: what engine/mesh/sharded.hpp is made of.
#pragma once

#include <vector>

#include "engine/layout/redistribute.hpp"
#include "engine/tensor/tensor.hpp"

namespace lockstep {

// The part of this rank under `to`, from that under `from`; a plain tensor, which shares memory with `local` where
// nothing had to move. All ranks of the mesh together.
Tensor run_redistribute(const Tensor& local, const layout::ShardedLayout& from, const layout::ShardedLayout& to);
// The ranges of a dim one after the other: a view when they are one, else a copy.
Tensor slice_ranges(const Tensor& tensor, int dim, const std::vector<layout::Chunk>& ranges);

}  // namespace lockstep
