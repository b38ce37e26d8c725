// The portable bodies with reductions against the host bodies: bit for bit, for teams of several sizes.
#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/kernels/gemm.hpp"
#include "engine/kernels/normalize.hpp"
#include "engine/kernels/reduce.hpp"
#include "engine/kernels/test_portable.hpp"
#include "engine/kernels/test_views.hpp"

namespace lockstep::kernels {
namespace {

constexpr float nan = std::numeric_limits<float>::quiet_NaN();
constexpr float infinity = std::numeric_limits<float>::infinity();
// From more than two pieces of 8192 on, many teams sum; more than 256 blocks are two groups.
constexpr std::int64_t lengths[] = {1, 31, 32, 33, 100, 1024, 1025, 3000, 8200, 16385, 270000};

std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

template <class T>
void check_sums() {
  using R = std::conditional_t<std::is_integral_v<T>, std::int64_t, T>;
  for (const std::int64_t count : lengths) {
    std::vector<T> x = mixed_values<T>(size(count * 3));
    expect_host_bits("sum of rows", std::vector<R>(3), [&](Execution on, std::vector<R>& out) {
      sum(on, view_of(out), view_of(x, {3, count}), 1, std::is_integral_v<T> ? 1.0 : 3.0);
    });
    expect_host_bits("sum of gaps", std::vector<R>(1), [&](Execution on, std::vector<R>& out) {
      sum(on, view_of(out, Dims{}), view_of(x, {count}, {3}), 1);
    });
  }
  for (const std::int64_t count : {1, 3, 40, 1024, 1300, 270000}) {
    for (const std::int64_t columns : {8, 33, 130}) {
      if (count * columns > 8 * 270000) continue;
      std::vector<T> x = mixed_values<T>(size(2 * count * columns));
      expect_host_bits("sum of columns", std::vector<R>(size(2 * columns)), [&](Execution on, std::vector<R>& out) {
        sum(on, view_of(out), view_of(x, {2, columns, count}, {count * columns, 1, columns}), 1);
      });
    }
  }
  std::vector<T> x = mixed_values<T>(3 * 50 * 9 * 30);
  expect_host_bits("sum of two dims", std::vector<R>(27), [&](Execution on, std::vector<R>& out) {
    sum(on, view_of(out), view_of(x, {3, 9, 50, 30}, {50 * 9 * 30, 30, 9 * 30, 1}), 2);
  });
}
TEST(PortableRows, SumsGiveTheBitsOfTheHost) {
  check_sums<float>();
  check_sums<double>();
  check_sums<BFloat16>();
  check_sums<std::int32_t>();
}

TEST(PortableRows, SquaredDifferencesAndFinitenessGiveTheBitsOfTheHost) {
  for (const std::int64_t count : lengths) {
    std::vector<float> a = mixed_values<float>(size(count)), b = mixed_values<float>(size(count), 5);
    expect_host_bits("sum_squared_difference", std::vector<float>(1), [&](Execution on, std::vector<float>& out) {
      sum_squared_difference(on, view_of(out, Dims{}), view_of(a), view_of(b), 7.0);
    });
    for (const float bad : {1.0f, nan, infinity}) {
      a[size(count / 2)] = bad;
      expect_host_bits("all_finite", Bools(1, 7), [&](Execution on, Bools& out) {
        all_finite(on, {out.data(), DType::boolean, {}, {}}, view_of(a));
      });
    }
  }
}

// `mean` is null for norms that do not centre.
template <class T>
void check_norm_weights(const NormRows& of, bool has_bias, std::vector<T>& grad, std::vector<T>& x, const View& mean,
                        const View& rstd) {
  expect_host_bits(
      "norm_backward_weights", std::vector<T>(size(2 * of.length)), [&](Execution on, std::vector<T>& out) {
        const View bias_grad = has_bias ? view_of(out, {of.length}, {1}, of.length) : View{};
        norm_backward_weights(on, of, view_of(out, {of.length}, {1}), bias_grad, view_of(grad), view_of(x), mean, rstd);
      });
}

template <class T>
void check_norms(std::int64_t length, std::int64_t num_rows) {
  using C = ComputeType<T>;
  std::vector<T> x = mixed_values<T>(size(num_rows * length)), grad = mixed_values<T>(size(num_rows * length), 3);
  std::vector<T> weight = mixed_values<T>(size(length), 4), bias = mixed_values<T>(size(length), 5);
  for (const bool centred : {true, false}) {
    const NormRows of{length, 1e-5, centred};
    for (const auto& [has_weight, has_bias] : {std::pair{true, true}, {true, false}, {false, false}}) {
      const View w = has_weight ? view_of(weight) : View{}, b = has_bias ? view_of(bias) : View{};
      std::vector<C> mean(size(num_rows)), rstd(size(num_rows));
      const View means = centred ? view_of(mean) : View{};
      expect_host_bits("norm", std::vector<T>(x.size()), [&](Execution on, std::vector<T>& out) {
        norm(on, of, view_of(out), means, view_of(rstd), view_of(x), w, b);
      });
      expect_host_bits("norm, statistics", std::vector<C>(size(2 * num_rows)),
                       [&](Execution on, std::vector<C>& statistics) {
                         std::vector<T> out(x.size());
                         const View first = view_of(statistics, {num_rows}, {1});
                         norm(on, of, view_of(out), centred ? first : View{},
                              view_of(statistics, {num_rows}, {1}, num_rows), view_of(x), w, b);
                       });
      std::vector<T> normalised(x.size());
      norm(Space::host, of, view_of(normalised), means, view_of(rstd), view_of(x), w, b);
      expect_host_bits("norm_backward", std::vector<T>(x.size()), [&](Execution on, std::vector<T>& out) {
        norm_backward(on, of, view_of(out), view_of(grad), view_of(x), means, view_of(rstd), w);
      });
      check_norm_weights(of, has_bias, grad, x, means, view_of(rstd));
    }
  }
}
TEST(PortableRows, NormsGiveTheBitsOfTheHost) {
  for (const std::int64_t length : lengths) check_norms<float>(length, 3);
  check_norms<double>(100, 5);
  check_norms<BFloat16>(1030, 4);
}
// Only the gradients of the weights, whose teams are few: one team per row takes many waits of threads for each other.
TEST(PortableRows, GradientsOfNormWeightsOverManyRowsGiveTheBitsOfTheHost) {
  constexpr std::int64_t length = 37, num_rows = 8 * 1024 + 1030;  // more blocks of rows than a team adds at a time
  std::vector<float> x = mixed_values<float>(size(num_rows * length)), grad = mixed_values<float>(x.size(), 3);
  std::vector<float> mean = mixed_values<float>(num_rows, 4), rstd = mixed_values<float>(num_rows, 5);
  for (const bool centred : {true, false})
    check_norm_weights({length, 1e-5, centred}, centred, grad, x, centred ? view_of(mean) : View{}, view_of(rstd));
}

template <class T>
void check_softmax() {
  for (const std::int64_t length : lengths) {
    std::vector<T> a = mixed_values<T>(size(3 * length)), grad = mixed_values<T>(size(3 * length), 3);
    for (T& value : a) value = static_cast<T>(static_cast<ComputeType<T>>(value) * ComputeType<T>(0.01));
    a[0] = static_cast<T>(-infinity);
    a[size(2 * length)] = static_cast<T>(nan);
    for (const bool logarithm : {false, true}) {
      std::vector<T> result(a.size());
      softmax(Space::host, view_of(result, {3, length}), view_of(a, {3, length}), logarithm);
      expect_host_bits("softmax", std::vector<T>(a.size()), [&](Execution on, std::vector<T>& out) {
        softmax(on, view_of(out, {3, length}), view_of(a, {3, length}), logarithm);
      });
      expect_host_bits("softmax_backward", std::vector<T>(a.size()), [&](Execution on, std::vector<T>& out) {
        softmax_backward(on, view_of(out, {3, length}), view_of(grad, {3, length}), view_of(result, {3, length}),
                         logarithm);
      });
    }
  }
}
TEST(PortableRows, SoftmaxGivesTheBitsOfTheHost) {
  check_softmax<float>();
  check_softmax<double>();
  check_softmax<Half>();
}

template <class T>
void check_attention(std::int64_t queries, std::int64_t keys, bool causal, bool masked, bool drops) {
  const Dims sizes = {2, queries, keys};
  const std::size_t count = size(2 * queries * keys);
  std::vector<T> scores = mixed_values<T>(count), probabilities = mixed_values<T>(count, 9);
  for (T& score : scores) score *= T(0.01);
  for (std::int64_t i = 0; i < keys; ++i) scores[size(keys + i)] = -std::numeric_limits<T>::infinity();  // one row
  if (queries > 2) scores[size(2 * keys)] = std::numeric_limits<T>::quiet_NaN();
  if (queries > 3) {  // a NaN among infinities
    for (std::int64_t i = 0; i < keys; ++i) scores[size(3 * keys + i)] = -std::numeric_limits<T>::infinity();
    scores[size(3 * keys + keys / 2)] = std::numeric_limits<T>::quiet_NaN();
  }
  Bools mask(count), keep(count);
  for (std::size_t i = 0; i < count; ++i) mask[i] = i % 3 != 0 && i / size(keys) != 1, keep[i] = i % 5 != 0;
  const View shown = masked ? View{mask.data(), DType::boolean, sizes, contiguous_strides(sizes)} : View{};
  const View kept = drops ? View{keep.data(), DType::boolean, sizes, contiguous_strides(sizes)} : View{};
  const AttentionRows of{0.37, causal, 1.25};
  std::vector<T> both = scores;  // scores, then the dropped probabilities
  both.resize(2 * count);
  expect_host_bits("attention_probabilities", both, [&](Execution on, std::vector<T>& out) {
    attention_probabilities(on, of, view_of(out, sizes),
                            drops ? view_of(out, sizes, contiguous_strides(sizes), 2 * queries * keys) : View{}, shown,
                            kept);
  });
  expect_host_bits("attention_backward", mixed_values<T>(count, 4), [&](Execution on, std::vector<T>& grad) {
    attention_backward(on, of, view_of(grad, sizes), view_of(probabilities, sizes), kept);
  });
}
TEST(PortableRows, AttentionGivesTheBitsOfTheHost) {
  for (const std::int64_t keys : {1, 17, 64, 1100})
    for (const bool causal : {false, true})
      for (const bool masked : {false, true})
        for (const bool drops : {false, true}) check_attention<float>(5, keys, causal, masked, drops);
  check_attention<double>(70, 64, true, false, true);
}

template <class T>
void check_class_losses(std::int64_t classes) {
  using C = ComputeType<T>;
  constexpr std::int64_t n = 6;
  constexpr std::int64_t ignored = -100;
  std::vector<T> logits = mixed_values<T>(size(n * classes)), grad = mixed_values<T>(n, 3);
  for (T& value : logits) value = static_cast<T>(static_cast<C>(value) * C(0.01));
  std::vector<std::int64_t> targets = {0, classes - 1, ignored, classes / 2, 0, ignored};
  const View x = view_of(logits, {n, classes}), at = view_of(targets);
  std::vector<C> losses(n), log_sums(n), weights = mixed_values<C>(n, 5), total = {C(2.5)};
  expect_host_bits("class_losses", std::vector<C>(2 * n), [&](Execution on, std::vector<C>& out) {
    class_losses(on, view_of(out, {n}, {1}), view_of(out, {n}, {1}, n), x, at, ignored);
  });
  class_losses(Space::host, view_of(losses), view_of(log_sums), x, at, ignored);
  std::vector<T> class_weight = mixed_values<T>(size(classes), 7);
  expect_host_bits("class_weights", std::vector<C>(n, C(-1)), [&](Execution on, std::vector<C>& out) {
    class_weights(on, view_of(out), at, view_of(class_weight), ignored);
  });
  expect_host_bits("weigh_class_losses", std::vector<C>(n, C(-1)), [&](Execution on, std::vector<C>& out) {
    weigh_class_losses(on, view_of(out), view_of(weights), at, ignored);
  });
  expect_host_bits("class_sums", std::vector<C>(2 * n), [&](Execution on, std::vector<C>& out) {
    class_sums(on, view_of(out, {n}, {1}), view_of(out, {n}, {1}, n), x, at, view_of(losses));
  });
  ClassLossGradient by;
  by.divisor = 3.0;
  by.ignored = ignored;
  for (const bool weighted : {false, true}) {
    if (weighted) by.weights = view_of(weights), by.total = view_of(total, Dims{});
    expect_host_bits(
        "class_losses_backward", std::vector<T>(logits.size(), static_cast<T>(7.0f)),
        [&](Execution on, std::vector<T>& out) {
          class_losses_backward(on, view_of(out, {n, classes}), x, view_of(log_sums), at, view_of(grad), by);
        });
  }
}
TEST(PortableRows, ClassLossesGiveTheBitsOfTheHost) {
  for (const std::int64_t classes : lengths) check_class_losses<float>(classes);
  check_class_losses<double>(100);
  check_class_losses<BFloat16>(1025);
}
TEST(PortableRows, RefusesTheTargetsThatTheHostRefuses) {
  std::vector<float> logits(12), losses(3), log_sums(3);
  std::vector<std::int64_t> targets = {3, -1, 4};
  try {
    class_losses(Space::portable, view_of(losses), view_of(log_sums), view_of(logits, {3, 4}), view_of(targets), -1);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("target 4 of row 2 is out of range for 4 classes"));
  }
}

// The portable product is a chain of fma. It equals narrow_product, and differs from a library in the last bits.
template <class T>
void check_product(std::int64_t m, std::int64_t n, std::int64_t k) {
  std::vector<T> a = mixed_values<T>(size(2 * m * k)), b = mixed_values<T>(size(k * n), 2),
                 bias = mixed_values<T>(size(n));
  for (const Dims& layout_a : {Dims{m * k, k, 1}, Dims{m * k, 1, m}}) {
    for (const Dims& layout_b : {Dims{0, n, 1}, Dims{0, 1, k}}) {
      const View x = view_of(a, {2, m, k}, layout_a), y = view_of(b, {2, k, n}, layout_b);
      std::vector<T> expected(size(2 * m * n)), library(expected.size());
      std::vector<double> sizes(expected.size());  // sums of the sizes of the products, which bound the rounding
      for (std::int64_t e = 0; e < 2 * m * n; ++e) {
        const std::int64_t batch = e / (m * n), i = e / n % m, j = e % n;
        T sum = T(0);
        for (std::int64_t l = 0; l < k; ++l) {
          const T left = a[size(batch * m * k + i * layout_a[1] + l * layout_a[2])],
                  right = b[size(l * layout_b[1] + j * layout_b[2])];
          sum = std::fma(left, right, sum);
          sizes[size(e)] += std::fabs(static_cast<double>(left) * static_cast<double>(right));
        }
        expected[size(e)] = sum;
      }
      matmul(Space::host, view_of(library, {2, m, n}), x, y);
      for (const Execution on : portable_executions()) {
        std::vector<T> out(expected.size());
        matmul(on, view_of(out, {2, m, n}), x, y);
        EXPECT_EQ(out, expected) << m << " " << n << " " << k << ", teams of " << on.team_size;
      }
      for (std::size_t e = 0; e < expected.size(); ++e)
        ASSERT_NEAR(library[e], expected[e], static_cast<double>(k) * std::numeric_limits<T>::epsilon() * sizes[e])
            << e;
    }
  }
  std::vector<T> product(size(m * n)), added(size(m * n)), weight = mixed_values<T>(size(n * k), 6);
  const View by = view_of(bias);
  linear(Space::portable, view_of(product, {m, n}), view_of(a, {m, k}), view_of(weight, {n, k}), nullptr);
  linear({Space::portable, 3}, view_of(added, {m, n}), view_of(a, {m, k}), view_of(weight, {n, k}), &by);
  for (std::size_t e = 0; e < added.size(); ++e) ASSERT_EQ(added[e], bias[e % size(n)] + product[e]) << e;
}
TEST(PortableRows, ProductsAreChainsOfFma) {
  for (const std::int64_t n : {1, 5, 33}) {
    check_product<float>(40, n, 70);
    check_product<double>(9, n, 31);
  }
}
TEST(PortableRows, NarrowProductsGiveTheBitsOfTheHost) {
  constexpr std::int64_t m = 64, n = 4, k = 57;
  std::vector<float> a = mixed_values<float>(m * k), b = mixed_values<float>(k * n, 2);
  expect_host_bits("matmul", std::vector<float>(m * n), [&](Execution on, std::vector<float>& out) {
    matmul(on, view_of(out, {m, n}), view_of(a, {m, k}, {1, m}), view_of(b, {k, n}));
  });
}

}  // namespace
}  // namespace lockstep::kernels
