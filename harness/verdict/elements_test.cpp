#include "harness/verdict/elements.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "harness/verdict/compare_test_support.hpp"

namespace lockstep::verdict {
namespace {

using namespace testing_support;

// The reference: the same measure, element by element.
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
  const bool special = generator() % 3 == 0;  // otherwise finite numbers, so that many lists are nearly equal
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
    // A not-a-number never holds, so the other pairs cannot hide it.
    EXPECT_TRUE(std::isnan(fast.max_abs_difference));
  } else {
    EXPECT_DOUBLE_EQ(fast.max_abs_difference, slow.max_difference);
  }
  EXPECT_EQ(fast.same_bits, std::memcmp(a.data(), b.data(), n * sizeof(T)) == 0);
  EXPECT_EQ(fast.message.empty(), slow.equal);
}

TEST(Elements, AgreesWithAPlainReferenceOnRandomLists) {
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

}  // namespace
}  // namespace lockstep::verdict
