#include "harness/verdict/compare.hpp"

#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"

namespace lockstep::verdict {
namespace {

constexpr float nan32 = std::numeric_limits<float>::quiet_NaN();
constexpr float inf32 = std::numeric_limits<float>::infinity();
constexpr double inf64 = std::numeric_limits<double>::infinity();

template <class T>
Operand operand(const std::vector<T>& values, Dims sizes) {
  return Operand{dtype_of<T>, sizes, values.data(), nullptr, 0};
}

template <class T>
Operand operand(const std::vector<T>& values) {
  return operand(values, Dims{static_cast<std::int64_t>(values.size())});
}

template <class T>
Comparison compare_lists(const std::vector<T>& a, const std::vector<T>& b, CompareOptions options) {
  return compare(operand(a), operand(b), options);
}

template <class T>
Comparison compare_by_type(const std::vector<T>& a, const std::vector<T>& b) {
  return compare_lists(a, b, CompareOptions{tolerance_of(dtype_of<T>), 0, 0, false});
}

CompareOptions exactly() { return CompareOptions{}; }
CompareOptions same_bits() { return CompareOptions{tolerance_of(DType::float32), 0, 0, true}; }

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

TEST(Compare, SameValuesAreEqualAndSameBits) {
  const Comparison c = compare_by_type<float>({1.5f, -2.25f}, {1.5f, -2.25f});
  EXPECT_TRUE(c.equal);
  EXPECT_TRUE(c.same_bits);
  EXPECT_FALSE(c.trivial);
  EXPECT_EQ(c.elements, 2);
  EXPECT_EQ(c.num_off, 0);
  EXPECT_EQ(c.max_abs_difference, 0.0);
  EXPECT_EQ(c.message, "");
}

TEST(Compare, HoldsAtTheEdgeOfTheToleranceAndNotBeyond) {
  const CompareOptions options{{0.0, 0.25}, 0, 0, false};
  EXPECT_TRUE(compare_lists<float>({1.25f}, {1.0f}, options).equal);
  EXPECT_FALSE(compare_lists<float>({1.2500001f}, {1.0f}, options).equal);
  // The relative part is of the expected side.
  const CompareOptions relative{{0.5, 0.0}, 0, 0, false};
  EXPECT_TRUE(compare_lists<float>({3.0f}, {2.0f}, relative).equal);
  EXPECT_FALSE(compare_lists<float>({1.0f}, {3.0f}, relative).equal);
}

TEST(Compare, AddsTheShareOfTheLargestExpected) {
  CompareOptions options{{0.0, 0.0}, 0.125, 8.0, false};
  EXPECT_TRUE(compare_lists<float>({2.0f}, {1.0f}, options).equal);
  EXPECT_FALSE(compare_lists<float>({2.125f}, {1.0f}, options).equal);
  // An infinite or undefined largest must not make everything equal.
  options.largest_expected = inf64;
  EXPECT_FALSE(compare_lists<float>({2.0f, inf32}, {1.0f, inf32}, options).equal);
  options.largest_expected = std::nan("");
  EXPECT_FALSE(compare_lists<float>({2.0f}, {1.0f}, options).equal);
}

TEST(Compare, NotANumberEqualsNothing) {
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

TEST(Compare, AnInfinityEqualsItselfOnly) {
  EXPECT_TRUE(compare_by_type<float>({inf32, 1.0f}, {inf32, 1.000001f}).equal);
  EXPECT_FALSE(compare_by_type<float>({3.0f}, {inf32}).equal);
  EXPECT_FALSE(compare_by_type<float>({-inf32}, {inf32}).equal);
  EXPECT_FALSE(compare_by_type<float>({inf32}, {3.0f}).equal);
  const Comparison c = compare_by_type<float>({inf32, 1.0f}, {inf32, 1.000001f});
  EXPECT_LT(c.max_abs_difference, 2e-6);
  EXPECT_FALSE(compare_by_type<double>({1.7e308}, {-1.7e308}).equal);
}

TEST(Compare, ZerosOfBothSignsAreEqualInValueOnly) {
  const Comparison value = compare_by_type<float>({0.0f, 1.0f}, {-0.0f, 1.0f});
  EXPECT_TRUE(value.equal);
  EXPECT_FALSE(value.same_bits);
  const Comparison bits = compare_lists<float>({0.0f, 1.0f}, {-0.0f, 1.0f}, same_bits());
  EXPECT_FALSE(bits.equal);
  EXPECT_EQ(bits.message,
            "1 of 2 elements (50 %) has other bits, all within rtol 1.3e-06, atol 1e-05\n"
            "  there at (0,): actual 0, expected -0, difference 0 absolute, 0 relative, 0 units in the last place");
}

TEST(Compare, KnowsTrivialComparisons) {
  EXPECT_TRUE(compare_by_type<float>({0.0f, -0.0f}, {0.0f, 0.0f}).trivial);
  EXPECT_FALSE(compare_by_type<float>({0.0f, 0.0f}, {0.0f, 1e-40f}).trivial);
  EXPECT_TRUE(compare_by_type<std::int64_t>({0, 0}, {0, 0}).trivial);
  EXPECT_TRUE(compare_by_type<Half>({Half(0.0f)}, {Half(-0.0f)}).trivial);
  const Comparison empty = compare_by_type<float>({}, {});
  EXPECT_TRUE(empty.trivial);
  EXPECT_TRUE(empty.equal);
  EXPECT_EQ(empty.elements, 0);
}

TEST(Compare, SharedStorageIsTrivialOnlyAtTheSameOffset) {
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

TEST(Compare, IntegersAndBooleansAreExact) {
  // Neighbours that no double tells apart.
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
  // A tolerance that is asked for holds for integers too, never for booleans.
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

TEST(Compare, RefusesOtherTypesAndSizes) {
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

TEST(Compare, RefusesTolerancesThatSayNothing) {
  for (double bad : {-1e-6, inf64, std::nan("")}) {
    EXPECT_THROW(compare_lists<float>({1.0f}, {1.0f}, CompareOptions{{bad, 0}, 0, 0, false}), Error);
    EXPECT_THROW(compare_lists<float>({1.0f}, {1.0f}, CompareOptions{{0, bad}, 0, 0, false}), Error);
    EXPECT_THROW(compare_lists<float>({1.0f}, {1.0f}, CompareOptions{{0, 0}, bad, 1, false}), Error);
  }
}

TEST(Compare, TellsNumberFirstAndWorst) {
  const std::vector<float> actual{1, 2, 3.5f, 4, 7, 6};
  const std::vector<float> expected{1, 2, 3, 4, 5, 6};
  const Comparison c = compare(operand(actual, {2, 3}), operand(expected, {2, 3}),
                               CompareOptions{tolerance_of(DType::float32), 0, 0, false});
  EXPECT_FALSE(c.equal);
  EXPECT_EQ(c.num_off, 2);
  EXPECT_EQ(c.max_abs_difference, 2.0);
  EXPECT_EQ(c.message,
            "2 of 6 elements (33.3 %) are beyond rtol 1.3e-06, atol 1e-05\n"
            "  first at (0, 2): actual 3.5, expected 3, difference 0.5 absolute, 0.1667 relative, 2097152 units in the "
            "last place\n"
            "  worst at (1, 1): actual 7, expected 5, difference 2 absolute, 0.4 relative, 4194304 units in the last "
            "place");
}

TEST(Compare, TellsOneValueAndOneUnit) {
  const std::vector<double> actual{1.0};
  const std::vector<double> expected{std::nextafter(1.0, 2.0)};
  const Comparison c = compare(operand(actual, {}), operand(expected, {}), CompareOptions{{0, 0}, 0, 0, false});
  EXPECT_EQ(
      c.message,
      "1 of 1 element (100 %) is beyond rtol 0, atol 0\n"
      "  value: actual 1, expected 1.0000000000000002, difference 2.22045e-16 absolute, 2.22e-16 relative, 1 unit "
      "in the last place");
}

TEST(Compare, TellsNotANumberAndTheShareOfTheLargest) {
  const Comparison c =
      compare_lists<float>({nan32, 1.0f, 9.0f}, {0.0f, 1.0f, 1.0f}, CompareOptions{{0, 1e-5}, 0.5, 2.0, false});
  EXPECT_EQ(c.message,
            "2 of 3 elements (66.7 %) are beyond rtol 0, atol 1e-05, of_largest 0.5 of 2 = 1; 1 has a not-a-number, "
            "which equals nothing\n"
            "  first and worst at (0,): actual nan, expected 0");
}

TEST(Compare, PrintsValuesThatReadBack) {
  const float third = 1.0f / 3.0f;
  const float next = std::nextafter(third, 1.0f);
  const Comparison c = compare_lists<float>({third}, {next}, same_bits());
  const std::size_t at = c.message.find("actual ");
  ASSERT_NE(at, std::string::npos);
  EXPECT_EQ(std::strtof(c.message.c_str() + at + 7, nullptr), third);
  EXPECT_EQ(std::strtof(c.message.c_str() + c.message.find("expected ") + 9, nullptr), next);
}

TEST(Compare, SixteenBitTypesUseTheirOwnTolerance) {
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

// The measure once more, element by element, with no thought for speed.
template <class T>
struct Slow {
  bool equal = true;
  std::int64_t num_off = 0;
  double max_difference = 0.0;
  Slow(const std::vector<T>& a, const std::vector<T>& b, const CompareOptions& options) {
    for (std::size_t i = 0; i < a.size(); ++i) {
      const auto x = static_cast<long double>(static_cast<ComputeType<T>>(a[i]));
      const auto y = static_cast<long double>(static_cast<ComputeType<T>>(b[i]));
      const double difference = x == y ? 0.0 : static_cast<double>(std::fabs(x - y));
      if (std::isnan(difference) || std::isnan(max_difference)) {
        max_difference = std::nan("");
      } else {
        max_difference = std::max(max_difference, difference);
      }
      bool holds;
      if (options.bits) {
        holds = std::memcmp(&a[i], &b[i], sizeof(T)) == 0 && x == x;
      } else if (x == y) {
        holds = true;
      } else {
        const double limit = options.tolerance.atol + options.of_largest * options.largest_expected +
                             options.tolerance.rtol * static_cast<double>(std::fabs(y));
        holds = std::isfinite(difference) && difference <= limit;
      }
      if (!holds) {
        equal = false;
        ++num_off;
      }
    }
  }
};

template <class T>
T random_value(std::mt19937& generator) {
  const int kind = static_cast<int>(generator() % 40);
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(generator() % 7) - 3;
  } else {
    if (kind == 0) return T(nan32);
    if (kind == 1) return T(inf32);
    if (kind == 2) return T(-inf32);
    if (kind == 3) return T(-0.0f);
    if (kind < 8) return T(0.0f);
    return T(std::ldexp(static_cast<float>(generator() % 2001) - 1000.0f, static_cast<int>(generator() % 20) - 15));
  }
}

template <class T>
void compare_with_slow(unsigned seed) {
  SCOPED_TRACE(testing::Message() << "seed " << seed << ", type " << name_of(dtype_of<T>));
  std::mt19937 generator(seed);
  const std::size_t n = seed % 9 == 0 ? 5000 + generator() % 3000 : 1 + generator() % 40;
  const bool special = generator() % 3 == 0;  // else plain numbers, so that many lists are nearly equal
  std::vector<T> a(n);
  std::vector<T> b(n);
  for (std::size_t i = 0; i < n; ++i) {
    do {
      b[i] = random_value<T>(generator);
    } while (!special && !std::isfinite(static_cast<double>(static_cast<ComputeType<T>>(b[i]))));
    a[i] = b[i];
    if (generator() % n < 3) {
      a[i] = generator() % 2 == 0 ? random_value<T>(generator)
                                  : T(static_cast<ComputeType<T>>(b[i]) * static_cast<ComputeType<T>>(1.000001));
    }
  }
  CompareOptions options{tolerance_of(dtype_of<T>), 0, 0, generator() % 3 == 0};
  if (generator() % 3 == 0) {
    options.of_largest = 1e-3;
    options.largest_expected = 4.0;
  }
  const Slow<T> slow(a, b, options);
  const Comparison fast = compare_lists(a, b, options);
  EXPECT_EQ(fast.equal, slow.equal);
  EXPECT_EQ(fast.num_off, slow.num_off);
  if (std::isnan(slow.max_difference)) {
    // Pairs that hold cannot hide a not-a-number: it never holds.
    EXPECT_TRUE(std::isnan(fast.max_abs_difference));
  } else {
    EXPECT_DOUBLE_EQ(fast.max_abs_difference, slow.max_difference);
  }
  EXPECT_EQ(fast.same_bits, std::memcmp(a.data(), b.data(), n * sizeof(T)) == 0);
  EXPECT_EQ(fast.message.empty(), slow.equal);
}

TEST(Compare, AgreesWithAPlainReferenceOnRandomLists) {
  for (unsigned seed = 0; seed < 600; ++seed) {
    compare_with_slow<float>(seed);
    compare_with_slow<double>(seed);
    compare_with_slow<Half>(seed);
    compare_with_slow<BFloat16>(seed);
    compare_with_slow<std::int32_t>(seed);
    compare_with_slow<std::int64_t>(seed);
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
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

TEST(Compare, TakesSnapshotsAtAnyAlignment) {
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

TEST(CompareDefects, AlwaysEqualHoldsWhateverItSees) {
  const ArmedDefect armed(Defect::compare_always_equal);
  const Comparison c = compare_by_type<float>({1.0f}, {2.0f});
  EXPECT_TRUE(c.equal);
  EXPECT_FALSE(c.trivial);
  EXPECT_TRUE(compare_by_type<float>({nan32}, {2.0f}).equal);
}

TEST(CompareDefects, IgnoresLastLooksAtAllButOne) {
  const ArmedDefect armed(Defect::compare_ignores_last);
  EXPECT_TRUE(compare_by_type<float>({1.0f, 2.0f}, {1.0f, 3.0f}).equal);
  EXPECT_FALSE(compare_by_type<float>({1.0f, 2.0f}, {0.0f, 2.0f}).equal);
  EXPECT_TRUE(compare_by_type<float>({2.0f}, {3.0f}).equal);
  EXPECT_FALSE(compare_by_type<float>({2.0f}, {3.0f}).trivial);
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

TEST(MessageMatches, FindsThePatternAtAnyPlace) {
  EXPECT_TRUE(message_matches("replicate: sizes differ (2, 3)", "sizes differ"));
  EXPECT_TRUE(message_matches("replicate: sizes differ (2, 3)", "replicate*differ*3)"));
  EXPECT_TRUE(message_matches("abab", "ab*ab"));
  EXPECT_TRUE(message_matches("line one\nline two", "one*two"));
  EXPECT_TRUE(message_matches("abc", "*b*"));
  EXPECT_FALSE(message_matches("aba", "ab*ab"));
  EXPECT_FALSE(message_matches("differ sizes", "sizes*differ"));
  EXPECT_FALSE(message_matches("Sizes", "sizes"));
  EXPECT_FALSE(message_matches("", "x"));
}

TEST(MessageMatches, RefusesPatternsThatMatchTheEmptyText) {
  EXPECT_THROW(message_matches("text", ""), Error);
  EXPECT_THROW(message_matches("text", "*"), Error);
  EXPECT_THROW(message_matches("text", "***"), Error);
}

}  // namespace
}  // namespace lockstep::verdict
