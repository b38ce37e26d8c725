// Compares the weight gradients of a norm, bit for bit, with the summation order stated in normalize.hpp.
#include <cmath>

#include <gtest/gtest.h>

#include "engine/kernels/normalize.hpp"
#include "engine/kernels/reduce.hpp"
#include "engine/kernels/test_views.hpp"

namespace lockstep::kernels {
namespace {

// Rounds each step, so that the compiler cannot fuse operations.
template <class T>
T rounded(T value) {
  const volatile T stored = value;
  return stored;
}

template <class T>
void check_weights(std::int64_t num_rows, std::int64_t length, bool centred) {
  using C = ComputeType<T>;
  const auto count = static_cast<std::size_t>(num_rows * length);
  std::vector<T> grad = mixed_values<T>(count, 3), x = mixed_values<T>(count, 4);
  std::vector<T> weight_grad(static_cast<std::size_t>(length)), bias_grad = weight_grad;
  std::vector<C> means = mixed_values<C>(static_cast<std::size_t>(num_rows), 5);
  std::vector<C> rstds = mixed_values<C>(static_cast<std::size_t>(num_rows), 6);
  NormRows rows;
  rows.length = length;
  rows.centred = centred;
  norm_backward_weights(Space::host, rows, view_of(weight_grad), centred ? view_of(bias_grad) : View{}, view_of(grad),
                        view_of(x), centred ? view_of(means) : View{}, view_of(rstds));
  for (std::int64_t column = 0; column < length; ++column) {
    double weight_total = 0.0, bias_total = 0.0, weight_group = 0.0, bias_group = 0.0;
    C weight = C(0), bias = C(0);
    for (std::int64_t row = 0; row < num_rows; ++row) {
      if (row % reduce_block == 0) {
        weight_group += weight;
        bias_group += bias;
        weight = bias = C(0);
      }
      if (row % (reduce_block * reduce_group) == 0) {
        weight_total += weight_group;
        bias_total += bias_group;
        weight_group = bias_group = 0.0;
      }
      const auto i = static_cast<std::size_t>(row * length + column);
      const auto r = static_cast<std::size_t>(row);
      const C g = static_cast<C>(grad[i]);
      const C shift = centred ? rounded(-means[r] * rstds[r]) : C(0);
      weight = std::fma(g, std::fma(static_cast<C>(x[i]), rstds[r], shift), weight);
      bias = rounded(bias + g);
    }
    weight_total += weight_group + weight;
    bias_total += bias_group + bias;
    const auto c = static_cast<std::size_t>(column);
    ASSERT_EQ(static_cast<C>(weight_grad[c]), static_cast<C>(static_cast<T>(static_cast<C>(weight_total))))
        << num_rows << " x " << length << ", column " << column;
    if (centred) {
      ASSERT_EQ(static_cast<C>(bias_grad[c]), static_cast<C>(static_cast<T>(static_cast<C>(bias_total))))
          << num_rows << " x " << length << ", column " << column;
    }
  }
}

TEST(NormWeights, AddsTheRowsInOrder) {
  for (const std::int64_t num_rows : {1, 3, 4, 31, 1024, 1025, 2051})
    for (const std::int64_t length : {1, 7, 128, 200}) {
      check_weights<float>(num_rows, length, true);
      check_weights<double>(num_rows, length, true);
    }
  check_weights<double>(600000, 2, true);
  check_weights<float>(1030, 130, false);
  check_weights<BFloat16>(1030, 130, true);
}

}  // namespace
}  // namespace lockstep::kernels
