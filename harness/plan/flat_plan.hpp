// The choices of flat_shard, as the plan reads them: which axes shard and replicate, and when a unit is gathered.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "harness/plan/flat_layout.hpp"

namespace lockstep::plan {

struct Axis;
struct ShardChoices;

enum class FlatStrategy { full_shard, shard_grad_op, no_shard, hybrid_shard, hybrid_shard_grad_op };
enum class BackwardPrefetch { before, after, none };
// The types of state dicts: full tensors, a piece (Shard(0)) of each parameter, the chunks as they are.
enum class StateType { full, sharded, local };

struct FlatChoices {
  bool shards = true;   // false: every rank holds the flat parameter, and its gradient is all-reduced
  bool aligned = true;  // each parameter begins at a multiple of 16 bytes of the compute type
  bool stays_unsharded_without_sync = false;  // after a backward without gradient synchronization
  BackwardPrefetch backward_prefetch = BackwardPrefetch::before;
  bool forward_prefetch = false;
};

// Sets the axes, reshard_after_forward and the members of `flat` that follow from the strategy. `axes`: of the mesh,
// two for a hybrid strategy (replicate, shard), otherwise one. An axis of one rank does not shard.
void apply_strategy(FlatStrategy strategy, const std::vector<Axis>& axes, ShardChoices& choices);

}  // namespace lockstep::plan
