// Compares the buckets of the plan with buckets written in the tests, and on random models with those of the engine.
#include "harness/plan/bucket_plan.hpp"

#include <numeric>
#include <random>

#include <gtest/gtest.h>

#include "engine/core/defects.hpp"
#include "engine/layout/buckets.hpp"

namespace lockstep::plan {
namespace {

constexpr std::int64_t kib = 1024, mib = 1024 * kib;

std::vector<BucketMember> of_bytes(const std::vector<std::int64_t>& bytes) {
  std::vector<BucketMember> members;
  for (const std::int64_t num_bytes : bytes) members.push_back({num_bytes, DType::float32});
  return members;
}

TEST(BucketPlan, MakesOneBucketPerTypeBeforeTheOrderIsKnown) {
  const std::vector<BucketMember> members = {
      {40 * mib, DType::float32}, {4, DType::float64}, {8 * mib, DType::float32}, {2, DType::bfloat16}};
  EXPECT_EQ(first_buckets(members), (BucketList{{3}, {1}, {0, 2}}));
  EXPECT_TRUE(first_buckets({}).empty());
}

TEST(BucketPlan, ClosesABucketThatReachesItsCap) {
  const std::vector<BucketMember> members = of_bytes({60, 40, 99, 1, 200, 5});
  EXPECT_EQ(rebuilt_buckets(members, {0, 1, 2, 3, 4, 5}, 100), (BucketList{{0, 1}, {2, 3}, {4}, {5}}));
  EXPECT_EQ(rebuilt_buckets(members, {5, 4, 3, 2, 1, 0}, 100), (BucketList{{5, 4}, {3, 2}, {1, 0}}));
  EXPECT_EQ(registered_buckets(members, 100), (BucketList{{5}, {4}, {2, 3}, {0, 1}}));
}

TEST(BucketPlan, GivesTheFirstBucketOfATypeASmallerDefaultCap) {
  const std::vector<BucketMember> members = of_bytes({mib - 4, 4, 24 * mib, mib, 3});
  EXPECT_EQ(rebuilt_buckets(members, {0, 1, 2, 3, 4}, {}), (BucketList{{0, 1}, {2, 3}, {4}}));
  EXPECT_EQ(rebuilt_buckets(members, {0, 1, 2, 3, 4}, 25 * mib), (BucketList{{0, 1, 2}, {3, 4}}));
}

TEST(BucketPlan, OrdersClosedBucketsByTheirEndAndOpenOnesByType) {
  const std::vector<BucketMember> members = {{50, DType::float64}, {50, DType::float32}, {50, DType::float64},
                                             {60, DType::float32}, {9, DType::float64},  {9, DType::float32}};
  EXPECT_EQ(rebuilt_buckets(members, {0, 1, 2, 3, 4, 5}, 100), (BucketList{{0, 2}, {1, 3}, {5}, {4}}));
}

// A random model, with a cap in the range of its sizes.
struct RandomModel {
  explicit RandomModel(unsigned seed) {
    std::mt19937 generator(seed);
    const auto below = [&](int n) { return static_cast<int>(generator() % static_cast<unsigned>(n)); };
    const bool large = below(4) == 0;
    const int num_members = below(24);
    const DType types[] = {DType::float32, DType::float32, DType::float64, DType::bfloat16};
    for (int i = 0; i < num_members; ++i)
      members.push_back({large ? below(4000) * kib : below(40) * 4, types[below(4)]});
    gradient_order.resize(members.size());
    std::iota(gradient_order.begin(), gradient_order.end(), 0);
    std::shuffle(gradient_order.begin(), gradient_order.end(), generator);
    if (below(3) > 0) cap = large ? (1 + below(30)) * mib : 4 * (1 + below(80));
    for (const BucketMember& member : members) engine.push_back({member.bytes, static_cast<int>(member.dtype)});
  }
  // The first function in which plan and engine differ; empty: none.
  std::string difference() const {
    const layout::BucketLimits limits{cap};
    if (first_buckets(members) != layout::make_first_buckets(engine)) return "first";
    if (registered_buckets(members, cap) != layout::make_static_buckets(engine, limits)) return "registered";
    if (rebuilt_buckets(members, gradient_order, cap) != layout::make_ready_buckets(engine, gradient_order, limits))
      return "rebuilt";
    return {};
  }
  std::vector<BucketMember> members;
  std::vector<int> gradient_order;
  std::optional<std::int64_t> cap;
  std::vector<layout::BucketParameter> engine;
};

TEST(BucketPlan, AgreesWithTheEngineOnRandomModels) {
  for (unsigned seed = 0; seed < 3000; ++seed) ASSERT_EQ(RandomModel(seed).difference(), "") << "seed " << seed;
}

TEST(BucketPlan, IsNotChangedByADefectOfTheEngine) {
  arm_defect(Defect::bucket_cap_ignored);
  int num_different = 0;
  for (unsigned seed = 0; seed < 100; ++seed) num_different += RandomModel(seed).difference().empty() ? 0 : 1;
  arm_defect(Defect::none);
  EXPECT_GT(num_different, 40);
}

}  // namespace
}  // namespace lockstep::plan
