#include "harness/scenario/literal.hpp"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "engine/core/error.hpp"

namespace lockstep::scenario {
namespace {

TEST(Literal, ReadsScalars) {
  EXPECT_TRUE(literal_of_scalar("none").is_none());
  EXPECT_EQ(literal_of_scalar("true").as_bool(), true);
  EXPECT_EQ(literal_of_scalar("-17").as_int(), -17);
  EXPECT_EQ(literal_of_scalar("9223372036854775807").as_int(), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(literal_of_scalar("-9223372036854775808").as_int(), std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(literal_of_scalar("1e-2").as_double(), 1e-2);
  EXPECT_TRUE(literal_of_scalar("1e3").is_double());
  EXPECT_EQ(literal_of_scalar("-inf").as_double(), -HUGE_VAL);
  EXPECT_EQ(literal_of_scalar("1fm_1r").as_text(), "1fm_1r");
  EXPECT_EQ(literal_of_scalar("-").as_text(), "-");
  EXPECT_EQ(literal_of_scalar("").as_text(), "");
  EXPECT_EQ(literal_of_scalar("nan").as_text(), "nan");
}

TEST(Literal, RefusesWhatDoesNotFit) {
  EXPECT_THROW(literal_of_scalar("9223372036854775808"), Error);
  EXPECT_THROW(literal_of_scalar("1e999"), Error);
  EXPECT_THROW(Literal(1).as_bool(), Error);
  EXPECT_THROW(Literal(true).as_int(), Error);
  EXPECT_THROW(Literal(1.0).as_int(), Error);
  try {
    Literal("x").as_int();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.message(), "expected an integer, got text x");
  }
}

TEST(Literal, ComparesNumbersByValueAndNothingElse) {
  EXPECT_EQ(Literal(1), Literal(1.0));
  EXPECT_FALSE(Literal(1) == Literal(true));
  EXPECT_FALSE(Literal(0) == Literal());
  EXPECT_FALSE(Literal("1") == Literal(1));
  EXPECT_FALSE(Literal(std::nan("")) == Literal(std::nan("")));
  EXPECT_EQ(Literal(LiteralList{Literal(1), Literal("a")}), Literal(LiteralList{Literal(1.0), Literal("a")}));
  EXPECT_EQ(Literal(LiteralMap{{"a", Literal(1)}, {"b", Literal(2)}}),
            Literal(LiteralMap{{"b", Literal(2)}, {"a", Literal(1)}}));
  EXPECT_FALSE(Literal(LiteralMap{{"a", Literal(1)}}) == Literal(LiteralMap{{"a", Literal(2)}}));
}

TEST(Literal, WritesJsonThatReadsBackToTheSameBits) {
  EXPECT_EQ(Literal(0.1).json(), "0.1");
  EXPECT_EQ(Literal(1.0).json(), "1.0");
  EXPECT_EQ(std::stod(Literal(1.0 / 3).json()), 1.0 / 3);
  EXPECT_EQ(Literal(std::nan("")).json(), "\"nan\"");
  EXPECT_EQ(Literal(-HUGE_VAL).json(), "\"-inf\"");
  EXPECT_EQ(Literal("a\"\\\n\x01").json(), "\"a\\\"\\\\\\n\\u0001\"");
  const Literal map(LiteralMap{{"k", Literal(LiteralList{Literal(), Literal(false), Literal(3)})}});
  EXPECT_EQ(map.json(), "{\"k\":[null,false,3]}");
  EXPECT_EQ(map.text(), "{k:[none,false,3]}");
}

TEST(Literal, ReadsFlowForms) {
  EXPECT_EQ(parse_literal("[1, 2.5, a, 'true']"),
            Literal(LiteralList{Literal(1), Literal(2.5), Literal("a"), Literal("true")}));
  EXPECT_EQ(parse_literal("{a: none}").find("a")->is_none(), true);
  EXPECT_THROW(parse_literal("[1, 2"), Error);
  EXPECT_THROW(parse_literal("yes"), Error);
  EXPECT_THROW(parse_literal("010"), Error);
}

}  // namespace
}  // namespace lockstep::scenario
