// Tests beyond the checks of the operation registry (engine/autograd/op_cases_test.cpp): several tiles, NaN,
// exact bit patterns, and conversions between all types.
#include "engine/kernels/elementwise.hpp"

#include <cmath>
#include <cstring>
#include <limits>

#include <gtest/gtest.h>

#include "engine/kernels/test_views.hpp"

namespace lockstep::kernels {
namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN();

TEST(Elementwise, GivesTheSameBitsForAnyStrides) {
  constexpr std::int64_t n = 3 * 4096 + 77;
  std::vector<float> a = mixed_values<float>(n), b = mixed_values<float>(n, 2), plain(n), strided(2 * n, -1.0f);
  std::vector<float> wide_a(3 * n), reversed_order(n);
  for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) wide_a[3 * i] = a[i];
  div(Space::host, view_of(plain), view_of(a), view_of(b));
  div(Space::host, view_of(strided, {n}, {2}), view_of(wide_a, {n}, {3}), view_of(b));
  for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
    ASSERT_EQ(plain[i], a[i] / b[i]) << i;
    ASSERT_EQ(strided[2 * i], plain[i]) << i;
    ASSERT_EQ(strided[2 * i + 1], -1.0f) << i;
  }
}

TEST(Elementwise, PropagatesNanThroughMaximumMinimumAndRelu) {
  std::vector<double> a = {1.0, nan, 2.0, nan}, b = {nan, 1.0, 3.0, nan}, out(4);
  maximum(Space::host, view_of(out), view_of(a), view_of(b));
  EXPECT_TRUE(std::isnan(out[0]) && std::isnan(out[1]) && std::isnan(out[3]));
  EXPECT_EQ(out[2], 3.0);
  minimum(Space::host, view_of(out), view_of(a), view_of(b));
  EXPECT_TRUE(std::isnan(out[0]) && std::isnan(out[1]) && std::isnan(out[3]));
  EXPECT_EQ(out[2], 2.0);
  relu(Space::host, view_of(out), view_of(a));
  EXPECT_TRUE(std::isnan(out[1]));
  EXPECT_EQ(out[0], 1.0);
}

TEST(Elementwise, MaximumAndMinimumTakeTheSecondOfEqualNumbers) {
  std::vector<float> a = {0.0f, -0.0f}, b = {-0.0f, 0.0f}, out(2);
  for (const auto& extreme : {maximum, minimum}) {
    extreme(Space::host, view_of(out), view_of(a), view_of(b));
    EXPECT_TRUE(std::signbit(out[0]) && !std::signbit(out[1]));
  }
}

TEST(Elementwise, CopyKeepsEveryBitPattern) {
  std::vector<BFloat16> a(1 << 16), out(1 << 16), turned(1 << 16);
  for (std::size_t i = 0; i < a.size(); ++i) a[i].bits = static_cast<std::uint16_t>(i);
  copy(Space::host, view_of(out), view_of(a));
  EXPECT_EQ(std::memcmp(out.data(), a.data(), a.size() * 2), 0);
  copy(Space::host, view_of(turned, {256, 256}), view_of(a, {256, 256}, {1, 256}));
  for (std::size_t i = 0; i < 256; ++i)
    for (std::size_t j = 0; j < 256; ++j) ASSERT_EQ(turned[i * 256 + j].bits, a[j * 256 + i].bits);
}

template <class T>
void check_transposed_copies() {
  // Sizes around the tile size, with an outer dim and with gaps in the output.
  for (const auto& [rows, columns] : {std::pair{8, 8}, {31, 33}, {32, 64}, {70, 9}, {7, 100}}) {
    const std::int64_t m = rows, n = columns;
    std::vector<T> from(static_cast<std::size_t>(3 * m * n)), to(static_cast<std::size_t>(3 * m * (n + 2)));
    for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<T>(static_cast<float>(i % 101));
    copy(Space::host, view_of(to, {3, m, n}, {m * (n + 2), n + 2, 1}), view_of(from, {3, m, n}, {m * n, 1, m}));
    for (std::int64_t k = 0; k < 3; ++k)
      for (std::int64_t i = 0; i < m; ++i)
        for (std::int64_t j = 0; j < n; ++j)
          ASSERT_EQ(std::memcmp(&to[static_cast<std::size_t>((k * m + i) * (n + 2) + j)],
                                &from[static_cast<std::size_t>(k * m * n + j * m + i)], sizeof(T)),
                    0)
              << k << " " << i << " " << j << " of " << m << " x " << n;
  }
}
TEST(Elementwise, CopiesTransposedMatricesOfAnySize) {
  check_transposed_copies<std::int64_t>();
  check_transposed_copies<float>();
  check_transposed_copies<Half>();
}

