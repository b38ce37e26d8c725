// Where the division of a mean over ranks takes place, as a pure value.
//
// A mean divides once after the complete sum. If one collective makes the sum, that collective divides, in its own
// precision. Sums of float16 also divide before the collective, so that they do not overflow.
#pragma once

#include <cstddef>
#include <optional>

#include "engine/core/types.hpp"

namespace lockstep::parallel {

struct Division {
  double before = 1.0;             // divides the gradients of this rank
  bool within_collective = false;  // the collective gives the mean instead of the sum
  double after = 1.0;              // divides the complete sum
  bool operator==(const Division&) const = default;
};

// Of a bucket of `replicate`, which is all-reduced over `num_groups` process groups of together `num_ranks` ranks.
Division replicate_division(std::size_t num_groups, int num_ranks);

// Of a group of `fully_shard`. `divide_factor` takes the place of the number of ranks.
struct ShardedMean {
  int num_ranks = 1;   // of all axes
  int num_shards = 1;  // of the shard axis
  bool replicates = false;
  DType reduce_type = DType::float32;
  std::optional<double> divide_factor{};
};
Division shard_division(const ShardedMean& mean);

// Of a unit of `flat_shard`: sums divide before and after, whatever their type.
Division flat_division(int num_ranks);

}  // namespace lockstep::parallel
