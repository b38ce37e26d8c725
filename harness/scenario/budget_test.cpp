#include "harness/scenario/budget.hpp"

#include <limits>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/core/text.hpp"
#include "harness/scenario/literal.hpp"

namespace lockstep::scenario {
namespace {

using ::testing::HasSubstr;

TEST(Budget, BelongsToInnermostScopeOfThread) {
  EXPECT_EQ(Budget::current(), nullptr);
  Budget outer({}), inner({});
  const BudgetScope scope(outer);
  EXPECT_EQ(Budget::current(), &outer);
  {
    const BudgetScope within(inner);
    EXPECT_EQ(Budget::current(), &inner);
    std::thread([] { EXPECT_EQ(Budget::current(), nullptr); }).join();
  }
  EXPECT_EQ(Budget::current(), &outer);
}

TEST(Budget, RefusesMoreThanItsLimit) {
  Budget budget({.memory_bytes = 3 << 20, .of = "a rank", .remedy = "ask for less"});
  const BudgetScope scope(budget);
  const Charge charge(2 << 20);
  EXPECT_NO_THROW(Budget::ask(1 << 20, [] { return std::string("a list"); }));
  try {
    Budget::ask((1 << 20) + 1, [] { return std::string("a list of 7 items"); });
    FAIL() << "no error";
  } catch (const BudgetError& error) {
    EXPECT_EQ(error.message(), "a list of 7 items needs 1.0 MiB; of the 3 MiB that a rank may use, 2 MiB are in use");
    EXPECT_EQ(error.remedy(), "ask for less");
  }
  EXPECT_THROW(Budget::ask(std::numeric_limits<std::int64_t>::max(), [] { return std::string("all"); }), BudgetError);
}

TEST(Budget, CountsTensorsBesideValues) {
  Budget budget({.memory_bytes = 100, .beside = +[] { return std::int64_t{90}; }});
  EXPECT_TRUE(budget.has_room(10));
  EXPECT_FALSE(budget.has_room(11));
}

TEST(Budget, ReleasesBytesOfDestroyedValues) {
  Budget budget({.memory_bytes = 1 << 20});
  const BudgetScope scope(budget);
  {
    const Literal text(std::string(1 << 19, 'x'));
    EXPECT_GE(budget.counter()->load(), 1 << 19);
    const Literal same = text;  // shared: no further bytes
    EXPECT_LT(budget.counter()->load(), (1 << 19) + 1000);
    EXPECT_THROW(Literal(std::string(1 << 19, 'y')), BudgetError);
  }
  EXPECT_EQ(budget.counter()->load(), 0);
}

TEST(Budget, EndsAtItsTimeLimit) {
  Budget any({});
  EXPECT_NO_THROW(any.check_time());
  Budget some({.seconds = 1e-9, .of = "the reading"});
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_THROW(some.check_time(), OutOfTime);
}

TEST(Budget, StopsTextOfListWithManySharedItems) {
  Budget budget({.memory_bytes = 1 << 20});
  const BudgetScope scope(budget);
  Literal list(LiteralList(100, Literal(std::int64_t{1234567890})));
  for (int i = 0; i < 3; ++i) list = Literal(LiteralList(100, list));  // 10^8 numbers in the text, 400 in memory
  EXPECT_THROW(list.json(), BudgetError);
  EXPECT_THROW(list.text(), BudgetError);
  EXPECT_LT(list.shown().size(), 200u);
  EXPECT_THAT(list.shown(), HasSubstr("..."));
}

TEST(Budget, ShowsBytesInMebibytes) {
  EXPECT_EQ(bytes_text(0), "0 bytes");
  EXPECT_EQ(bytes_text(1 << 20), "1 MiB");
  EXPECT_EQ(bytes_text((1 << 20) + (1 << 19)), "1.5 MiB");
}

}  // namespace
}  // namespace lockstep::scenario
