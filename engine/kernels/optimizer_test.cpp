// Compares the steps with the formulas of the header, element by element and bit for bit.
#include "engine/kernels/optimizer.hpp"

#include <cmath>

#include <gtest/gtest.h>

#include "engine/kernels/test_views.hpp"

namespace lockstep::kernels {
namespace {

constexpr std::size_t count = 2 * 4096 + 19;

// Rounds each step, so that the compiler cannot fuse operations.
template <class T>
T rounded(T value) {
  const volatile T stored = value;
  return stored;
}

template <class T>
void check_sgd(const SgdNumbers& numbers, int steps) {
  std::vector<T> p = mixed_values<T>(count), buffer(count), expected_p = p, expected_buffer(count);
  for (int step = 0; step < steps; ++step) {
    std::vector<T> grad = mixed_values<T>(count, static_cast<std::uint32_t>(10 + step));
    const SgdItem item{view_of(p), view_of(grad), view_of(buffer), step == 0};
    sgd(Space::host, {&item, 1}, numbers);
    for (std::size_t i = 0; i < count; ++i) {
      T g = grad[i];
      if (numbers.weight_decay != 0.0) g = std::fma(static_cast<T>(numbers.weight_decay), expected_p[i], g);
      if (numbers.momentum != 0.0) {
        if (step > 0) g = rounded(rounded(expected_buffer[i] * static_cast<T>(numbers.momentum)) + g);
        expected_buffer[i] = g;
      }
      expected_p[i] = std::fma(static_cast<T>(-numbers.lr), g, expected_p[i]);
    }
    ASSERT_EQ(p, expected_p) << "step " << step;
    if (numbers.momentum != 0.0) {
      ASSERT_EQ(buffer, expected_buffer) << "step " << step;
    }
  }
}
TEST(Optimizer, SgdMatchesItsFormulas) {
  check_sgd<float>({.lr = 0.1}, 2);
  check_sgd<float>({.lr = 0.1, .momentum = 0.9}, 3);
  check_sgd<float>({.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01}, 3);
  check_sgd<double>({.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01}, 3);
}

template <class T>
void check_adam(const AdamNumbers& numbers) {
  std::vector<T> p = mixed_values<T>(count), m(count), v(count);
  std::vector<T> expected_p = p, expected_m = m, expected_v = v;
  for (int step = 1; step <= 3; ++step) {
    std::vector<T> grad = mixed_values<T>(count, static_cast<std::uint32_t>(10 + step));
    const AdamItem item{view_of(p), view_of(grad), view_of(m), view_of(v), step};
    adam(Space::host, {&item, 1}, numbers);
    const double c1 = 1.0 - std::pow(numbers.beta1, step), c2 = 1.0 - std::pow(numbers.beta2, step);
    for (std::size_t i = 0; i < count; ++i) {
      T x = expected_p[i], g = grad[i];
      if (numbers.weight_decay != 0.0 && numbers.decoupled)
        x = rounded(x * static_cast<T>(1.0 - numbers.lr * numbers.weight_decay));
      if (numbers.weight_decay != 0.0 && !numbers.decoupled) g = std::fma(static_cast<T>(numbers.weight_decay), x, g);
      const T weight = static_cast<T>(1.0 - numbers.beta1), distance = rounded(g - expected_m[i]);
      expected_m[i] =
          weight < T(0.5) ? std::fma(weight, distance, expected_m[i]) : std::fma(weight - T(1), distance, g);
      expected_v[i] = rounded(expected_v[i] * static_cast<T>(numbers.beta2));
      expected_v[i] = std::fma(rounded(static_cast<T>(1.0 - numbers.beta2) * g), g, expected_v[i]);
      const T d = rounded(rounded(rounded(std::sqrt(expected_v[i])) / static_cast<T>(std::sqrt(c2))) +
                          static_cast<T>(numbers.eps));
      expected_p[i] = rounded(x + rounded(rounded(static_cast<T>(-(numbers.lr / c1)) * expected_m[i]) / d));
    }
    ASSERT_EQ(m, expected_m) << "step " << step;
    ASSERT_EQ(v, expected_v) << "step " << step;
    ASSERT_EQ(p, expected_p) << "step " << step;
  }
}
TEST(Optimizer, AdamMatchesItsFormulas) {
  check_adam<float>({});
  check_adam<double>({});
  check_adam<float>({.lr = 0.01, .weight_decay = 0.1});
  check_adam<float>({.lr = 0.01, .weight_decay = 0.1, .decoupled = true});
  check_adam<float>({.beta1 = 0.3});
  check_adam<double>({.beta1 = 0.5, .weight_decay = 0.1});
}

// Also after a gradient that is larger by more digits than the type has.
TEST(Optimizer, WithoutBeta1TheFirstMomentIsTheGradient) {
  std::vector<float> p(4, 1.0f), m(4, 1e8f), v(4), grad = {0.5f, -3.0f, 100.0f, -0.001f};
  const AdamItem item{view_of(p), view_of(grad), view_of(m), view_of(v), 2};
  adam(Space::host, {&item, 1}, {.beta1 = 0.0});
  EXPECT_EQ(m, grad);
}

// The first step of Adam moves each parameter by about lr against the sign of its gradient. This check is independent
// of the formulas above.
TEST(Optimizer, FirstAdamStepMovesByTheLearningRate) {
  std::vector<float> p(4, 1.0f), m(4), v(4), grad = {0.5f, -3.0f, 100.0f, -0.001f};
  const AdamItem item{view_of(p), view_of(grad), view_of(m), view_of(v), 1};
  adam(Space::host, {&item, 1}, {.lr = 0.25});
  EXPECT_NEAR(p[0], 0.75f, 1e-4f);
  EXPECT_NEAR(p[1], 1.25f, 1e-4f);
  EXPECT_NEAR(p[2], 0.75f, 1e-4f);
  EXPECT_NEAR(p[3], 1.25f, 1e-4f);
}

TEST(Optimizer, BatchedStepMatchesSingleSteps) {
  std::vector<std::vector<float>> p, grad, m, v, q, n, w;
  for (const std::size_t size : {1u, 0u, 7u, 5000u}) {
    p.push_back(mixed_values<float>(size));
    grad.push_back(mixed_values<float>(size, 3));
    m.emplace_back(size);
    v.emplace_back(size);
  }
  q = p, n = m, w = v;
  std::vector<AdamItem> items;
  for (std::size_t i = 0; i < p.size(); ++i)
    items.push_back({view_of(p[i]), view_of(grad[i]), view_of(m[i]), view_of(v[i]), static_cast<std::int64_t>(i + 1)});
  adam(Space::host, items, {});
  for (std::size_t i = 0; i < p.size(); ++i) {
    const AdamItem item{view_of(q[i]), view_of(grad[i]), view_of(n[i]), view_of(w[i]),
                        static_cast<std::int64_t>(i + 1)};
    adam(Space::host, {&item, 1}, {});
    EXPECT_EQ(p[i], q[i]);
    EXPECT_EQ(m[i], n[i]);
  }
}

TEST(Optimizer, ShortTypesComputeInFloat32) {
  std::vector<BFloat16> p(1, BFloat16(1.0f)), grad(1, BFloat16(0.5f)), none;
  const SgdItem item{view_of(p), view_of(grad), {}, false};
  sgd(Space::host, {&item, 1}, {.lr = 0.1});
  EXPECT_EQ(p[0].bits, BFloat16(std::fma(-0.1f, 0.5f, 1.0f)).bits);
}

TEST(Optimizer, RejectsMismatchedViews) {
  std::vector<float> p(4), grad(5), strided(8);
  const SgdItem other_size{view_of(p), view_of(grad), {}, false};
  EXPECT_THROW(sgd(Space::host, {&other_size, 1}, {}), InternalError);
  const SgdItem gaps{view_of(p), view_of(strided, {4}, {2}), {}, false};
  EXPECT_THROW(sgd(Space::host, {&gaps, 1}, {}), InternalError);
}

}  // namespace
}  // namespace lockstep::kernels
