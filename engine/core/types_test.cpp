#include "engine/core/types.hpp"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

Half half_of(std::uint16_t bits) {
  Half half;
  half.bits = bits;
  return half;
}
BFloat16 bfloat16_of(std::uint16_t bits) {
  BFloat16 value;
  value.bits = bits;
  return value;
}

// The value of a bit pattern by the definition of the format.
double meaning_of_half(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31, fraction = bits & 1023;
  const double sign = bits & 0x8000 ? -1.0 : 1.0;
  if (exponent == 31) return fraction == 0 ? sign * std::numeric_limits<double>::infinity() : std::nan("");
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  return sign * std::ldexp(1024 + fraction, exponent - 25);
}

TEST(Half, EveryPatternHasTheValueOfTheFormat) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto pattern = static_cast<std::uint16_t>(bits);
    const double expected = meaning_of_half(pattern);
    const auto value = static_cast<float>(half_of(pattern));
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(value)) << bits;
    } else {
      ASSERT_EQ(static_cast<double>(value), expected) << bits;
      ASSERT_EQ(std::signbit(value), (bits & 0x8000) != 0) << bits;
      ASSERT_EQ(Half(value).bits, pattern);
    }
  }
}

TEST(BFloat16, EveryPatternReadsBack) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto pattern = static_cast<std::uint16_t>(bits);
    const auto value = static_cast<float>(bfloat16_of(pattern));
    ASSERT_EQ(std::bit_cast<std::uint32_t>(value), bits << 16);
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(static_cast<float>(BFloat16(value))));
      ASSERT_EQ(BFloat16(value).bits & 0x8000, pattern & 0x8000);
    } else {
      ASSERT_EQ(BFloat16(value).bits, pattern);
    }
  }
}

// For each pair of neighbours: just below, at and just above their midpoint. The midpoint rounds to the even one.
template <class T>
void check_rounding(std::uint16_t infinity, T (*from_bits)(std::uint16_t)) {
  for (std::uint32_t bits = 0; bits + 1u < infinity; ++bits) {
    const auto low = static_cast<std::uint16_t>(bits), high = static_cast<std::uint16_t>(bits + 1);
    const double below = static_cast<float>(from_bits(low)), above = static_cast<float>(from_bits(high));
    const auto middle = static_cast<float>((below + above) / 2);
    ASSERT_EQ(static_cast<double>(middle), (below + above) / 2);
    const std::uint16_t even = bits % 2 == 0 ? low : high;
    ASSERT_EQ(T(middle).bits, even) << bits;
    ASSERT_EQ(T(std::nextafter(middle, 0.0f)).bits, low) << bits;
    ASSERT_EQ(T(std::nextafter(middle, std::numeric_limits<float>::infinity())).bits, high) << bits;
    ASSERT_EQ(T(-middle).bits, even | 0x8000) << bits;
  }
}

TEST(Half, RoundsToNearestEven) { check_rounding<Half>(0x7c00, half_of); }
TEST(BFloat16, RoundsToNearestEven) { check_rounding<BFloat16>(0x7f80, bfloat16_of); }

TEST(Half, LargeNumbersBecomeInfinity) {
  EXPECT_EQ(Half(65504.0f).bits, 0x7bff);
  EXPECT_EQ(Half(65519.996f).bits, 0x7bff);
  EXPECT_EQ(Half(65520.0f).bits, 0x7c00);
  EXPECT_EQ(Half(-1e30f).bits, 0xfc00);
  EXPECT_EQ(Half(std::numeric_limits<float>::infinity()).bits, 0x7c00);
  EXPECT_TRUE(std::isnan(static_cast<float>(Half(std::nanf("")))));
  EXPECT_EQ(Half(std::numeric_limits<float>::denorm_min()).bits, 0);
  EXPECT_EQ(Half(-0.0f).bits, 0x8000);
}

TEST(BFloat16, LargeNumbersBecomeInfinity) {
  EXPECT_EQ(BFloat16(std::numeric_limits<float>::max()).bits, 0x7f80);
  EXPECT_EQ(BFloat16(-std::numeric_limits<float>::infinity()).bits, 0xff80);
  const auto nan_with_low_bits = std::bit_cast<float>(0x7f800001u);
  EXPECT_TRUE(std::isnan(static_cast<float>(BFloat16(nan_with_low_bits))));
}

TEST(DType, NamesReadBackAndSizesFit) {
  for (int i = 0; i < num_dtypes; ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(dtype_from_name(name_of(dtype)), dtype);
    dispatch_all(dtype, [&]<class T>() {
      EXPECT_EQ(dtype_of<T>, dtype);
      EXPECT_EQ(sizeof(T), size_of(dtype));
    });
  }
  EXPECT_THROW(dtype_from_name("float8"), Error);
}

TEST(DType, FloatingDispatchRefusesIntegers) {
  for (DType dtype : {DType::int64, DType::int32, DType::boolean}) {
    EXPECT_FALSE(is_floating(dtype));
    EXPECT_THROW(dispatch_floating(dtype, []<class T>() {}), Error);
  }
  for (DType dtype : {DType::float32, DType::float64, DType::float16, DType::bfloat16}) EXPECT_TRUE(is_floating(dtype));
}

TEST(DType, Promotes) {
  using enum DType;
  EXPECT_EQ(promote(float32, float64), float64);
  EXPECT_EQ(promote(bfloat16, float32), float32);
  EXPECT_EQ(promote(float16, bfloat16), float32);
  EXPECT_EQ(promote(float16, int64), float16);
  EXPECT_EQ(promote(int32, int64), int64);
  EXPECT_EQ(promote(boolean, int32), int32);
  EXPECT_EQ(promote(boolean, boolean), boolean);
  for (int a = 0; a < num_dtypes; ++a) {
    for (int b = 0; b < num_dtypes; ++b) {
      EXPECT_EQ(promote(static_cast<DType>(a), static_cast<DType>(b)),
                promote(static_cast<DType>(b), static_cast<DType>(a)));
    }
  }
}

}  // namespace
}  // namespace lockstep
