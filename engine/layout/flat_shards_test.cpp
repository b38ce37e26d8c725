#include "engine/layout/flat_shards.hpp"

#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/layout/placement.hpp"

namespace lockstep::layout {
namespace {

using ::testing::ElementsAre;

TEST(FlatShards, OffsetsCountPaddedShards) {
  // 5 rows over 4 ranks: shards of 2 rows. 3 elements over 4 ranks: shards of 1.
  const std::vector<ShardedParameter> parameters{{{5, 3}, 0, 4}, {{3}, 0, 4}};
  const FlatShards flat = make_flat_shards(parameters);
  EXPECT_THAT(flat.offsets, ElementsAre(0, 6));
  EXPECT_EQ(flat.per_rank, 7);
  EXPECT_EQ(flat.num_ranks, 4);
  const FlatShards pairs = make_flat_shards(parameters, 2);
  EXPECT_THAT(pairs.offsets, ElementsAre(0, 12));
  EXPECT_EQ(pairs.per_rank, 14);
  EXPECT_EQ(pairs.num_ranks, 2);
}

TEST(FlatShards, RefusesBuffersWhoseSizeOverflows) {
  constexpr std::int64_t large = std::int64_t{1} << 31;
  // The elements of each parameter fit in 64 bits; those of the gathered buffer do not.
  const std::vector<ShardedParameter> parameters(3, {{large, large}, 0, 4});
  EXPECT_THROW(make_flat_shards(parameters), Error);
}

TEST(FlatShards, MergesEqualShardsIntoOneCopy) {
  const std::vector<ShardedParameter> parameters{{{8, 2}, 0, 4}};
  const auto copies = shard_copies(parameters[0], make_flat_shards(parameters), 0);
  ASSERT_EQ(copies.size(), 1u);
  EXPECT_EQ(copies[0].num_shards, 4);
  EXPECT_EQ(copies[0].length, 2);
  EXPECT_EQ(copies[0].flat_stride, 4);
}

// Every element of every parameter is in exactly one copy, at the position of its shard in the gathered buffer.
TEST(FlatShards, CopiesCoverEachParameterOnce) {
  for (int num_shards = 1; num_shards <= 8; ++num_shards)
    for (int shards_per_rank = 1; shards_per_rank <= num_shards; ++shards_per_rank) {
      if (num_shards % shards_per_rank != 0) continue;
      for (std::int64_t rows = 0; rows <= 9; ++rows) {
        const std::vector<ShardedParameter> parameters{
            {{rows, 2}, 0, num_shards}, {{3, rows}, 1, num_shards}, {{rows}, 0, num_shards}};
        const FlatShards flat = make_flat_shards(parameters, shards_per_rank);
        std::vector<int> used(static_cast<std::size_t>(flat.per_rank * flat.num_ranks), 0);
        for (std::size_t index = 0; index < parameters.size(); ++index) {
          const ShardedParameter& parameter = parameters[index];
          const Dims shard = padded_shard_sizes(parameter);
          const Dims strides = contiguous_strides(shard);
          std::vector<int> seen(static_cast<std::size_t>(rows), 0);
          for (const ShardCopy& copy : shard_copies(parameter, flat, index))
            for (int number = 0; number < copy.num_shards; ++number)
              for (std::int64_t at = 0; at < copy.length; ++at) {
                const std::int64_t row = copy.begin + number * copy.length + at;
                ++seen[static_cast<std::size_t>(row)];
                // The shard of that row by ceiling division.
                const std::int64_t owner = row / shard[parameter.dim];
                const std::int64_t begin = flat.per_rank * (owner / shards_per_rank) + flat.offsets[index] +
                                           num_elements(shard) * (owner % shards_per_rank);
                EXPECT_EQ(copy.flat_offset + number * copy.flat_stride + at * strides[parameter.dim],
                          begin + row % shard[parameter.dim] * strides[parameter.dim])
                    << num_shards << " shards, " << rows << " rows";
                ++used[static_cast<std::size_t>(begin + row % shard[parameter.dim] * strides[parameter.dim])];
              }
          EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), rows) << num_shards << " shards, " << rows << " rows";
        }
        EXPECT_TRUE(std::all_of(used.begin(), used.end(), [](int times) { return times <= 1; }));
      }
    }
}

TEST(FlatShards, Float16FactorsSplitTheNumberOfRanks) {
  const auto factors = [](int ranks) {
    const DivideFactors found = float16_factors(ranks);
    return std::make_pair(found.before, found.after);
  };
  EXPECT_EQ(factors(1), std::make_pair(1.0, 1.0));
  EXPECT_EQ(factors(2), std::make_pair(2.0, 1.0));
  EXPECT_EQ(factors(4), std::make_pair(2.0, 2.0));
  EXPECT_EQ(factors(8), std::make_pair(4.0, 2.0));
  EXPECT_EQ(factors(6), std::make_pair(4.0, 1.5));
  EXPECT_EQ(factors(3), std::make_pair(2.0, 1.5));
}

}  // namespace
}  // namespace lockstep::layout
