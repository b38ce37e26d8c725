#include "engine/layout/buckets.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/core/error.hpp"

namespace lockstep::layout {
namespace {

using ::testing::ElementsAre;
constexpr std::int64_t mib = std::int64_t{1} << 20;

TEST(Buckets, FirstIterationUsesOneBucketPerKindReversed) {
  EXPECT_EQ(make_first_buckets({{400 * mib, 0}, {4, 1}, {400 * mib, 0}, {4, 1}}), (Buckets{{1, 3}, {0, 2}}));
  EXPECT_EQ(make_first_buckets({}), Buckets{});
}

TEST(Buckets, ReadyOrderStartsWithSmallBucketByDefault) {
  const std::vector<BucketParameter> parameters(40, {mib, 0});
  std::vector<int> order;
  for (int i = 39; i >= 0; --i) order.push_back(i);
  const Buckets buckets = make_ready_buckets(parameters, order, {});
  ASSERT_EQ(buckets.size(), 3u);
  EXPECT_THAT(buckets[0], ElementsAre(39));
  EXPECT_EQ(buckets[1].size(), 25u);
  EXPECT_EQ(buckets[1].front(), 38);
  EXPECT_EQ(buckets[2].size(), 14u);
  EXPECT_EQ(buckets[2].back(), 0);

  const Buckets capped = make_ready_buckets(parameters, order, {.cap_bytes = 20 * mib});
  ASSERT_EQ(capped.size(), 2u);
  EXPECT_EQ(capped[0].size(), 20u);
  EXPECT_EQ(capped[1].size(), 20u);
}

TEST(Buckets, CloseOnceTheyReachTheCap) {
  EXPECT_EQ(make_ready_buckets({{6, 0}, {6, 0}, {6, 0}}, {2, 1, 0}, {.cap_bytes = 7}), (Buckets{{2, 1}, {0}}));
  EXPECT_EQ(make_ready_buckets({{7, 0}, {6, 0}, {6, 0}}, {0, 1, 2}, {.cap_bytes = 7}), (Buckets{{0}, {1, 2}}));
}

TEST(Buckets, CloseSeparatelyPerKind) {
  EXPECT_EQ(make_ready_buckets({{4, 0}, {4, 1}, {4, 0}, {4, 1}, {4, 0}}, {4, 3, 2, 1, 0}, {.cap_bytes = 8}),
            (Buckets{{4, 2}, {3, 1}, {0}}));
}

TEST(Buckets, StaticBucketsFillInRegistrationOrderAndAreReversed) {
  std::vector<BucketParameter> parameters(30, {mib, 0});
  const Buckets buckets = make_static_buckets(parameters, {});
  ASSERT_EQ(buckets.size(), 3u);
  EXPECT_THAT(buckets[2], ElementsAre(0));  // the small first bucket holds the parameter registered first
  EXPECT_EQ(buckets[1].front(), 1);
  EXPECT_EQ(buckets[1].size(), 25u);
  EXPECT_EQ(buckets[0].front(), 26);
}

TEST(Buckets, RefuseIncompleteOrders) {
  EXPECT_THROW(make_ready_buckets({{1, 0}, {1, 0}}, {0, 0}, {}), InternalError);
  EXPECT_THROW(make_ready_buckets({{1, 0}, {1, 0}}, {0}, {}), InternalError);
}

}  // namespace
}  // namespace lockstep::layout
