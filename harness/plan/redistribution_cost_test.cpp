// Compares the costs of redistributions with costs written in the tests, and on random layouts with the steps of the
// engine.
#include "harness/plan/redistribution_cost.hpp"

#include <random>

#include <gtest/gtest.h>

#include "engine/core/error.hpp"
#include "engine/core/text.hpp"
#include "engine/layout/redistribute.hpp"

namespace lockstep::plan {
namespace {

using layout::MeshShape;
using layout::partial;
using layout::Placement;
using layout::replicate;
using layout::shard;
using layout::ShardedLayout;
using layout::strided_shard;
using Placements = std::vector<Placement>;

const MeshShape four({4}, {"tp"});
const MeshShape two_by_two({2, 2}, {"dp", "tp"});

std::vector<Movement> cost(const Placement& from, const Placement& to, const Dims& sizes, int rank = 0) {
  return redistribution({four, {from}, sizes}, {to}, rank);
}
std::vector<Movement> backward_cost(const Placement& from, const Placement& to, const Dims& sizes) {
  return redistribution_backward({four, {from}, sizes}, {to}, 0);
}
std::vector<Movement> one(const char* operation, std::int64_t elements) { return {{operation, 0, elements}}; }

TEST(RedistributionCost, OfEveryPairOfPlacementsOnOneAxis) {
  EXPECT_EQ(cost(shard(0), replicate(), {8, 3}), one("all_gather", 24));
  EXPECT_EQ(cost(partial(), replicate(), {8, 3}), one("all_reduce", 24));
  EXPECT_EQ(cost(partial(), shard(1), {3, 8}), one("reduce_scatter", 24));
  EXPECT_EQ(cost(shard(0), shard(1), {8, 4}), one("all_to_all", 8 * 4 / 4));
  for (const Placement& placement : {shard(0), partial(), replicate()})
    EXPECT_TRUE(cost(replicate(), placement, {8, 4}).empty());
  for (const Placement& placement : {shard(0), shard(1), partial(), replicate()})
    EXPECT_TRUE(cost(placement, placement, {8, 4}).empty());
  EXPECT_THROW(cost(shard(0), partial(), {8, 4}), Error);
}

TEST(RedistributionCost, OfTheBackwardOfEveryPair) {
  EXPECT_EQ(backward_cost(replicate(), shard(0), {8, 3}), one("all_gather", 24));
  EXPECT_EQ(backward_cost(partial(), shard(0), {8, 3}), one("all_gather", 24));
  EXPECT_EQ(backward_cost(shard(0), shard(1), {8, 4}), one("all_to_all", 8));
  EXPECT_TRUE(backward_cost(shard(0), replicate(), {8, 3}).empty());
  EXPECT_TRUE(backward_cost(partial(), replicate(), {8, 3}).empty());
}

// 6 rows over 4 ranks: 2, 2, 2, 0. 3 rows: 1, 1, 1, 0.
TEST(RedistributionCost, CountsPaddedShardsOnEveryRank) {
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(cost(shard(0), replicate(), {6, 3}, rank), one("all_gather", 8 * 3));
    EXPECT_EQ(cost(partial(), shard(1), {5, 3}, rank), one("reduce_scatter", 5 * 4));
    EXPECT_EQ(cost(shard(0), shard(1), {6, 3}, rank), one("all_to_all", 4 * 2 * 1));
    EXPECT_EQ(cost(partial(), replicate(), {5, 3}, rank), one("all_reduce", 15));
  }
}

// 9 rows over tp 2: 5 and 4; each over dp 2: 3 and 2, 2 and 2.
TEST(RedistributionCost, GathersTheInnermostShardingOfADimFirst) {
  const ShardedLayout tp_within_dp{two_by_two, {strided_shard(0, 2), shard(0)}, {9, 4}};
  EXPECT_EQ(gather_in_full(tp_within_dp, 0), (std::vector<Movement>{{"all_gather", 0, 6 * 4}, {"all_gather", 1, 40}}));
  EXPECT_EQ(gather_in_full(tp_within_dp, 1), (std::vector<Movement>{{"all_gather", 0, 4 * 4}, {"all_gather", 1, 40}}));
  const ShardedLayout dp_within_tp{two_by_two, {shard(0), shard(0)}, {9, 4}};
  EXPECT_EQ(gather_in_full(dp_within_tp, 0), (std::vector<Movement>{{"all_gather", 1, 6 * 4}, {"all_gather", 0, 40}}));
  // A rowwise weight: rows over dp, columns over tp.
  const ShardedLayout rowwise{two_by_two, {shard(0), shard(1)}, {3, 5}};
  EXPECT_EQ(gather_in_full(rowwise, 0), (std::vector<Movement>{{"all_gather", 0, 4 * 3}, {"all_gather", 1, 3 * 6}}));
}

struct RandomLayouts {
  ShardedLayout from{four, {}, {}}, to{four, {}, {}};
  explicit RandomLayouts(std::mt19937& generator) {
    const auto below = [&](int n) { return static_cast<int>(generator() % static_cast<unsigned>(n)); };
    std::vector<int> sizes;
    std::vector<std::string> names;
    const int num_axes = 1 + below(3);
    for (int axis = 0; axis < num_axes; ++axis) {
      sizes.push_back(1 + below(3));
      names.push_back(std::string(1, static_cast<char>('a' + axis)));
    }
    from.mesh = to.mesh = MeshShape(sizes, names);
    from.sizes = to.sizes = {1 + below(9), 1 + below(9)};
    for (ShardedLayout* layout : {&from, &to})
      for (int axis = 0; axis < num_axes; ++axis) {
        const int kind = below(4);
        layout->placements.push_back(kind == 0 ? replicate() : kind == 1 ? partial() : shard(below(2)));
      }
    for (std::size_t axis = 0; axis < to.placements.size(); ++axis)
      if (to.placements[axis].is_partial() && !from.placements[axis].is_replicate())
        to.placements[axis] = from.placements[axis];
    make_strided(from, below(2) == 0);
    make_strided(to, below(2) == 0);
  }
  // The first axis inside all later ones.
  static void make_strided(ShardedLayout& layout, bool is_wanted) {
    Placement& first = layout.placements.front();
    if (!is_wanted || !first.is_shard()) return;
    int split = 1;
    for (std::size_t axis = 1; axis < layout.placements.size(); ++axis)
      if (layout.placements[axis].is_shard(first.dim)) split *= layout.mesh.size(static_cast<int>(axis));
    if (split > 1) first = strided_shard(first.dim, split);
  }
};

TEST(RedistributionCost, EqualsTheStepsOfTheEngineOnRandomLayouts) {
  constexpr unsigned seed = 16;
  std::mt19937 generator(seed);
  int num_movements = 0;
  for (int round = 0; round < 3000; ++round) {
    const RandomLayouts layouts(generator);
    std::vector<std::string> wanted, actual;
    for (const layout::RedistributeStep& step : layout::redistribute_steps(layouts.from, layouts.to))
      if (step.op != layout::RedistributeOp::slice && step.op != layout::RedistributeOp::to_partial)
        wanted.push_back(str(layout::to_text(step.op), " ", step.axis));
    for (const Movement& movement : redistribution(layouts.from, layouts.to.placements, 0))
      actual.push_back(str(movement.operation, " ", movement.axis));
    num_movements += static_cast<int>(actual.size());
    ASSERT_EQ(actual, wanted) << layouts.from.text() << " to " << layouts.to.text() << ", seed " << seed;
  }
  EXPECT_GT(num_movements, 2500);
}

}  // namespace
}  // namespace lockstep::plan
