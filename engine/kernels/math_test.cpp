// exp, erf and tanh against long double and against values that were computed in 40 digits and rounded.
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "engine/kernels/activations.hpp"
#include "engine/kernels/elementwise.hpp"
#include "engine/kernels/test_errors.hpp"

namespace lockstep::kernels {
namespace {

long double exact_exp(long double x) { return std::exp(x); }
long double exact_erf(long double x) { return std::erf(x); }
long double exact_tanh(long double x) { return std::tanh(x); }

TEST(Math, ExpIsWithinOneUnit) {
  EXPECT_LT(largest_error(kernels::exp, spread(1e-9f, 110.0f, 250'000), exact_exp), 1.0);
  EXPECT_LT(largest_error(kernels::exp, between<double>(-746.0, 710.0, 200'000), exact_exp), 1.0);
  EXPECT_LT(largest_error(kernels::exp, spread(1e-300, 800.0, 50'000), exact_exp), 1.0);
}
TEST(Math, ErfIsWithinTwoUnits) {
  EXPECT_LT(largest_error(kernels::erf, spread(1e-9f, 8.0f, 250'000), exact_erf), 2.0);
}
TEST(Math, TanhIsWithinTwoUnits) {
  EXPECT_LT(largest_error(kernels::tanh, spread(1e-9f, 20.0f, 250'000), exact_tanh), 2.0);
}
TEST(Math, ErfOfFloat64IsWithinOneAndAHalfUnits) {
  EXPECT_LT(largest_error(kernels::erf, between<double>(-1.0, 1.0, 200'000), exact_erf), 1.5);
  EXPECT_LT(largest_error(kernels::erf, between<double>(0.9, 6.1, 200'000), exact_erf), 1.5);
  EXPECT_LT(largest_error(kernels::erf, between<double>(6.0, 1000.0, 50'000), exact_erf), 1.5);
  EXPECT_LT(largest_error(kernels::erf, spread(1e-300, 30.0, 50'000), exact_erf), 1.5);
  EXPECT_LT(largest_error(kernels::erf, random_bits<double>(50'000), exact_erf), 1.5);
}
TEST(Math, TanhOfFloat64IsWithinOneAndAHalfUnits) {
  EXPECT_LT(largest_error(kernels::tanh, between<double>(-0.7, 0.7, 200'000), exact_tanh), 1.5);
  EXPECT_LT(largest_error(kernels::tanh, between<double>(0.6, 22.0, 200'000), exact_tanh), 1.5);
  EXPECT_LT(largest_error(kernels::tanh, spread(1e-300, 1000.0, 50'000), exact_tanh), 1.5);
  EXPECT_LT(largest_error(kernels::tanh, random_bits<double>(50'000), exact_tanh), 1.5);
}

struct Value {
  double x;
  double result;
};
TEST(Math, GivesTheRoundedValuesOfErfAndTanh) {
  const Value of_erf[] = {{1e-300, 0x1.82e6d98711d3ap-997}, {1e-09, 0x1.362a9ffc610ddp-30}, {0.1, 0x1.cca5ea24fb334p-4},
                          {0.5, 0x1.0a7ef5c18edd2p-1},      {0.999, 0x1.af4003d2e0fcap-1},  {1.0, 0x1.af767a741088bp-1},
                          {1.5, 0x1.eea5557137ae0p-1},      {2.5, 0x1.ffcaa8f4c9beap-1},    {4.0, 0x1.ffffff7b91176p-1},
                          {5.5, 0x1.fffffffffffbep-1}};
  const Value of_tanh[] = {{1e-300, 0x1.56e1fc2f8f359p-997}, {1e-09, 0x1.12e0be826d695p-30},
                           {0.1, 0x1.983d7795f413ap-4},      {0.5, 0x1.d9353d7568af3p-2},
                           {0.624, 0x1.1b99b00e04922p-1},    {0.626, 0x1.1c4f338418190p-1},
                           {1.0, 0x1.85efab514f394p-1},      {3.0, 0x1.fd77d111a0b00p-1},
                           {10.0, 0x1.ffffffdc96f35p-1},     {18.0, 0x1.ffffffffffffcp-1}};
  for (const auto& [x, result] : of_erf)
    EXPECT_LE(error_in_units(apply<double>(kernels::erf, {-x})[0], -result), 1.0) << x;
  for (const auto& [x, result] : of_tanh)
    EXPECT_LE(error_in_units(apply<double>(kernels::tanh, {-x})[0], -result), 1.0) << x;
}

template <class T>
void handles_nan_and_infinity() {
  const T infinity = std::numeric_limits<T>::infinity(), nan = std::numeric_limits<T>::quiet_NaN();
  const std::vector<T> values = {infinity, -infinity, nan, T(0), -T(0)};
  std::vector<T> out = apply<T>(kernels::exp, values);
  EXPECT_EQ(out[0], infinity);
  EXPECT_EQ(out[1], T(0));
  EXPECT_TRUE(std::isnan(out[2]));
  EXPECT_EQ(out[3], T(1));
  for (const auto& kernel : {kernels::erf, kernels::tanh}) {
    out = apply<T>(kernel, values);
    EXPECT_EQ(out[0], T(1));
    EXPECT_EQ(out[1], T(-1));
    EXPECT_TRUE(std::isnan(out[2]));
    EXPECT_EQ(out[3], T(0));
    EXPECT_FALSE(std::signbit(out[3]));
    EXPECT_TRUE(std::signbit(out[4]));
  }
}
TEST(Math, HandlesNanAndInfinity) {
  handles_nan_and_infinity<float>();
  handles_nan_and_infinity<double>();
}

template <class T>
void gives_the_same_bits_alone() {
  std::vector<T> values = mixed_values<T>(301);
  for (T& value : values) value *= T(0.01);
  for (const auto& kernel : {kernels::exp, kernels::erf, kernels::tanh, kernels::gelu, kernels::sigmoid}) {
    expect_same_bits_alone(kernel, values);
    expect_same_bits_alone(kernel, mixed_values<T>(301));
  }
}
TEST(Math, GivesTheSameBitsAloneAndInAVector) {
  gives_the_same_bits_alone<float>();
  gives_the_same_bits_alone<double>();
}

}  // namespace
}  // namespace lockstep::kernels
