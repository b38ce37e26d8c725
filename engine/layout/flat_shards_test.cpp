#include "engine/layout/flat_shards.hpp"

#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/layout/placement.hpp"

namespace lockstep::layout {
namespace {

using ::testing::ElementsAre;

TEST(FlatShards, OffsetsCountPaddedParts) {
  // 5 rows over 4: parts of 2 rows; 3 elements over 4: parts of 1.
  const std::vector<CutParameter> parameters{{{5, 3}, 0, 4}, {{3}, 0, 4}};
  const FlatShards flat = plan_flat_shards(parameters);
  EXPECT_THAT(flat.offsets, ElementsAre(0, 6));
  EXPECT_EQ(flat.per_rank, 7);
  EXPECT_EQ(flat.num_ranks, 4);
  const FlatShards pairs = plan_flat_shards(parameters, 2);
  EXPECT_THAT(pairs.offsets, ElementsAre(0, 12));
  EXPECT_EQ(pairs.per_rank, 14);
  EXPECT_EQ(pairs.num_ranks, 2);
}

TEST(FlatShards, BuffersWhoseElementsDoNotFitAreRefused) {
  constexpr std::int64_t large = std::int64_t{1} << 31;
  // Each parameter fits; the padded parts of four ranks together do not.
  const std::vector<CutParameter> parameters(3, {{large, large}, 0, 4});
  EXPECT_THROW(plan_flat_shards(parameters), Error);
}

TEST(FlatShards, EqualPartsAreOneCopy) {
  const std::vector<CutParameter> parameters{{{8, 2}, 0, 4}};
  const auto copies = shard_copies(parameters[0], plan_flat_shards(parameters), 0);
  ASSERT_EQ(copies.size(), 1u);
  EXPECT_EQ(copies[0].num_parts, 4);
  EXPECT_EQ(copies[0].length, 2);
  EXPECT_EQ(copies[0].flat_stride, 4);
}

// Every element of every parameter lies in exactly one copy, at the place where its rank's part is.
TEST(FlatShards, CopiesCoverEachParameterOnceWhateverTheSizes) {
  for (int parts = 1; parts <= 8; ++parts)
    for (int parts_per_rank = 1; parts_per_rank <= parts; ++parts_per_rank) {
      if (parts % parts_per_rank != 0) continue;
      for (std::int64_t rows = 0; rows <= 9; ++rows) {
        const std::vector<CutParameter> parameters{{{rows, 2}, 0, parts}, {{3, rows}, 1, parts}, {{rows}, 0, parts}};
        const FlatShards flat = plan_flat_shards(parameters, parts_per_rank);
        std::vector<int> used(static_cast<std::size_t>(flat.per_rank * flat.num_ranks), 0);
        for (std::size_t index = 0; index < parameters.size(); ++index) {
          const CutParameter& parameter = parameters[index];
          const Dims part = padded_part_sizes(parameter);
          const Dims strides = contiguous_strides(part);
          std::vector<int> seen(static_cast<std::size_t>(rows), 0);
          for (const ShardCopy& copy : shard_copies(parameter, flat, index))
            for (int number = 0; number < copy.num_parts; ++number)
              for (std::int64_t at = 0; at < copy.length; ++at) {
                const std::int64_t row = copy.begin + number * copy.length + at;
                ++seen[static_cast<std::size_t>(row)];
                // Where ceiling division puts that row.
                const std::int64_t owner = row / part[parameter.dim];
                const std::int64_t begin = flat.per_rank * (owner / parts_per_rank) + flat.offsets[index] +
                                           num_elements(part) * (owner % parts_per_rank);
                EXPECT_EQ(copy.flat_offset + number * copy.flat_stride + at * strides[parameter.dim],
                          begin + row % part[parameter.dim] * strides[parameter.dim])
                    << parts << " parts, " << rows << " rows";
                ++used[static_cast<std::size_t>(begin + row % part[parameter.dim] * strides[parameter.dim])];
              }
          EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), rows) << parts << " parts, " << rows << " rows";
        }
        EXPECT_TRUE(std::all_of(used.begin(), used.end(), [](int times) { return times <= 1; }));
      }
    }
}

TEST(FlatShards, Float16DividesByAPowerOfTwoNearTheSquareRootFirst) {
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
