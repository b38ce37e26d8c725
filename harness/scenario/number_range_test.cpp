#include "harness/scenario/number_range.hpp"

#include <cmath>

#include "gtest/gtest.h"

#include "engine/core/error.hpp"

namespace lockstep::scenario {
namespace {

const double inf = std::numeric_limits<double>::infinity();
const double nan = std::nan("");

TEST(NumberRange, IncludesItsEnds) {
  const NumberRange range = parse_range("from 0 to 3600000");
  EXPECT_TRUE(range.holds(0) && range.holds(3.6e6));
  for (const double outside : {-1e-300, 3600000.5, 1e300, inf, -inf, nan})
    EXPECT_FALSE(range.holds(outside)) << outside;
}

TEST(NumberRange, ExcludesOpenEnds) {
  const NumberRange range = parse_range("above 0 below 1");
  EXPECT_TRUE(range.holds(0.5));
  for (const double outside : {0.0, 1.0, nan, inf}) EXPECT_FALSE(range.holds(outside)) << outside;
}

TEST(NumberRange, IncludesInfinityIfStated) {
  const NumberRange range = parse_range("above 0 or inf");
  EXPECT_TRUE(range.holds(inf) && range.holds(1e300));
  EXPECT_FALSE(range.holds(-inf) || range.holds(nan) || range.holds(0));
  EXPECT_FALSE(parse_range("above 0").holds(inf));
}

TEST(NumberRange, IncludesAllWithoutText) {
  for (const double number : {0.0, -inf, inf, nan}) EXPECT_TRUE(NumberRange().holds(number));
}

TEST(NumberRange, ReportsNumbersOutOfRange) {
  EXPECT_EQ(out_of_range("lr", -1, parse_range("from 0")), "lr is -1; it must be from 0");
  EXPECT_EQ(out_of_range("lr", inf, parse_range("from 0")), "lr is inf; it must be from 0, and finite");
  EXPECT_EQ(out_of_range("lr", 1, parse_range("from 0")), "");
  EXPECT_THROW(parse_range("between 0"), InternalError);
}

}  // namespace
}  // namespace lockstep::scenario
