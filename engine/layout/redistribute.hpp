// How a tensor gets from one layout to another on the same mesh: a list of steps, one axis each, as a pure plan. The
// executor is in engine/mesh/sharded.hpp; this file knows no communication and no data.
//
// What a step costs: Shard to Replicate one all_gather, Partial to Replicate one all_reduce, Partial to Shard one
// reduce_scatter, Shard(i) to Shard(j) one all_to_all, Replicate to Shard or to Partial none. Where several axes cut
// one dim, only the last cut can be undone; what was cut on top of another axis' is gathered first, and cut again
// after.
//
//   for (const RedistributeStep& step : plan_redistribute(from, to)) ...
//   cost_of(steps).num_all_gather
//
// After the redistribution of PyTorch's DTensor; the order of steps is our own.
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
  PartialOp reduce = PartialOp::sum;  // of all_reduce, reduce_scatter and to_partial
  Cut undone;                         // of all_gather and all_to_all: the cut that is undone, the last of its dim
  Cut made;                           // of slice, reduce_scatter and all_to_all: the cut that is made, then the last
};

// From one layout to another of the same sizes on the same mesh. Throws Error when these differ, and for a way to
// Partial from anything but Replicate and the same Partial.
std::vector<RedistributeStep> plan_redistribute(const ShardedLayout& from, const ShardedLayout& to);

struct RedistributeCost {
  int num_all_gather = 0, num_all_reduce = 0, num_reduce_scatter = 0, num_all_to_all = 0;
  int total() const { return num_all_gather + num_all_reduce + num_reduce_scatter + num_all_to_all; }
  friend bool operator==(const RedistributeCost&, const RedistributeCost&) = default;
};
RedistributeCost cost_of(const std::vector<RedistributeStep>& steps);

}  // namespace lockstep::layout
