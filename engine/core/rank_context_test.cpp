#include "engine/core/rank_context.hpp"

#include <string>
#include <thread>

#include "gtest/gtest.h"

#include "engine/core/error.hpp"

namespace lockstep {
namespace {

std::string story;

struct First {
  explicit First(RankContext& context) : rank(context.rank()) {}
  ~First() { story += "first "; }
  int rank;
};
struct Second {
  explicit Second(RankContext& context) : first(&context.service<First>()) {}
  ~Second() {
    // The context is still current, and earlier services still exist.
    story += "second(" + std::to_string(RankContext::current().service<First>().rank) + ") ";
  }
  First* first;
};

TEST(RankContext, CreatesServicesOnceAndDestroysThemInReverse) {
  story.clear();
  {
    RankContext context(5, 8);
    EXPECT_FALSE(context.has_service<Second>());
    Second& second = context.service<Second>();
    EXPECT_EQ(&context.service<Second>(), &second);
    EXPECT_EQ(second.first->rank, 5);
    EXPECT_TRUE(context.has_service<First>());
  }
  EXPECT_EQ(story, "second(5) first ");
}

TEST(RankContext, IsCurrentOnlyOnItsThread) {
  EXPECT_EQ(RankContext::current_or_null(), nullptr);
  EXPECT_THROW(RankContext::current(), InternalError);
  RankContext zero(0, 2), one(1, 2);
  RankScope scope(zero);
  std::thread([&] {
    EXPECT_EQ(RankContext::current_or_null(), nullptr);
    RankScope inner(one);
    EXPECT_EQ(RankContext::current().rank(), 1);
  }).join();
  EXPECT_EQ(RankContext::current().rank(), 0);
  {
    RankScope inner(one);
    EXPECT_EQ(RankContext::current().rank(), 1);
  }
  EXPECT_EQ(RankContext::current().rank(), 0);
}

TEST(RankContext, HasAGeneratorPerRank) {
  RankContext a(0, 2), b(1, 2);
  a.generator().seed(3);
  b.generator().seed(3);
  const std::uint32_t first = a.generator().next32();
  a.generator().next32();
  EXPECT_EQ(b.generator().next32(), first);
}

}  // namespace
}  // namespace lockstep
