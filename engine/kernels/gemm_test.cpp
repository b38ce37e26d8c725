#include "engine/kernels/gemm.hpp"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>
#include <omp.h>

#include "engine/kernels/test_views.hpp"

namespace lockstep::kernels {
namespace {

template <class T>
double at(const View& matrix, std::int64_t i, std::int64_t j) {
  return static_cast<double>(static_cast<const T*>(matrix.data)[i * matrix.strides[0] + j * matrix.strides[1]]);
}

template <class T>
void expect_product(const View& out, const View& a, const View& b) {
  for (std::int64_t i = 0; i < out.sizes[0]; ++i) {
    for (std::int64_t j = 0; j < out.sizes[1]; ++j) {
      double sum = 0.0, size = 0.0;
      for (std::int64_t k = 0; k < a.sizes[1]; ++k) {
        sum += at<T>(a, i, k) * at<T>(b, k, j);
        size += std::fabs(at<T>(a, i, k) * at<T>(b, k, j));
      }
      ASSERT_NEAR(at<T>(out, i, j), sum, size * (sizeof(T) == 4 ? 1e-6 : 1e-14)) << i << ", " << j;
    }
  }
}

template <class T>
void check_all_layouts(std::int64_t m, std::int64_t n, std::int64_t k) {
  const auto count = [](std::int64_t elements) { return static_cast<std::size_t>(elements); };
  std::vector<T> a = mixed_values<T>(count(2 * m * k)), b = mixed_values<T>(count((n + 3) * (k + 5)), 2);
  std::vector<T> out(count(m * (n + 2)));
  // Row-major and column-major, without and with gaps.
  for (const Dims& layout_a : {Dims{k, 1}, Dims{1, m}, Dims{2 * k, 1}, Dims{1, 2 * m}}) {
    for (const Dims& layout_b : {Dims{n, 1}, Dims{1, k}, Dims{n + 3, 1}, Dims{1, k + 5}}) {
      const View x = view_of(a, {m, k}, layout_a), y = view_of(b, {k, n}, layout_b);
      ASSERT_TRUE(is_product_operand(x) && is_product_operand(y));
      for (const std::int64_t gap : {0, 2}) {
        const View to = view_of(out, {m, n}, {n + gap, 1});
        std::fill(out.begin(), out.end(), T(-1));
        matmul(Space::host, to, x, y);
        expect_product<T>(to, x, y);
        for (std::int64_t i = 0; gap > 0 && i < m; ++i) ASSERT_EQ(out[count(i * (n + gap) + n)], T(-1)) << i;
      }
    }
  }
}
TEST(Gemm, ReadsAllLayouts) {
  check_all_layouts<float>(13, 7, 29);
  check_all_layouts<double>(13, 7, 29);
  for (std::int64_t n = 1; n < 10; ++n) check_all_layouts<float>(64, n, 33);  // the case of narrow_product
}

TEST(Gemm, LeavesTheNumberOfThreadsOfOpenMp) {
  constexpr std::int64_t n = 32;
  std::vector<float> a = mixed_values<float>(n * n), b = mixed_values<float>(n * n, 2), out(n * n);
  const int before = omp_get_max_threads();
  omp_set_num_threads(3);
  matmul(Space::host, view_of(out, {n, n}), view_of(a, {n, n}), view_of(b, {n, n}));
  EXPECT_EQ(omp_get_max_threads(), 3);
  omp_set_num_threads(before);
}

// Above the size from which OpenBLAS multiplies a column-major left operand on processors without AVX-512.
TEST(Gemm, ReadsLargeColumnMajorOperands) {
  constexpr std::int64_t m = 256, n = 130, k = 132;
  std::vector<float> a = mixed_values<float>(m * k), b = mixed_values<float>(k * n, 2), out(m * n);
  const View x = view_of(a, {m, k}, {1, m}), to = view_of(out, {m, n});
  for (const Dims& layout_b : {Dims{n, 1}, Dims{1, k}}) {
    const View y = view_of(b, {k, n}, layout_b);
    matmul(Space::host, to, x, y);
    expect_product<float>(to, x, y);
  }
}

TEST(Gemm, RejectsUnsupportedStrides) {
  std::vector<float> a(100);
  EXPECT_FALSE(is_product_operand(view_of(a, {4, 4}, {8, 2})));
  EXPECT_FALSE(is_product_operand(view_of(a, {4, 4}, {0, 1})));  // all rows are the same row
  EXPECT_FALSE(is_product_operand(view_of(a, {4, 4}, {2, 1})));  // the rows overlap
  EXPECT_TRUE(is_product_operand(view_of(a, {4, 4}, {5, 1})));
  EXPECT_TRUE(is_product_operand(view_of(a, {1, 4}, {0, 3})));  // one row with gaps: a column of the transposed matrix
  EXPECT_TRUE(is_product_operand(view_of(a, {4, 1}, {3, 7})));
  EXPECT_TRUE(is_product_operand(view_of(a, {1, 1}, {0, 0})));
}

TEST(Gemm, ReadsVectorsWithGaps) {
  std::vector<float> a = mixed_values<float>(100), b = mixed_values<float>(100, 2), one(1), outer(20);
  const View row = view_of(a, {1, 9}, {50, 3}), column = view_of(b, {9, 1}, {4, 50});
  matmul(Space::host, view_of(one, {1, 1}), row, column);
  expect_product<float>(view_of(one, {1, 1}), row, column);
  const View tall = view_of(a, {5, 1}, {3, 1}), flat = view_of(b, {1, 4}, {1, 2});
  matmul(Space::host, view_of(outer, {5, 4}), tall, flat);
  expect_product<float>(view_of(outer, {5, 4}), tall, flat);
}

TEST(Gemm, BroadcastsAnOperandOverBatches) {
  std::vector<double> a = mixed_values<double>(2 * 3 * 4), b = mixed_values<double>(4 * 5, 2), out(2 * 3 * 5);
  matmul(Space::host, view_of(out, {2, 3, 5}), view_of(a, {2, 3, 4}), view_of(b, {2, 4, 5}, {0, 5, 1}));
  for (std::int64_t batch = 0; batch < 2; ++batch) {
    const View of_out{out.data() + batch * 15, DType::float64, {3, 5}, {5, 1}};
    const View of_a{a.data() + batch * 12, DType::float64, {3, 4}, {4, 1}};
    expect_product<double>(of_out, of_a, view_of(b, {4, 5}));
  }
}

TEST(Gemm, ReturnsZerosOrTheBiasForAnEmptyInnerDim) {
  std::vector<float> none(1), bias = {1.0f, 2.0f, 3.0f}, out(6, -1.0f);
  matmul(Space::host, view_of(out, {2, 3}), view_of(none, {2, 0}), view_of(none, {0, 3}));
  EXPECT_EQ(out, std::vector<float>(6, 0.0f));
  const View added = view_of(bias);
  linear(Space::host, view_of(out, {2, 3}), view_of(none, {2, 0}), view_of(none, {3, 0}), &added);
  EXPECT_EQ(out, (std::vector<float>{1, 2, 3, 1, 2, 3}));
}

TEST(Gemm, DoesNothingForAnEmptyResult) {
  std::vector<float> a(6, 1.0f), b(6, 1.0f);
  for (const Dims& sizes : {Dims{0, 3}, Dims{2, 0}, Dims{0, 0}}) {
    const View none{nullptr, DType::float32, sizes, contiguous_strides(sizes)};  // as an empty tensor has no memory
    const std::int64_t m = sizes[0], n = sizes[1];
    EXPECT_NO_THROW(matmul(Space::host, none, view_of(a, {m, 2}), view_of(b, {2, n})));
    EXPECT_NO_THROW(linear(Space::host, none, view_of(a, {m, 2}), view_of(b, {n, 2}), nullptr));
  }
}

TEST(Gemm, LinearTransposesTheWeight) {
  std::vector<float> x = mixed_values<float>(6 * 33), w = mixed_values<float>(5 * 33, 2), out(30), product(30);
  linear(Space::host, view_of(out, {6, 5}), view_of(x, {6, 33}), view_of(w, {5, 33}), nullptr);
  matmul(Space::host, view_of(product, {6, 5}), view_of(x, {6, 33}), view_of(w, {33, 5}, {1, 33}));
  EXPECT_EQ(out, product);
  expect_product<float>(view_of(out, {6, 5}), view_of(x, {6, 33}), view_of(w, {33, 5}, {1, 33}));
}

TEST(Gemm, GivesTheSameBitsAtAnyOffset) {
  constexpr std::size_t m = 24, k = 70, n = 31;
  const std::vector<float> a = mixed_values<float>(m * k), b = mixed_values<float>(k * n, 2);
  std::vector<float> expected;
  for (std::size_t offset = 0; offset < 18; ++offset) {
    std::vector<float> moved_a(m * k + 17), moved_b(k * n + 17), out(m * n + 17);
    std::copy(a.begin(), a.end(), moved_a.begin() + static_cast<std::ptrdiff_t>(offset));
    std::copy(b.begin(), b.end(), moved_b.begin() + static_cast<std::ptrdiff_t>(17 - offset));
    matmul(Space::host, view_of(out, {m, n}, {n, 1}, static_cast<std::int64_t>(offset)),
           view_of(moved_a, {m, k}, {k, 1}, static_cast<std::int64_t>(offset)),
           view_of(moved_b, {k, n}, {n, 1}, static_cast<std::int64_t>(17 - offset)));
    const auto first = out.begin() + static_cast<std::ptrdiff_t>(offset);
    const std::vector<float> got(first, first + m * n);
    if (offset == 0) expected = got;
    EXPECT_EQ(got, expected) << offset;
  }
}

}  // namespace
}  // namespace lockstep::kernels
