#include "harness/scenario/arithmetic.hpp"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/scenario/expand.hpp"

namespace lockstep::scenario {
namespace {

Literal value_of(const std::string& text, const Bindings& bindings = {}) {
  return evaluate_constant(*parse_expression(text, Place{"a.yaml", 1, 1}), bindings, "a.yaml");
}

std::string error_of(const std::string& text, const Bindings& bindings = {}) {
  try {
    value_of(text, bindings);
  } catch (const ScenarioError& error) {
    return error.message();
  }
  return "none";
}

TEST(Arithmetic, DistinguishesIntegersAndNumbers) {
  EXPECT_EQ(value_of("7 // 2").as_int(), 3);
  EXPECT_EQ(value_of("-7 // 2").as_int(), -4);
  EXPECT_EQ(value_of("-7 % 3").as_int(), 2);
  EXPECT_EQ(value_of("7 % -3").as_int(), -2);
  EXPECT_EQ(value_of("-7.5 // 2").as_double(), -4.0);
  EXPECT_TRUE(value_of("4 / 2").is_double());
  EXPECT_EQ(value_of("4 / 2").as_double(), 2.0);
  EXPECT_EQ(value_of("2 ** 62").as_int(), std::int64_t{1} << 62);
  EXPECT_EQ(value_of("2 ** -1").as_double(), 0.5);
  EXPECT_EQ(value_of("-3 ** 2").as_int(), -9);
  EXPECT_TRUE(value_of("1 + 1.0").is_double());
  EXPECT_EQ(value_of("1 == 1.0").as_bool(), true);
  EXPECT_EQ(value_of("2 != false").as_bool(), true);
  EXPECT_EQ(value_of("1 == true").as_bool(), false);
  EXPECT_EQ(value_of("-7.5 % 2").as_double(), 0.5);
  EXPECT_EQ(value_of("5.0 % inf").as_double(), 5.0);
  EXPECT_EQ(value_of("-5.0 % inf").text(), "inf");
  EXPECT_EQ(value_of("[1.0 // 0.1, -1.0 // 0.1, 0.3 // 0.1, -5.0 // inf, 5.0 // -inf, 5.0 // inf]").text(),
            "[9.0,-10.0,2.0,-1.0,-1.0,0.0]");
}

TEST(Arithmetic, ComparesIntegersThatNoNumberHolds) {
  EXPECT_EQ(value_of("9007199254740993 == 9007199254740992.0").as_bool(), false);
  EXPECT_EQ(value_of("9007199254740993 > 9007199254740992.0").as_bool(), true);
  EXPECT_EQ(value_of("9223372036854775807 < 9223372036854775808.0").as_bool(), true);
  EXPECT_EQ(value_of("9223372036854775808.0 <= 9223372036854775807").as_bool(), false);
  EXPECT_EQ(value_of("-9223372036854775808 == -9223372036854775808.0").as_bool(), true);
  EXPECT_EQ(value_of("[2 < 2.5, -2 > -2.5, 3 <= 3.0, 2.5 < 3, inf > 3, -inf < 3]").text(),
            "[true,true,true,true,true,true]");
  EXPECT_EQ(compare_values(1, std::nan("")), 2);
}

TEST(Arithmetic, RefusesOverflowAndDivisionByZero) {
  EXPECT_EQ(error_of("9223372036854775807 + 1"), "a.yaml:1:21: 64-bit overflow in 9223372036854775807 + 1");
  EXPECT_EQ(error_of("2 ** 63"), "a.yaml:1:3: 64-bit overflow in 2 ** 63");
  EXPECT_EQ(error_of("-9223372036854775808 // -1"), "a.yaml:1:22: 64-bit overflow in -9223372036854775808 // -1");
  EXPECT_EQ(value_of("-9223372036854775808 % -1").as_int(), 0);
  EXPECT_EQ(error_of("--9223372036854775808"), "a.yaml:1:1: 64-bit overflow in -(-9223372036854775808)");
  EXPECT_EQ(error_of("4 * (3 // 0)"), "a.yaml:1:8: division by zero in 3 // 0");
  EXPECT_EQ(error_of("1 % 0"), "a.yaml:1:3: division by zero in 1 % 0");
  EXPECT_THAT(error_of("0 ** -1"), ::testing::HasSubstr("0**-1 has no value"));
  EXPECT_THAT(error_of("0.0 ** -0.5"), ::testing::HasSubstr("has no value"));
  EXPECT_EQ(error_of("round(1e300)"), "a.yaml:1:1: round of 1e+300 does not fit in 64 bits");
  EXPECT_EQ(value_of("1 ** 1000000000000").as_int(), 1);
}

TEST(Arithmetic, RequiresBooleansAsConditions) {
  EXPECT_EQ(error_of("1 and true"), "a.yaml:1:1: a condition must be a boolean, got integer 1");
  EXPECT_EQ(error_of("not none"), "a.yaml:1:5: a condition must be a boolean, got none none");
  EXPECT_EQ(value_of("false and 1 // 0 == 0").as_bool(), false);
  EXPECT_EQ(value_of("true or 1 // 0 == 0").as_bool(), true);
  EXPECT_EQ(value_of("1 if true else 1 // 0").as_int(), 1);
  EXPECT_EQ(error_of("true + 1"), "a.yaml:1:6: `+` is not defined for boolean true and integer 1");
  EXPECT_EQ(error_of("'a' < 1"), "a.yaml:1:5: `<` is not defined for text a and integer 1");
}

TEST(Arithmetic, HandlesListsMapsAndTexts) {
  EXPECT_EQ(value_of("[1, 2] + [3]").text(), "[1,2,3]");
  EXPECT_EQ(value_of("[0] * 3").text(), "[0,0,0]");
  EXPECT_EQ(value_of("[0] * -1").text(), "[]");
  EXPECT_EQ(value_of("'a' + 'b'").as_text(), "ab");
  EXPECT_EQ(value_of("[1, 2, 3][-1]").as_int(), 3);
  EXPECT_EQ(value_of("[1, 2, 3][1:]").text(), "[2,3]");
  EXPECT_EQ(value_of("[1, 2, 3][:-1]").text(), "[1,2]");
  EXPECT_EQ(value_of("'abc'[1:2]").as_text(), "b");
  EXPECT_EQ(value_of("'abc'[0] + 'abc'[-1]").as_text(), "ac");
  EXPECT_EQ(value_of("len('d\xc3\xa9j\xc3\xa0')").as_int(), 4);
  EXPECT_EQ(value_of("'d\xc3\xa9j\xc3\xa0'[-1]").as_text(), "\xc3\xa0");
  EXPECT_EQ(value_of("'d\xc3\xa9j\xc3\xa0'[1:3]").as_text(), "\xc3\xa9j");
  EXPECT_THAT(error_of("'\xc3\xa9'[1]"), ::testing::HasSubstr("index 1 is out of range for a text of 1 characters"));
  EXPECT_EQ(value_of("{'a': 1}.a").as_int(), 1);
  EXPECT_EQ(value_of("{'all': 0, 'some': 2}['some']").as_int(), 2);
  EXPECT_EQ(value_of("2 in [1, 2.0]").as_bool(), true);
  EXPECT_EQ(value_of("'b' in 'abc'").as_bool(), true);
  EXPECT_EQ(value_of("[i * j for i, j in zip([1, 2], [3, 4]) if i > 1]").text(), "[8]");
  EXPECT_EQ(value_of("{text(i): i for i in range(2)}").text(), "{0:0,1:1}");
  EXPECT_EQ(value_of("[[i + j for i in range(2)] for j in range(2)]").text(), "[[0,1],[1,2]]");
  EXPECT_EQ(error_of("[1][3]"), "a.yaml:1:4: index 3 is out of range for a list of 1 items");
  EXPECT_EQ(error_of("{'size': 1}.sice"), "a.yaml:1:13: no entry `sice`; did you mean `size`?");
  EXPECT_EQ(error_of("[0] * 10001"), "a.yaml:1:5: a list of 10001 items; at most 10000 are allowed");
}

TEST(Arithmetic, CallsPlainFunctions) {
  EXPECT_EQ(value_of("max(1, 2.5)").as_double(), 2.5);
  EXPECT_EQ(value_of("min([3, 2])").as_int(), 2);
  EXPECT_EQ(value_of("sum([1, 2, 3])").as_int(), 6);
  EXPECT_EQ(value_of("round(2.5)").as_int(), 2);
  EXPECT_EQ(value_of("round(3.5)").as_int(), 4);
  EXPECT_EQ(value_of("floor(-0.5)").as_int(), -1);
  EXPECT_EQ(value_of("ceil(0.5)").as_int(), 1);
  EXPECT_EQ(value_of("range(5, 0, -2)").text(), "[5,3,1]");
  EXPECT_EQ(value_of("range(stop=7, start_or_stop=5)").text(), "[5,6]");
  EXPECT_EQ(value_of("sorted(['b', 'a'])").text(), "[a,b]");
  EXPECT_EQ(value_of("count([true, false, true])").as_int(), 2);
  EXPECT_EQ(value_of("int('42') + int(2.9)").as_int(), 44);
  EXPECT_EQ(value_of("len(put({'a': 1}, 'b', 2))").as_int(), 2);
  EXPECT_EQ(value_of("put({'a': 1}, 'a', 2).a").as_int(), 2);
  EXPECT_EQ(value_of("keys({'a': 1, 'b': 2})").text(), "[a,b]");
  EXPECT_EQ(value_of("has({'a': 1}, 'b')").as_bool(), false);
  EXPECT_EQ(value_of("[has({1: 'a'}, 1), has({1: 'a'}, 2), 1 in {1: 'a'}]").text(), "[true,false,true]");
  EXPECT_EQ(value_of("put({1: 'a'}, 1, 'b')[1]").as_text(), "b");
  EXPECT_EQ(value_of("starts_with('abc', 'ab') and ends_with('abc', 'bc')").as_bool(), true);
  EXPECT_EQ(value_of("log2(8)").as_double(), 3.0);
  EXPECT_EQ(value_of("any([false, true]) and not all([false, true])").as_bool(), true);
  EXPECT_EQ(error_of("all([])"), "a.yaml:1:1: all() of an empty list");
  EXPECT_EQ(error_of("zip([1], [])"), "a.yaml:1:1: zip(): lists of 1 and 0 items; give lists of the same length");
  EXPECT_EQ(error_of("sqrt(-1)"), "a.yaml:1:1: sqrt(-1) is not a finite number");
  EXPECT_EQ(error_of("sorted([1, 'a'])"), "a.yaml:1:1: `<` is not defined for integer 1 and text a");
  EXPECT_EQ(error_of("range(100000)"), "a.yaml:1:1: a list of 10001 items; at most 10000 are allowed");
  EXPECT_EQ(error_of("randn(2)"), "a.yaml:1:1: `randn` cannot be called before launch");
}

TEST(Arithmetic, StopsEndlessEvaluation) {
  EXPECT_THAT(error_of("[[[0 for i in range(10000)] for j in range(10000)] for k in range(10000)]"),
              ::testing::HasSubstr("the expression takes too long to evaluate before launch"));
}

TEST(Arithmetic, MatchesFileNamePatterns) {
  EXPECT_TRUE(glob_matches("layers.*.w[qkv]", "layers.10.wq"));
  EXPECT_FALSE(glob_matches("layers.*.w[qkv]", "layers.10.wo"));
  EXPECT_TRUE(glob_matches("a?c", "abc"));
  EXPECT_FALSE(glob_matches("a?c", "ac"));
  EXPECT_TRUE(glob_matches("a?c", "a\xc3\xa9\x63"));
  EXPECT_FALSE(glob_matches("*??", "\xc3\xa9"));
  EXPECT_TRUE(glob_matches("[!a-c]x", "dx"));
  EXPECT_FALSE(glob_matches("[!a-c]x", "bx"));
  EXPECT_TRUE(glob_matches("*", ""));
  EXPECT_TRUE(glob_matches("[", "["));
  EXPECT_TRUE(glob_matches("**a**b", "xaxxb"));
  EXPECT_FALSE(glob_matches(std::string(40, '*') + "b", std::string(5000, 'a')));
}

}  // namespace
}  // namespace lockstep::scenario
