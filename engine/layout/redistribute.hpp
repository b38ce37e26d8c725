// How a tensor gets from one layout to another on the same mesh: a list of steps, each on one mesh axis. A pure
// function of the two layouts; engine/mesh/redistribute.hpp runs the steps.
//
// Cost per step: Shard to Replicate is one all-gather, Partial to Replicate one all-reduce, Partial to Shard one
// reduce-scatter, Shard(i) to Shard(j) one all-to-all; Replicate to Shard and Replicate to Partial are local. Where
// several axes shard one dim, only the last sharding can be removed. So shardings on top of the one to remove are
// gathered first and applied again later.
//
//   for (const RedistributeStep& step : redistribute_steps(from, to)) ...
//
// The semantics follow the redistribution of PyTorch's DTensor; the order of the steps is our own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/layout/placement.hpp"

namespace lockstep::layout {

enum class RedistributeOp : std::uint8_t {
  all_gather,      // Shard to Replicate
  all_reduce,      // Partial to Replicate
  reduce_scatter,  // Partial to Shard
  all_to_all,      // Shard to Shard of another dim
  slice,           // Replicate to Shard, local
  to_partial,      // Replicate to Partial, local
};
std::string to_text(RedistributeOp op);

struct RedistributeStep {
  int axis = 0;
  RedistributeOp op = RedistributeOp::slice;
  PartialOp reduce = PartialOp::sum;  // all_reduce, reduce_scatter, to_partial
  AxisSharding removed;               // all_gather, all_to_all: the last sharding of its dim
  AxisSharding added;                 // slice, reduce_scatter, all_to_all: becomes the last sharding of its dim
};

// The steps from one layout to another, none when they are equal. Throws Error when meshes or sizes differ, when a
// layout is invalid, and when an axis would become partial that is neither replicated nor partial in the same way.
std::vector<RedistributeStep> redistribute_steps(const ShardedLayout& from, const ShardedLayout& to);

}  // namespace lockstep::layout
