#include "engine/parallel/division.hpp"

#include <gtest/gtest.h>

namespace lockstep::parallel {
namespace {

TEST(Division, ReplicateDividesOnceAfterTheWholeSum) {
  EXPECT_EQ(replicate_division(1, 4), (Division{.within_collective = true}));
  EXPECT_EQ(replicate_division(2, 4), (Division{.after = 4.0}));
  EXPECT_EQ(replicate_division(0, 4), Division{});
}

TEST(Division, FullyShardDividesOnceAfterTheWholeSum) {
  EXPECT_EQ(shard_division({.num_ranks = 4, .num_shards = 4}), (Division{.within_collective = true}));
  EXPECT_EQ(shard_division({.num_ranks = 4, .num_shards = 2, .replicates = true}), (Division{.after = 4.0}));
  EXPECT_EQ(shard_division({.num_ranks = 4, .num_shards = 4, .divide_factor = 3.0}), (Division{.after = 3.0}));
}

TEST(Division, Float16DividesBeforeAndAfterTheSum) {
  const Division division = shard_division({.num_ranks = 8, .num_shards = 8, .reduce_type = DType::float16});
  EXPECT_FALSE(division.within_collective);
  EXPECT_EQ(division.before * division.after, 8.0);
  EXPECT_GT(division.before, 1.0);
}

// Powers of two up to the root of the number of ranks, rounded up, before the sum.
TEST(Division, FlatShardDividesBeforeAndAfterTheSum) {
  EXPECT_EQ(flat_division(1), Division{});
  EXPECT_EQ(flat_division(2), (Division{.before = 2.0, .after = 1.0}));
  EXPECT_EQ(flat_division(3), (Division{.before = 2.0, .after = 1.5}));
  EXPECT_EQ(flat_division(4), (Division{.before = 2.0, .after = 2.0}));
  EXPECT_EQ(flat_division(6), (Division{.before = 4.0, .after = 1.5}));
  EXPECT_EQ(flat_division(8), (Division{.before = 4.0, .after = 2.0}));
}

}  // namespace
}  // namespace lockstep::parallel
