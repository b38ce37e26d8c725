#include "engine/layout/flat_shards.hpp"

#include "engine/core/checked.hpp"
#include "engine/core/error.hpp"
#include "engine/layout/placement.hpp"

namespace lockstep::layout {

Dims padded_shard_sizes(const ShardedParameter& parameter) {
  Dims sizes = parameter.sizes;
  sizes[parameter.dim] = chunk_length(sizes[parameter.dim], parameter.num_shards);
  return sizes;
}

std::int64_t padded_shard_elements(const ShardedParameter& parameter) {
  return lockstep::num_elements(padded_shard_sizes(parameter));
}

FlatShards make_flat_shards(const std::vector<ShardedParameter>& parameters, int shards_per_rank) {
  constexpr const char* where = "flat buffer of shards";
  FlatShards flat;
  flat.shards_per_rank = shards_per_rank;
  for (const ShardedParameter& parameter : parameters) {
    LOCKSTEP_CHECK(parameter.num_shards % shards_per_rank == 0, parameter.num_shards, " shards, ", shards_per_rank,
                   " per rank");
    flat.num_ranks = parameter.num_shards / shards_per_rank;
    flat.offsets.push_back(flat.per_rank);
    flat.per_rank =
        checked_add(flat.per_rank, checked_multiply(shards_per_rank, padded_shard_elements(parameter), where), where);
  }
  checked_multiply(flat.per_rank, flat.num_ranks, where);  // bounds the offsets below
  return flat;
}

std::vector<ShardCopy> shard_copies(const ShardedParameter& parameter, const FlatShards& flat, std::size_t index) {
  const std::int64_t padded = padded_shard_elements(parameter);
  const std::int64_t size = parameter.sizes[parameter.dim];
  std::vector<ShardCopy> copies;
  for (int number = 0; number < parameter.num_shards; ++number) {
    const Chunk shard = chunk(size, parameter.num_shards, number);
    if (shard.length == 0) break;
    const std::int64_t offset = bounded_product(flat.per_rank, number / flat.shards_per_rank) + flat.offsets[index] +
                                bounded_product(padded, number % flat.shards_per_rank);
    // Shards of equal length at equal distances make one copy.
    if (!copies.empty() && copies.back().length == shard.length) {
      ShardCopy& run = copies.back();
      const std::int64_t stride = offset - (run.flat_offset + bounded_product(run.flat_stride, run.num_shards - 1));
      if (run.num_shards == 1 || stride == run.flat_stride) {
        run.flat_stride = stride;
        ++run.num_shards;
        continue;
      }
    }
    copies.push_back({shard.begin, shard.length, 1, offset, 0});
  }
  return copies;
}

DivideFactors float16_factors(int num_ranks) {
  int factor = 1;
  while (num_ranks % factor == 0 && num_ranks / factor > factor) factor *= 2;
  return {static_cast<double>(factor), static_cast<double>(num_ranks) / factor};
}

}  // namespace lockstep::layout
