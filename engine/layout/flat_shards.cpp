#include "engine/layout/flat_shards.hpp"

#include "engine/core/checked.hpp"
#include "engine/core/error.hpp"
#include "engine/layout/placement.hpp"

namespace lockstep::layout {

Dims padded_part_sizes(const CutParameter& parameter) {
  Dims sizes = parameter.sizes;
  sizes[parameter.dim] = chunk_length(sizes[parameter.dim], parameter.parts);
  return sizes;
}

std::int64_t padded_part_elements(const CutParameter& parameter) {
  return lockstep::num_elements(padded_part_sizes(parameter));
}

FlatShards plan_flat_shards(const std::vector<CutParameter>& parameters, int parts_per_rank) {
  constexpr const char* where = "flat buffer of shards";
  FlatShards flat;
  flat.parts_per_rank = parts_per_rank;
  for (const CutParameter& parameter : parameters) {
    LOCKSTEP_CHECK(parameter.parts % parts_per_rank == 0, parameter.parts, " shards, ", parts_per_rank, " per rank");
    flat.num_ranks = parameter.parts / parts_per_rank;
    flat.offsets.push_back(flat.per_rank);
    flat.per_rank =
        checked_add(flat.per_rank, checked_multiply(parts_per_rank, padded_part_elements(parameter), where), where);
  }
  checked_multiply(flat.per_rank, flat.num_ranks, where);  // bounds the offsets below
  return flat;
}

std::vector<ShardCopy> shard_copies(const CutParameter& parameter, const FlatShards& flat, std::size_t index) {
  const std::int64_t padded = padded_part_elements(parameter);
  const std::int64_t size = parameter.sizes[parameter.dim];
  std::vector<ShardCopy> copies;
  for (int number = 0; number < parameter.parts; ++number) {
    const Chunk shard = chunk(size, parameter.parts, number);
    if (shard.length == 0) break;
    const std::int64_t offset = bounded_product(flat.per_rank, number / flat.parts_per_rank) + flat.offsets[index] +
                                bounded_product(padded, number % flat.parts_per_rank);
    // Shards of equal length at equal distances make one copy.
    if (!copies.empty() && copies.back().length == shard.length) {
      ShardCopy& run = copies.back();
      const std::int64_t stride = offset - (run.flat_offset + bounded_product(run.flat_stride, run.num_parts - 1));
      if (run.num_parts == 1 || stride == run.flat_stride) {
        run.flat_stride = stride;
        ++run.num_parts;
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