// Rows large enough to bypass the caches, at every word alignment. Nothing outside the rows is written.
TEST(Elementwise, CopiesLongRowsAtAnyOffset) {
  const std::int64_t rows = 5, length = 70001, gap = 19;
  std::vector<float> from = mixed_values<float>(static_cast<std::size_t>(rows * length + 17));
  for (std::int64_t offset = 0; offset <= 17; ++offset) {
    std::vector<float> to(static_cast<std::size_t>(rows * (length + gap) + 17), -7.0f), expected = to;
    for (std::int64_t row = 0; row < rows; ++row)
      std::memcpy(&expected[static_cast<std::size_t>(offset + row * (length + gap))],
                  &from[static_cast<std::size_t>(17 - offset + row * length)], static_cast<std::size_t>(length) * 4);
    copy(Space::host, view_of(to, {rows, length}, {length + gap, 1}, offset),
         view_of(from, {rows, length}, {length, 1}, 17 - offset));
    ASSERT_EQ(std::memcmp(to.data(), expected.data(), to.size() * 4), 0) << "offset " << offset;
  }
}

TEST(Elementwise, CastsBetweenAllTypes) {
  const std::vector<double> values = {0.0, 1.0, -2.0, 3.75, 100.0};
  const auto expected = [](DType to, double value) {
    if (to == DType::boolean) return value != 0.0 ? 1.0 : 0.0;
    return is_floating(to) ? value : std::trunc(value);  // all values are exact in every floating type
  };
  for (int i = 0; i < num_dtypes; ++i) {
    for (int j = 0; j < num_dtypes; ++j) {
      const auto from_type = static_cast<DType>(i), to_type = static_cast<DType>(j);
      std::vector<double> source = values, back(values.size());
      std::vector<double> from(values.size()), to(values.size());  // room for any type
      const Dims sizes = {5}, strides = {1};
      copy(Space::host, {from.data(), from_type, sizes, strides}, view_of(source));
      copy(Space::host, {to.data(), to_type, sizes, strides}, {from.data(), from_type, sizes, strides});
      copy(Space::host, view_of(back), {to.data(), to_type, sizes, strides});
      for (std::size_t k = 0; k < values.size(); ++k)
        EXPECT_EQ(back[k], expected(to_type, expected(from_type, values[k])))
            << name_of(from_type) << " to " << name_of(to_type) << " of " << values[k];
    }
  }
}

TEST(Elementwise, RoundsToShortTypesOnce) {
  // The results are exact in float32, and the store rounds them to the nearest even float16.
  std::vector<Half> a(1, Half(1.0f + 0x1p-10f)), b(1, Half(3.0f)), out(1);
  mul(Space::host, view_of(out), view_of(a), view_of(b));
  EXPECT_EQ(out[0].bits, Half((1.0f + 0x1p-10f) * 3.0f).bits);
  add_number(Space::host, view_of(out), view_of(a), 0x1p-11);
  EXPECT_EQ(out[0].bits, Half(1.0f + 0x1p-10f + 0x1p-11f).bits);
}

TEST(Elementwise, RoundsAddScaledOnce) {
  std::vector<float> a = mixed_values<float>(1000), b = mixed_values<float>(1000, 3), out(1000);
  add_scaled(Space::host, view_of(out), view_of(a), view_of(b), 0.1);
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double exact = static_cast<double>(a[i]) + static_cast<double>(0.1f) * static_cast<double>(b[i]);
    ASSERT_EQ(out[i], static_cast<float>(exact)) << i;
  }
}

TEST(Elementwise, RoundsTermsToTheTypeOfTheTensorButNotFactors) {
  // 1 + 2^-10 is no bfloat16.
  const float number = 1.0f + 0x1p-10f;
  std::vector<BFloat16> a(1, BFloat16(-1.0f)), c(1, BFloat16(1024.0f)), out(1);
  add_number(Space::host, view_of(out), view_of(a), static_cast<double>(number));
  EXPECT_EQ(out[0].bits, BFloat16(0.0f).bits);
  rsub_number(Space::host, view_of(out), view_of(a), static_cast<double>(number));
  EXPECT_EQ(out[0].bits, BFloat16(2.0f).bits);
  std::vector<float> by(1, 1.0f + 0x1.8p-8f);  // halfway between two bfloat16
  a[0] = BFloat16(1.0f + 0x1p-7f);
  mul(Space::host, view_of(out), view_of(a), view_of(by));
  EXPECT_EQ(out[0].bits, BFloat16((1.0f + 0x1p-7f) * by[0]).bits);
  div(Space::host, view_of(out), view_of(c), view_of(by));
  EXPECT_EQ(out[0].bits, BFloat16(1024.0f / by[0]).bits);
}

TEST(Elementwise, FillsOnlyItsElements) {
  std::vector<std::int32_t> values(12, 5);
  fill(Space::host, view_of(values, {2, 3}, {6, 2}, 1), -7.0);
  EXPECT_EQ(values, (std::vector<std::int32_t>{5, -7, 5, -7, 5, -7, 5, -7, 5, -7, 5, -7}));
}

}  // namespace
}  // namespace lockstep::kernels
