#include "harness/verdict/compare.hpp"

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"
#include "harness/verdict/compare_test_support.hpp"

namespace lockstep::verdict {
namespace {

using namespace testing_support;

struct ArmedDefect {
  explicit ArmedDefect(Defect defect) { arm_defect(defect); }
  ~ArmedDefect() { arm_defect(Defect::none); }
};

TEST(ToleranceOf, FollowsTheElementType) {
  EXPECT_EQ(tolerance_of(DType::float32).rtol, 1.3e-6);
  EXPECT_EQ(tolerance_of(DType::float32).atol, 1e-5);
  EXPECT_EQ(tolerance_of(DType::float64).rtol, 1e-7);
  EXPECT_EQ(tolerance_of(DType::float64).atol, 1e-7);
  EXPECT_EQ(tolerance_of(DType::float16).rtol, 1e-3);
  EXPECT_EQ(tolerance_of(DType::float16).atol, 1e-5);
  EXPECT_EQ(tolerance_of(DType::bfloat16).rtol, 1.6e-2);
  EXPECT_EQ(tolerance_of(DType::bfloat16).atol, 1e-5);
  for (DType dtype : {DType::int64, DType::int32, DType::boolean}) {
    EXPECT_EQ(tolerance_of(dtype).rtol, 0.0);
    EXPECT_EQ(tolerance_of(dtype).atol, 0.0);
  }
}

TEST(ToleranceOf, OfSumsInAnotherOrderFollowsTheElementType) {
  const auto expect = [](DType dtype, Tolerance expected) {
    const Tolerance tolerance = tolerance_of_another_order(dtype);
    EXPECT_EQ(tolerance.rtol, expected.rtol) << name_of(dtype);
    EXPECT_EQ(tolerance.atol, expected.atol) << name_of(dtype);
    EXPECT_EQ(tolerance.of_largest, expected.of_largest) << name_of(dtype);
  };
  expect(DType::float32, {1e-3, 1e-5, 1e-4});
  expect(DType::float64, {1e-9, 1e-12, 1e-10});
  expect(DType::float16, {1e-2, 1e-5, 1e-2});
  expect(DType::bfloat16, {5e-2, 1e-5, 5e-2});
  for (DType dtype : {DType::int64, DType::int32, DType::boolean}) expect(dtype, {0.0, 0.0, 0.0});
}

TEST(Compare, FindsSameValuesEqualInBits) {
  const Comparison c = compare_by_type<float>({1.5f, -2.25f}, {1.5f, -2.25f});
  EXPECT_TRUE(c.equal);
  EXPECT_TRUE(c.same_bits);
  EXPECT_FALSE(c.trivial);
  EXPECT_EQ(c.elements, 2);
  EXPECT_EQ(c.num_off, 0);
  EXPECT_EQ(c.max_abs_difference, 0.0);
  EXPECT_EQ(c.message, "");
}

TEST(Compare, HoldsUpToTheToleranceAndNotBeyond) {
  const CompareOptions options{{0.0, 0.25}, 0, 0, false};
  EXPECT_TRUE(compare_lists<float>({1.25f}, {1.0f}, options).equal);
  EXPECT_FALSE(compare_lists<float>({1.2500001f}, {1.0f}, options).equal);
  // The relative tolerance is relative to the expected value.
  const CompareOptions relative{{0.5, 0.0}, 0, 0, false};
  EXPECT_TRUE(compare_lists<float>({3.0f}, {2.0f}, relative).equal);
  EXPECT_FALSE(compare_lists<float>({1.0f}, {3.0f}, relative).equal);
  EXPECT_TRUE(compare_lists<float>({2.0f}, {4.0f}, relative).equal);
  EXPECT_FALSE(compare_lists<float>({4.0f}, {2.0f}, relative).equal);
}

TEST(Compare, AddsOfLargestToTheTolerance) {
  CompareOptions options{{0.0, 0.0}, 0.125, 8.0, false};
  EXPECT_TRUE(compare_lists<float>({2.0f}, {1.0f}, options).equal);
  EXPECT_FALSE(compare_lists<float>({2.125f}, {1.0f}, options).equal);
  // An infinite or undefined largest must not make everything equal.
  options.largest_expected = inf64;
  EXPECT_FALSE(compare_lists<float>({2.0f, inf32}, {1.0f, inf32}, options).equal);
  options.largest_expected = std::nan("");
  EXPECT_FALSE(compare_lists<float>({2.0f}, {1.0f}, options).equal);
}

TEST(Compare, FindsANotANumberEqualToNothing) {
  const std::vector<float> values{1.0f, nan32};
  const Comparison self = compare_lists(values, values, exactly());
  EXPECT_FALSE(self.equal);
  EXPECT_TRUE(self.same_bits);
  EXPECT_EQ(self.num_off, 1);
  EXPECT_TRUE(std::isnan(self.max_abs_difference));
  EXPECT_FALSE(compare_lists(values, values, same_bits()).equal);
  EXPECT_FALSE(compare_by_type<float>({1.0f, 2.0f}, values).equal);
  EXPECT_FALSE(compare_by_type<float>(values, {1.0f, 2.0f}).equal);
}

TEST(Compare, FindsAnInfinityEqualToItselfOnly) {
  EXPECT_TRUE(compare_by_type<float>({inf32, 1.0f}, {inf32, 1.000001f}).equal);
  EXPECT_FALSE(compare_by_type<float>({3.0f}, {inf32}).equal);
  EXPECT_FALSE(compare_by_type<float>({-inf32}, {inf32}).equal);
  EXPECT_FALSE(compare_by_type<float>({inf32}, {3.0f}).equal);
  const Comparison c = compare_by_type<float>({inf32, 1.0f}, {inf32, 1.000001f});
  EXPECT_LT(c.max_abs_difference, 2e-6);
  EXPECT_FALSE(compare_by_type<double>({1.7e308}, {-1.7e308}).equal);
}

TEST(Compare, FindsZerosOfBothSignsEqualInValueOnly) {
  const Comparison value = compare_by_type<float>({0.0f, 1.0f}, {-0.0f, 1.0f});
  EXPECT_TRUE(value.equal);
  EXPECT_FALSE(value.same_bits);
  const Comparison bits = compare_lists<float>({0.0f, 1.0f}, {-0.0f, 1.0f}, same_bits());
  EXPECT_FALSE(bits.equal);
  EXPECT_EQ(bits.message,
            "1 of 2 elements (50 %) has other bits, all within rtol 1.3e-06, atol 1e-05\n"
            "  there at (0,): actual 0, expected -0, difference 0 absolute, 0 relative, 0 units in the last place");
}

TEST(Compare, MarksTrivialComparisons) {
  EXPECT_TRUE(compare_by_type<float>({0.0f, -0.0f}, {0.0f, 0.0f}).trivial);
  EXPECT_FALSE(compare_by_type<float>({0.0f, 0.0f}, {0.0f, 1e-40f}).trivial);
  EXPECT_FALSE(compare_by_type<float>({0.0f, 1e-40f}, {0.0f, 0.0f}).trivial);
  EXPECT_TRUE(compare_by_type<std::int64_t>({0, 0}, {0, 0}).trivial);
  EXPECT_TRUE(compare_by_type<Half>({Half(0.0f)}, {Half(-0.0f)}).trivial);
  const Comparison empty = compare_by_type<float>({}, {});
  EXPECT_TRUE(empty.trivial);
  EXPECT_TRUE(empty.equal);
  EXPECT_TRUE(empty.same_bits);
  EXPECT_EQ(empty.elements, 0);
}

TEST(Compare, IsTrivialForSharedStorageAtTheSameOffsetOnly) {
  const std::vector<float> values{1.0f, 2.0f};
  Operand a = operand(values);
  Operand b = operand(values);
  a.storage = b.storage = &values;
  EXPECT_TRUE(compare(a, b, exactly()).trivial);
  b.storage_offset = 2;
  EXPECT_FALSE(compare(a, b, exactly()).trivial);
  b.storage_offset = 0;
  b.storage = &a;
  EXPECT_FALSE(compare(a, b, exactly()).trivial);
  a.storage = b.storage = nullptr;  // unknown identities are not the same one
  EXPECT_FALSE(compare(a, b, exactly()).trivial);
}

TEST(Compare, ComparesIntegersAndBooleansExactly) {
  // Neighbours that are the same as a double.
  const std::int64_t big = (std::int64_t{1} << 53) + 1;
  EXPECT_FALSE(compare_by_type<std::int64_t>({big}, {big - 1}).equal);
  EXPECT_TRUE(compare_by_type<std::int64_t>({big}, {big}).equal);
  EXPECT_FALSE(compare_by_type<std::int32_t>({7}, {8}).equal);
  const Comparison far = compare_by_type<std::int64_t>({std::numeric_limits<std::int64_t>::max()},
                                                       {std::numeric_limits<std::int64_t>::min()});
  EXPECT_EQ(far.message,
            "1 of 1 element (100 %) differs, compared exactly\n"
            "  value at (0,): actual 9223372036854775807, expected -9223372036854775808, "
            "difference 18446744073709551615 absolute, 2 relative");
  // A tolerance holds for integers too if one is given, but never for booleans.
  EXPECT_TRUE(compare_lists<std::int64_t>({10}, {12}, CompareOptions{{0, 2}, 0, 0, false}).equal);
  EXPECT_FALSE(compare_lists<std::int64_t>({9}, {12}, CompareOptions{{0, 2}, 0, 0, false}).equal);
  const bool flags_a[] = {true, false};
  const bool flags_b[] = {true, true};
  const Operand a{DType::boolean, {2}, flags_a, nullptr, 0};
  const Operand b{DType::boolean, {2}, flags_b, nullptr, 0};
  const Comparison c = compare(a, b, CompareOptions{{0, 5}, 0, 0, false});
  EXPECT_FALSE(c.equal);
  EXPECT_EQ(c.message,
            "1 of 2 elements (50 %) differs, compared exactly\n"
            "  there at (1,): actual false, expected true");
}

TEST(Compare, ReportsDifferentTypesAndSizes) {
  const std::vector<float> floats{1, 2, 3, 4, 5, 6};
  const std::vector<double> doubles{1, 2, 3, 4, 5, 6};
  const Comparison types = compare(operand(floats), operand(doubles), exactly());
  EXPECT_FALSE(types.equal);
  EXPECT_EQ(types.message, "types differ: actual is float32, expected is float64");
  const Comparison sizes = compare(operand(floats, {2, 3}), operand(floats, {3, 2}), exactly());
  EXPECT_FALSE(sizes.equal);
  EXPECT_EQ(sizes.message, "sizes differ: actual is (2, 3), expected is (3, 2)");
  const Comparison empty = compare(operand(floats, {0, 3}), operand(floats, {0, 2}), exactly());
  EXPECT_FALSE(empty.equal);
}

TEST(Compare, ChecksThatTolerancesAreFiniteAndNotNegative) {
  for (double bad : {-1e-6, inf64, std::nan("")}) {
    EXPECT_THROW(compare_lists<float>({1.0f}, {1.0f}, CompareOptions{{bad, 0}, 0, 0, false}), Error);
    EXPECT_THROW(compare_lists<float>({1.0f}, {1.0f}, CompareOptions{{0, bad}, 0, 0, false}), Error);
    EXPECT_THROW(compare_lists<float>({1.0f}, {1.0f}, CompareOptions{{0, 0}, bad, 1, false}), Error);
  }
}

TEST(Compare, UsesTheToleranceOfSixteenBitTypes) {
  EXPECT_TRUE(compare_by_type<BFloat16>({BFloat16(1.0078125f)}, {BFloat16(1.0f)}).equal);  // one unit: 0.8 %
  EXPECT_FALSE(compare_by_type<BFloat16>({BFloat16(1.03125f)}, {BFloat16(1.0f)}).equal);
  EXPECT_TRUE(compare_by_type<Half>({Half(1.0009766f)}, {Half(1.0f)}).equal);  // one unit: 0.098 %
  EXPECT_FALSE(compare_by_type<Half>({Half(1.0019531f)}, {Half(1.0f)}).equal);
  const Comparison c = compare_by_type<Half>({Half(1.0019531f)}, {Half(1.0f)});
  EXPECT_THAT(c.message, testing::HasSubstr("2 units in the last place"));
  const Comparison across =
      compare_by_type<Half>({Half(5.9604645e-8f), Half(1.0f)}, {Half(-5.9604645e-8f), Half(2.0f)});
  EXPECT_EQ(across.num_off, 1);
}

TEST(Compare, FindsOneElementAmongMany) {
  const std::int64_t n = 10'000;
  std::vector<float> expected(n, 1.0f);
  for (std::int64_t at : {std::int64_t{0}, std::int64_t{2047}, std::int64_t{2048}, std::int64_t{4095}, n - 1}) {
    std::vector<float> actual = expected;
    actual[static_cast<std::size_t>(at)] = 2.0f;
    const Comparison c = compare(operand(actual, {10, 1000}), operand(expected, {10, 1000}), exactly());
    EXPECT_EQ(c.num_off, 1);
    EXPECT_THAT(c.message, testing::HasSubstr("there at " + to_text(Dims{at / 1000, at % 1000})));
  }
}

TEST(Compare, ReadsDataOfAnyAlignment) {
  std::vector<char> room_a(64), room_b(64);
  const double values_a[] = {1.0, 2.0, 3.0};
  const double values_b[] = {1.0, 2.0, 4.0};
  std::memcpy(room_a.data() + 1, values_a, sizeof values_a);
  std::memcpy(room_b.data() + 3, values_b, sizeof values_b);
  const Comparison c = compare(Operand{DType::float64, {3}, room_a.data() + 1, nullptr, 0},
                               Operand{DType::float64, {3}, room_b.data() + 3, nullptr, 0}, exactly());
  EXPECT_EQ(c.num_off, 1);
  EXPECT_EQ(c.max_abs_difference, 1.0);
}

TEST(CompareDefects, AlwaysEqualHoldsForAnyValues) {
  const ArmedDefect armed(Defect::compare_always_equal);
  const Comparison c = compare_by_type<float>({1.0f}, {2.0f});
  EXPECT_TRUE(c.equal);
  EXPECT_FALSE(c.trivial);
  EXPECT_TRUE(compare_by_type<float>({nan32}, {2.0f}).equal);
}

TEST(CompareDefects, IgnoresLastComparesAllButTheLastElement) {
  const ArmedDefect armed(Defect::compare_ignores_last);
  EXPECT_TRUE(compare_by_type<float>({1.0f, 2.0f}, {1.0f, 3.0f}).equal);
  EXPECT_FALSE(compare_by_type<float>({1.0f, 2.0f}, {0.0f, 2.0f}).equal);
  EXPECT_TRUE(compare_by_type<float>({2.0f}, {3.0f}).equal);
  EXPECT_FALSE(compare_by_type<float>({2.0f}, {3.0f}).trivial);
}

TEST(Count, KeepsRelaxedBitsApart) {
  Evidence evidence;
  CompareOptions options{tolerance_of_another_order(DType::float32), 1e-4, 2, false};
  options.bits_relaxed = true;
  const Comparison found = compare_lists<float>({1, 2.0001f}, {1, 2}, options);
  EXPECT_TRUE(found.equal);
  count(evidence, found, options);
  EXPECT_EQ(evidence.bits_relaxed, 1);
  EXPECT_EQ(evidence.bits_required, 0);
  EXPECT_EQ(evidence.same_bits, 0);
  options.bits_relaxed = false;
  count(evidence, found, options);
  EXPECT_EQ(evidence.bits_relaxed, 1);
}

TEST(Count, KeepsTrivialComparisonsApart) {
  Evidence evidence;
  CompareOptions options{tolerance_of(DType::float32), 0, 0, true};
  count(evidence, compare_lists<float>({1, 2}, {1, 2}, options), options);
  options.bits = false;
  options.of_largest = 1e-6;
  count(evidence, compare_lists<float>({1, 2, 4}, {1, 2, 4.000001f}, options), options);
  count(evidence, compare_lists<float>({0}, {0}, options), options);
  EXPECT_EQ(evidence.comparisons, 2);
  EXPECT_EQ(evidence.trivial, 1);
  EXPECT_EQ(evidence.elements, 5);
  EXPECT_EQ(evidence.same_bits, 1);
  EXPECT_EQ(evidence.bits_required, 1);
  EXPECT_NEAR(evidence.max_abs_difference, 1e-6, 1e-7);
  EXPECT_EQ(evidence.loosest.rtol, 1.3e-6);
  EXPECT_EQ(evidence.loosest.atol, 1e-5);
  EXPECT_EQ(evidence.loosest.of_largest, 1e-6);
}

}  // namespace
}  // namespace lockstep::verdict
