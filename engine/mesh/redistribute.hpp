// Runs the steps of engine/layout/redistribute.hpp on the local shard; the implementation of engine/mesh/sharded.hpp.
#pragma once

#include <vector>

#include "engine/layout/redistribute.hpp"
#include "engine/tensor/tensor.hpp"

namespace lockstep {

// The local shard under `to`, computed from the local shard under `from`. A plain tensor with memory of its own. All
// ranks of the mesh call it together. Throws Error as layout::redistribute_steps does.
Tensor run_redistribute(const Tensor& local, const layout::ShardedLayout& from, const layout::ShardedLayout& to);
// The ranges of a dim, concatenated: a view for a single range, else a copy.
Tensor slice_ranges(const Tensor& tensor, int dim, const std::vector<layout::Chunk>& ranges);

}  // namespace lockstep
