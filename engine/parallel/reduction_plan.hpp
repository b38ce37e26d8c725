// The reduction of a group as a pure value: which gradients enter the flat input, and where the shard of each trained
// parameter lies in the reduced output.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/core/shape.hpp"
#include "engine/layout/flat_shards.hpp"

namespace lockstep::parallel {

struct ReducedPiece {
  std::size_t shard = 0;    // index of the tensor that optimizers update
  std::int64_t offset = 0;  // in the output
  Dims sizes;               // of that tensor on this rank
  Dims padded_sizes;        // with the padding of its shard; they give the strides
};

struct ReductionPlan {
  // The parameters whose gradients it completes. Those with full gradients come first; the others only have partial
  // sums of earlier microbatches.
  std::vector<std::size_t> members;
  std::size_t num_scattered = 0;        // of the members, those with full gradients
  std::int64_t input_elements = 0;      // of the flat input: all members with full gradients, for all ranks
  std::int64_t scattered_elements = 0;  // of the sum that this rank gets
  std::int64_t output_elements = 0;     // and the members that only have partial sums
  std::vector<ReducedPiece> pieces;     // of the output
};

// The gradients of a parameter before a reduction.
struct ParameterState {
  bool takes_part = false;
  bool has_full_gradient = false;
  bool has_partial_sum = false;
};
// The reduction of parameters that are sharded one by one. `local_sizes`: of each sharded parameter on this rank.
ReductionPlan plan_reduction(const std::vector<layout::ShardedParameter>& cuts,
                             const std::vector<ParameterState>& states, const std::vector<Dims>& local_sizes);

}  // namespace lockstep::parallel
