// The positions of the shards of several parameters in the flat buffers of one all-gather or reduce-scatter, as pure
// values.
//
// A parameter is sharded along one dim into `parts` shards of equal size; shards at the end are padded to the length
// that ceiling division gives the first one. The flat buffer of a rank holds consecutive shards of every parameter, one
// parameter after the other. The gathered buffer holds the flat buffers of all ranks in rank order:
//
//   rank 0: [w shard 0][b shard 0]   rank 1: [w shard 1][b shard 1]   ...
#pragma once

#include <cstdint>
#include <vector>

#include "engine/core/shape.hpp"

namespace lockstep::layout {

// How one parameter is sharded.
struct ShardedParameter {
  Dims sizes;          // of the full parameter
  int dim = 0;         // the sharded dim
  int num_shards = 1;  // number of shards
};
Dims padded_shard_sizes(const ShardedParameter& parameter);             // the sizes of one padded shard
std::int64_t padded_shard_elements(const ShardedParameter& parameter);  // the elements of one padded shard

// The flat buffers of several parameters, with `shards_per_rank` consecutive shards of each parameter on every rank.
struct FlatShards {
  std::vector<std::int64_t> offsets;  // of each parameter in the buffer of a rank, in elements
  std::int64_t per_rank = 0;          // elements of the buffer of a rank
  int shards_per_rank = 1;
  int num_ranks = 1;
};
// All parameters have the same number of shards, a multiple of `shards_per_rank`. Throws Error when the gathered buffer
// has more elements than 64 bits count.
FlatShards make_flat_shards(const std::vector<ShardedParameter>& parameters, int shards_per_rank = 1);

// A strided copy between a parameter and a gathered buffer: `num_shards` shards of equal length that are consecutive in
// the parameter and have equal distances in the buffer.
struct ShardCopy {
  std::int64_t begin = 0;        // of the first shard, along the sharded dim
  std::int64_t length = 0;       // of one shard, along the sharded dim
  int num_shards = 1;            // number of shards
  std::int64_t flat_offset = 0;  // of the first shard in the buffer, in elements
  std::int64_t flat_stride = 0;  // from shard to shard in the buffer, in elements
};
// The copies of parameter `index`; together they cover each of its elements once and no padding.
std::vector<ShardCopy> shard_copies(const ShardedParameter& parameter, const FlatShards& flat, std::size_t index);

// The divisors before and after a float16 reduction, chosen so that sums neither overflow nor underflow: a power of two
// near the square root of the number of ranks, and the remaining factor. before * after == num_ranks.
struct DivideFactors {
  double before = 1.0;
  double after = 1.0;
};
DivideFactors float16_factors(int num_ranks);

}  // namespace lockstep::layout
