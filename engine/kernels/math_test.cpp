#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "engine/kernels/activations.hpp"
#include "engine/kernels/elementwise.hpp"
#include "engine/kernels/test_views.hpp"

namespace lockstep::kernels {
namespace {

using Kernel = void (*)(Execution, const View&, const View&);

// Floats from low to high in equal steps of their bit patterns, each with both signs.
std::vector<float> spread(float low, float high, std::uint32_t step) {
  std::vector<float> values;
  for (std::uint32_t bits = __builtin_bit_cast(std::uint32_t, low); bits < __builtin_bit_cast(std::uint32_t, high);
       bits += step) {
    values.push_back(__builtin_bit_cast(float, bits));
    values.push_back(-values.back());
  }
  return values;
}

// The largest error against the exact value, in units in the last place of the result.
double largest_error(Kernel kernel, std::vector<float> values, const std::function<double(double)>& exact) {
  std::vector<float> out(values.size());
  kernel(Space::host, view_of(out), view_of(values));
  double worst = 0.0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double wanted = exact(values[i]);
    const float rounded = std::fabs(static_cast<float>(wanted));
    if (std::isinf(rounded)) {
      EXPECT_EQ(out[i], static_cast<float>(wanted)) << values[i];
      continue;
    }
    const double unit = static_cast<double>(std::nextafter(rounded, std::numeric_limits<float>::infinity())) - rounded;
    worst = std::max(worst, std::fabs(static_cast<double>(out[i]) - wanted) / unit);
  }
  return worst;
}

TEST(Math, ExpIsWithinOneUnit) {
  EXPECT_LT(largest_error(kernels::exp, spread(1e-9f, 110.0f, 997), [](double x) { return std::exp(x); }), 1.0);
}
TEST(Math, ErfIsWithinTwoUnits) {
  EXPECT_LT(largest_error(kernels::erf, spread(1e-9f, 8.0f, 997), [](double x) { return std::erf(x); }), 2.0);
}
TEST(Math, TanhIsWithinTwoUnits) {
  EXPECT_LT(largest_error(kernels::tanh, spread(1e-9f, 20.0f, 997), [](double x) { return std::tanh(x); }), 2.0);
}

TEST(Math, ExpOfFloat64IsWithinOneUnit) {
  std::vector<double> values, out;
  for (double x = -745.0; x < 709.5; x += 0.0317) values.push_back(x);
  out.resize(values.size());
  kernels::exp(Space::host, view_of(out), view_of(values));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const long double wanted = std::exp(static_cast<long double>(values[i]));
    const double rounded = static_cast<double>(wanted);
    const double unit = std::nextafter(rounded, std::numeric_limits<double>::infinity()) - rounded;
    ASSERT_LE(std::fabs(static_cast<double>(out[i] - wanted)), unit) << values[i];
  }
}

TEST(Math, HandlesNanAndInfinity) {
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> values = {infinity, -infinity, std::nanf(""), 0.0f, -0.0f}, out(5);
  kernels::exp(Space::host, view_of(out), view_of(values));
  EXPECT_EQ(out[0], infinity);
  EXPECT_EQ(out[1], 0.0f);
  EXPECT_TRUE(std::isnan(out[2]));
  EXPECT_EQ(out[3], 1.0f);
  for (const Kernel kernel : {Kernel(kernels::erf), Kernel(kernels::tanh)}) {
    kernel(Space::host, view_of(out), view_of(values));
    EXPECT_EQ(out[0], 1.0f);
    EXPECT_EQ(out[1], -1.0f);
    EXPECT_TRUE(std::isnan(out[2]));
    EXPECT_EQ(out[3], 0.0f);
    EXPECT_TRUE(std::signbit(out[4]));
  }
}

TEST(Math, GivesTheSameBitsAloneAndInAVector) {
  std::vector<float> values = mixed_values<float>(301), out(301), strided(602);
  for (float& value : values) value *= 0.01f;
  for (const Kernel kernel : {Kernel(kernels::exp), Kernel(kernels::erf), Kernel(kernels::tanh), Kernel(kernels::gelu),
                              Kernel(kernels::sigmoid)}) {
    kernel(Space::host, view_of(out), view_of(values));
    kernel(Space::host, view_of(strided, {301}, {2}), view_of(values));
    for (std::size_t i = 0; i < values.size(); ++i) {
      float alone = 0.0f;
      kernel(Space::host, {&alone, DType::float32, {1}, {1}}, {&values[i], DType::float32, {1}, {1}});
      ASSERT_EQ(std::memcmp(&alone, &out[i], sizeof(float)), 0) << values[i];
      ASSERT_EQ(std::memcmp(&alone, &strided[2 * i], sizeof(float)), 0) << values[i];
    }
  }
}

}  // namespace
}  // namespace lockstep::kernels
