#include "engine/kernels/reduce.hpp"

#include <limits>

#include <gtest/gtest.h>

#include "engine/kernels/test_views.hpp"

namespace lockstep::kernels {
namespace {

// The order stated in the header, in plain loops.
template <class T>
T ordered_sum(const std::vector<T>& x, double divisor = 1.0, std::size_t blocks_per_group = 256) {
  using C = ComputeType<T>;
  double total = 0.0, group = 0.0;
  for (std::size_t begin = 0; begin < x.size(); begin += 1024) {
    volatile C lane[32] = {};
    for (std::size_t i = begin; i < x.size() && i < begin + 1024; ++i)
      lane[(i - begin) % 32] = lane[(i - begin) % 32] + static_cast<C>(x[i]);
    for (std::size_t half = 16; half > 0; half /= 2)
      for (std::size_t l = 0; l < half; ++l) lane[l] = lane[l] + lane[l + half];
    group += static_cast<double>(lane[0]);
    if ((begin / 1024 + 1) % blocks_per_group != 0) continue;
    total += group;
    group = 0.0;
  }
  total += group;
  return static_cast<T>(static_cast<C>(static_cast<C>(total) / static_cast<C>(divisor)));
}

template <class T>
void check_order() {
  for (const std::size_t count : {1u, 2u, 31u, 32u, 33u, 1000u, 1024u, 1025u, 5000u, 262145u, 600000u}) {
    std::vector<T> x = mixed_values<T>(count), out(1);
    sum(Space::host, view_of(out, Dims{}), view_of(x), 1);
    EXPECT_EQ(static_cast<ComputeType<T>>(out[0]), static_cast<ComputeType<T>>(ordered_sum(x))) << count;
    sum(Space::host, view_of(out, Dims{}), view_of(x), 1, 3.0);
    EXPECT_EQ(static_cast<ComputeType<T>>(out[0]), static_cast<ComputeType<T>>(ordered_sum(x, 3.0))) << count;
  }
}
TEST(Reduce, AddsInTheStatedOrder) {
  check_order<float>();
  check_order<double>();
  check_order<Half>();
  check_order<BFloat16>();
}

// Shows that the test above can fail: another order gives another sum.
TEST(Reduce, OrderMattersForTheseValues) {
  const std::vector<float> x = mixed_values<float>(5000);
  float plain = 0.0f;
  for (const float value : x) plain += value;
  EXPECT_NE(plain, ordered_sum(x));
}

TEST(Reduce, AddsTheGroupsOfBlocksInOrder) {
  std::vector<double> x(600000), out(1);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = 1.0 / static_cast<double>(i + 3);
  sum(Space::host, view_of(out, Dims{}), view_of(x), 1);
  EXPECT_EQ(out[0], ordered_sum(x));
  EXPECT_NE(out[0], ordered_sum(x, 1.0, x.size())) << "all blocks in one group";
}

TEST(Reduce, GivesTheSameBitsForAnyStrides) {
  // A (count, columns) matrix is summed over its rows: stored row-major, column-major, and with gaps.
  for (const std::int64_t count : {1, 3, 40, 1024, 1300, 270000}) {
    for (const std::int64_t columns : {1, 7, 8, 64, 130}) {
      if (count * columns > 8 * 270000) continue;
      const auto at = [&](std::int64_t i, std::int64_t j) { return static_cast<std::size_t>(i * columns + j); };
      std::vector<float> by_rows = mixed_values<float>(static_cast<std::size_t>(count * columns));
      std::vector<float> by_columns(by_rows.size()), with_gaps(3 * by_rows.size()), expected, got(columns);
      for (std::int64_t j = 0; j < columns; ++j) {
        std::vector<float> column;
        for (std::int64_t i = 0; i < count; ++i) {
          column.push_back(by_rows[at(i, j)]);
          by_columns[static_cast<std::size_t>(j * count + i)] = by_rows[at(i, j)];
          with_gaps[3 * at(i, j)] = by_rows[at(i, j)];
        }
        expected.push_back(ordered_sum(column));
      }
      const Dims sizes = {columns, count};
      sum(Space::host, view_of(got), view_of(by_rows, sizes, {1, columns}), 1);
      EXPECT_EQ(got, expected) << "rows, " << count << " x " << columns;
      sum(Space::host, view_of(got), view_of(by_columns, sizes, {count, 1}), 1);
      EXPECT_EQ(got, expected) << "columns, " << count << " x " << columns;
      sum(Space::host, view_of(got), view_of(with_gaps, sizes, {3, 3 * columns}), 1);
      EXPECT_EQ(got, expected) << "gaps, " << count << " x " << columns;
    }
  }
}

TEST(Reduce, CountsReducedDimsInRowMajorOrder) {
  // Keeps (i, k) and reduces (j, l) of a tensor stored as (i, j, k, l).
  std::vector<float> x = mixed_values<float>(3 * 50 * 9 * 30), got(27);
  sum(Space::host, view_of(got), view_of(x, {3, 9, 50, 30}, {50 * 9 * 30, 30, 9 * 30, 1}), 2);
  std::vector<float> turned(x.size()), again(27);  // the same, stored as (j, l, i, k)
  for (std::size_t i = 0; i < 3; ++i) {
    for (std::size_t k = 0; k < 9; ++k) {
      std::vector<float> terms;
      for (std::size_t j = 0; j < 50; ++j) {
        for (std::size_t l = 0; l < 30; ++l) {
          terms.push_back(x[((i * 50 + j) * 9 + k) * 30 + l]);
          turned[((j * 30 + l) * 3 + i) * 9 + k] = terms.back();
        }
      }
      EXPECT_EQ(got[i * 9 + k], ordered_sum(terms)) << i << " " << k;
    }
  }
  sum(Space::host, view_of(again), view_of(turned, {3, 9, 50, 30}, {9, 1, 30 * 27, 27}), 2);
  EXPECT_EQ(again, got);
}

TEST(Reduce, SumsIntegersInInt64) {
  std::vector<std::int32_t> x(3000, 2'000'000'000);
  std::vector<std::int64_t> out(1);
  sum(Space::host, view_of(out, Dims{}), view_of(x), 1);
  EXPECT_EQ(out[0], 3000LL * 2'000'000'000LL);
}

TEST(Reduce, SumsSquaredDifferencesInTheStatedOrder) {
  std::vector<float> a = mixed_values<float>(4000), b = mixed_values<float>(4000, 5), squares, out(1);
  for (std::size_t i = 0; i < a.size(); ++i) {
    const volatile float difference = a[i] - b[i];
    squares.push_back(difference * difference);
  }
  sum_squared_difference(Space::host, view_of(out, Dims{}), view_of(a), view_of(b), 4000.0);
  EXPECT_EQ(out[0], ordered_sum(squares, 4000.0));
}

TEST(Reduce, FindsInfiniteAndNanElements) {
  for (const double bad : {std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(),
                           std::numeric_limits<double>::quiet_NaN()}) {
    for (const std::size_t place : {0u, 4999u, 9999u}) {
      std::vector<float> x(10000, 1.0f);
      bool finite = false;
      all_finite(Space::host, {&finite, DType::boolean, {}, {}}, view_of(x));
      EXPECT_TRUE(finite);
      x[place] = static_cast<float>(bad);
      all_finite(Space::host, {&finite, DType::boolean, {}, {}}, view_of(x));
      EXPECT_FALSE(finite) << bad << " at " << place;
      all_finite(Space::host, {&finite, DType::boolean, {}, {}}, view_of(x, {2500}, {2}, 1));
      EXPECT_EQ(finite, place != 4999) << bad << " at " << place << ", every other element";
    }
  }
}

}  // namespace
}  // namespace lockstep::kernels
