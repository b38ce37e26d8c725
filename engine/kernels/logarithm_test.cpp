// log and pow against long double, against values that were computed in 40 digits and rounded, and against the special
// values of IEEE 754. The exponents are not those that pow_number computes without math::pow.
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "engine/kernels/elementwise.hpp"
#include "engine/kernels/test_errors.hpp"

namespace lockstep::kernels {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();

long double exact_log(long double x) { return std::log(x); }
Kernel to_the_power(double exponent) {
  return [exponent](Execution on, const View& out, const View& a) { pow_number(on, out, a, exponent); };
}
template <class T>
double largest_error_of_powers(const std::vector<T>& bases, const std::vector<double>& exponents) {
  double worst = 0.0;
  for (const double exponent : exponents) {
    const auto y = static_cast<long double>(static_cast<T>(exponent));
    const double error = largest_error(to_the_power(exponent), bases, [y](long double x) { return std::pow(x, y); });
    if (error > worst) worst = error;
  }
  return worst;
}

TEST(Logarithm, IsRoundedOnce) {
  EXPECT_LT(largest_error(kernels::log, spread(1e-45f, 3e38f, 250'000), exact_log), 0.501);
  EXPECT_LT(largest_error(kernels::log, between<float>(0.5, 2.0, 200'000), exact_log), 0.501);
  EXPECT_LT(largest_error(kernels::log, random_bits<double>(100'000), exact_log), 0.51);
  EXPECT_LT(largest_error(kernels::log, between<double>(0.5, 2.0, 200'000), exact_log), 0.51);
  EXPECT_LT(largest_error(kernels::log, between<double>(0.99999, 1.00001, 100'000), exact_log), 0.51);
  EXPECT_LT(largest_error(kernels::log, between<double>(0.0, 1e-307, 100'000), exact_log), 0.51);
}

template <class T>
void gives_special_values_of_log() {
  const T inf = std::numeric_limits<T>::infinity();
  const std::vector<T> out = apply<T>(kernels::log, {T(0), -T(0), T(1), inf, T(-1), -inf, T(nan)});
  EXPECT_EQ(out[0], -inf);
  EXPECT_EQ(out[1], -inf);
  EXPECT_EQ(out[2], T(0));
  EXPECT_FALSE(std::signbit(out[2]));
  EXPECT_EQ(out[3], inf);
  for (std::size_t i = 4; i < out.size(); ++i) EXPECT_TRUE(std::isnan(out[i])) << i;
}
TEST(Logarithm, GivesSpecialValues) {
  gives_special_values_of_log<float>();
  gives_special_values_of_log<double>();
}

TEST(Power, OfFloat32IsRoundedOnce) {
  EXPECT_LT(largest_error_of_powers(spread(1e-45f, 3e38f, 5'000),
                                    {-7.0, -1.7, -0.1, 0.01, 0.3, 1.0, 1.5, 2.5, 4.0, 5.0, 17.0, 1e-30, 1e10}),
            0.501);
  EXPECT_LT(largest_error_of_powers(between<float>(0.98, 1.02, 20'000), {-5000.0, -333.3, 4.0, 1000.5, 6000.0}), 0.501);
  EXPECT_LT(largest_error_of_powers(between<float>(0.71, 1.41, 20'000), {-250.0, 99.9, 255.0}), 0.501);
  EXPECT_LT(largest_error_of_powers(random_bits<float>(20'000), {-3.0, 1.25, 9.0}), 0.501);
}
TEST(Power, OfFloat64IsWithinFourFifthsOfAUnit) {
  EXPECT_LT(largest_error_of_powers(spread(5e-324, 1.7e308, 5'000),
                                    {-7.0, -1.7, -0.1, 0.01, 0.3, 0.999, 1.0, 1.01, 1.5, 2.5, 4.0, 1e-300, 1e100}),
            0.8);
  EXPECT_LT(largest_error_of_powers(between<double>(0.68, 1.5, 30'000), {-1800.0, -333.3, 4.0, 600.5, 1700.0}), 0.8);
  EXPECT_LT(largest_error_of_powers(between<double>(0.9999, 1.0001, 20'000), {-7e6, 1234567.8, 6e6}), 0.8);
  EXPECT_LT(largest_error_of_powers(between<double>(0.0, 10.0, 20'000), {-2.7, 0.7, 1.3, 4.0, 11.0}), 0.8);
  EXPECT_LT(largest_error_of_powers(random_bits<double>(20'000), {-3.0, 1.25, 9.0}), 0.8);
}

TEST(Power, GivesTheRoundedValues) {
  struct Value {
    double base;
    double exponent;
    double result;
  };
  const Value values[] = {{0.1, 3.3, 0x1.06c4363887514p-11},
                          {1.7, -2.5, 0x1.0fc14c2ee3493p-2},
                          {1e-300, 0.9, 0x1.0e7c9eebc4401p-897},
                          {1.0000000001, 100000000000.0, 0x1.5829ef9ff2017p+14},
                          {3.0, 500.0, 0x1.655d2ce0563f7p+792},
                          {0.3, 600.0, 0x0.00000e212a1dap-1022},
                          {5e-324, -1.5, infinity},
                          {-1.5, 7.0, -0x1.116p+4},
                          {-0.2, -12.0, 0x1.d1a94a1fffffbp+27},
                          {1.39, 2150.0, 0x1.597d5457309c4p+1021}};
  for (const auto& [base, exponent, result] : values)
    EXPECT_EQ(apply<double>(to_the_power(exponent), {base})[0], result) << base << " to " << exponent;
}

template <class T>
void is_exact_for_small_integers() {
  const double limit = std::ldexp(1.0, std::numeric_limits<T>::digits);
  for (int exponent : {0, 1, 4, 5, 6, 7, 8, 9, 10, 13, 20, 31, 52})
    for (int base = -30; base <= 30; ++base) {
      double product = 1.0;
      for (int i = 0; i < exponent && std::fabs(product) <= limit; ++i) product *= base;
      if (std::fabs(product) > limit) continue;
      EXPECT_EQ(apply<T>(to_the_power(exponent), {T(base)})[0], T(product)) << base << " to " << exponent;
    }
  EXPECT_EQ(apply<T>(to_the_power(1.0 / 3.0), {T(0)})[0], T(0));
  EXPECT_EQ(apply<T>(to_the_power(1.5), {T(9)})[0], T(27));
  EXPECT_EQ(apply<T>(to_the_power(-4.0), {T(2)})[0], T(0.0625));
}
TEST(Power, IsExactForSmallIntegers) {
  is_exact_for_small_integers<float>();
  is_exact_for_small_integers<double>();
}

template <class T>
void gives_special_values_of_pow() {
  const T inf = std::numeric_limits<T>::infinity(), not_a_number = std::numeric_limits<T>::quiet_NaN();
  const T bases[] = {T(0), -T(0), T(1), T(-1), T(0.5), T(-0.5), T(3), T(-3), inf, -inf, not_a_number};
  struct Row {
    double exponent;
    std::vector<T> powers;
  };
  const T n = not_a_number;
  const Row rows[] = {
      {0.0, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}},
      {1.0, {0, -T(0), 1, -1, T(0.5), T(-0.5), 3, -3, inf, -inf, n}},
      {4.0, {0, 0, 1, 1, T(0.0625), T(0.0625), 81, 81, inf, inf, n}},
      {5.0, {0, -T(0), 1, -1, T(0.03125), T(-0.03125), 243, -243, inf, -inf, n}},
      {-3.0, {inf, -inf, 1, -1, 8, -8, T(1.0 / 27.0), T(-1.0 / 27.0), 0, -T(0), n}},
      {-4.0, {inf, inf, 1, 1, 16, 16, T(1.0 / 81.0), T(1.0 / 81.0), 0, 0, n}},
      {1.5, {0, 0, 1, n, T(0.35355339059327376220), n, T(5.1961524227066318806), n, inf, inf, n}},
      {-1.5, {inf, inf, 1, n, T(2.8284271247461900976), n, T(0.19245008972987525484), n, 0, 0, n}},
      {infinity, {0, 0, 1, 1, 0, 0, inf, inf, inf, inf, n}},
      {-infinity, {inf, inf, 1, 1, inf, inf, 0, 0, 0, 0, n}},
      {nan, {n, n, 1, n, n, n, n, n, n, n, n}},
      {16777213.0, {0, -T(0), 1, -1, 0, -T(0), inf, -inf, inf, -inf, n}},
      {-16777213.0, {inf, -inf, 1, -1, inf, -inf, 0, -T(0), 0, -T(0), n}},
      {1e37, {0, 0, 1, 1, 0, 0, inf, inf, inf, inf, n}},
  };
  for (const Row& row : rows) {
    const std::vector<T> out = apply<T>(to_the_power(row.exponent), {std::begin(bases), std::end(bases)});
    for (std::size_t i = 0; i < out.size(); ++i) {
      EXPECT_LT(error_in_units(out[i], row.powers[i]), 0.8)
          << bases[i] << " to " << row.exponent << " gives " << out[i];
      if (std::isnan(out[i])) continue;
      EXPECT_EQ(std::signbit(out[i]), std::signbit(row.powers[i])) << bases[i] << " to " << row.exponent;
    }
  }
}
// Exponents so small that the largest finite number would have a finite power.
template <class T>
void keeps_zero_and_infinity() {
  const T inf = std::numeric_limits<T>::infinity();
  EXPECT_EQ(apply<T>(to_the_power(1e-5), {T(0), -T(0), inf, -inf}), (std::vector<T>{0, 0, inf, inf}));
  EXPECT_EQ(apply<T>(to_the_power(-1e-5), {T(0), -T(0), inf, -inf}), (std::vector<T>{inf, inf, 0, 0}));
}
TEST(Power, KeepsZeroAndInfinity) {
  keeps_zero_and_infinity<float>();
  keeps_zero_and_infinity<double>();
}
TEST(Power, GivesSpecialValues) {
  gives_special_values_of_pow<float>();
  gives_special_values_of_pow<double>();
  // Odd, even and fractional exponents that only double holds.
  EXPECT_EQ(apply<double>(to_the_power(9007199254740991.0), {-1.0})[0], -1.0);
  EXPECT_EQ(apply<double>(to_the_power(9007199254740992.0), {-1.0})[0], 1.0);
  EXPECT_TRUE(std::isnan(apply<double>(to_the_power(4503599627370495.5), {-1.0})[0]));
  EXPECT_EQ(apply<float>(to_the_power(16777217.0), {-1.0f})[0], 1.0f);  // the exponent is rounded to float
}

TEST(Power, RoundsTheExponentToTheTypeOfTheTensor) {
  const float exponent = 1.1f;
  EXPECT_EQ(apply<float>(to_the_power(1.1), {1e30f})[0],
            static_cast<float>(std::pow(static_cast<long double>(1e30f), static_cast<long double>(exponent))));
}

template <class T>
void gives_the_same_bits_alone() {
  for (const Kernel& kernel : {Kernel(kernels::log), to_the_power(1.7), to_the_power(-0.3), to_the_power(5.0)}) {
    expect_same_bits_alone(kernel, mixed_values<T>(301));
    expect_same_bits_alone(kernel, random_bits<T>(301));
  }
}
TEST(Power, AndLogGiveTheSameBitsAloneAndInAVector) {
  gives_the_same_bits_alone<float>();
  gives_the_same_bits_alone<double>();
}

}  // namespace
}  // namespace lockstep::kernels
