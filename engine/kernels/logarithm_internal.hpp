// log and pow in forms that vectorise, by the rules of math_internal.hpp (internal to engine/kernels).
//
// With a = 2^k m and m between sqrt(1/2) and sqrt(2), log(a) = k ln(2) + 2 atanh(s) where s = (m - 1) / (m + 1), and
// 2 atanh(s) = 2 s + 2/3 s^3 + 2/5 s^5 + ... The float functions compute in double and round once. The double ones
// carry the logarithm as a sum of two doubles. The errors are below 0.51 units in the last place for log and the float
// pow, and below 0.8 for the double pow (logarithm_test.cpp). Special values are those of std::log and std::pow.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "engine/kernels/math_internal.hpp"

namespace lockstep::kernels::math {

// The exponent of pow, the same for all elements. It has no bool: on a bool in a loop the compiler branches.
struct Exponent {
  double value;
  double undefined_below;  // finite bases below have the power NaN: 0, or minus infinity for integers
  std::uint64_t sign;      // for odd exponents the bit of the sign, which the power takes from its base; otherwise 0
};
inline Exponent exponent_of(double value) {
  const bool is_integer = std::trunc(value) == value;
  const bool is_odd = std::fabs(std::fmod(value, 2.0)) == 1.0;
  return {value, is_integer ? -std::numeric_limits<double>::infinity() : 0.0, is_odd ? 0x8000000000000000u : 0u};
}

// a = mantissa * 2^exponent.
struct Split {
  double mantissa;
  double exponent;
};
// Of a normal positive number. The bits are those of sqrt(1/2), of 1, and of 2^52.
KOKKOS_FORCEINLINE_FUNCTION Split split(double a) {
  constexpr std::uint64_t lowest = 0x3fe6a09e667f3bcdu;
  const std::uint64_t bits = __builtin_bit_cast(std::uint64_t, a) + (0x3ff0000000000000u - lowest);
  return {__builtin_bit_cast(double, (bits & 0x000fffffffffffffu) + lowest),
          __builtin_bit_cast(double, (bits >> 52) | 0x4330000000000000u) - (0x1p52 + 1023.0)};
}

// log(a) of a normal positive number with a relative error below 2^-39.
KOKKOS_FORCEINLINE_FUNCTION double log_for_float(double a) {
  const Split of = split(a);
  const double s = (of.mantissa - 1.0) / (of.mantissa + 1.0);
  const double z = s * s;
  // In pairs, because a kernel that needs one logarithm per row waits for it.
  const double z2 = z * z;
  double q = fma(2.0 / 13.0, z, 2.0 / 11.0);
  q = fma(q, z2, fma(2.0 / 9.0, z, 2.0 / 7.0));
  q = fma(q, z2, fma(2.0 / 5.0, z, 2.0 / 3.0));
  return fma(of.exponent, 0x1.62e42fefa39efp-1, fma(s * z, q, s + s));
}

// e^x with a relative error below 2^-36. Outside +-110 it is beyond the range of float, but not of double.
KOKKOS_FORCEINLINE_FUNCTION double exp_for_float(double x) {
  x = x > 110.0 ? 110.0 : x;
  x = x < -110.0 ? -110.0 : x;
  const double shifted = fma(x, 0x1.71547652b82fep+0, 0x1.8p+52);
  const double r = fma(shifted - 0x1.8p+52, -0x1.62e42fefa39efp-1, x);
  double q = 1.0 / 362880.0;
  q = fma(q, r, 1.0 / 40320.0);
  q = fma(q, r, 1.0 / 5040.0);
  q = fma(q, r, 1.0 / 720.0);
  q = fma(q, r, 1.0 / 120.0);
  q = fma(q, r, 1.0 / 24.0);
  q = fma(q, r, 1.0 / 6.0);
  q = fma(q, r, 0.5);
  q = fma(q, r, 1.0);
  q = fma(q, r, 1.0);
  return q * __builtin_bit_cast(double, (__builtin_bit_cast(std::uint64_t, shifted) + 1023u) << 52);
}

// high + low, where high is the sum rounded.
struct TwoDoubles {
  double high;
  double low;
};
// log(a) of a positive number with a relative error below 2^-64. The rounding error of a value is in the value with the
// ending `_low`.
KOKKOS_FORCEINLINE_FUNCTION TwoDoubles log_in_two(double a) {
  const bool subnormal = a < 0x1p-1022;
  const Split of = split(select(subnormal, a * 0x1p54, a));
  const double m = of.mantissa, k = of.exponent - select(subnormal, 54.0, 0.0);
  const double above = m - 1.0, sum = m + 1.0, sum_low = m - (sum - 1.0), inverse = 1.0 / sum;
  const double s = above * inverse;
  const double s_low = fma(-s, sum_low, fma(-s, sum, above)) * inverse;
  const double z = s * s, z_low = fma(s + s, s_low, fma(s, s, -z)), rounded = z + z_low;
  double tail = 2.0 / 25.0;
  tail = fma(tail, rounded, 2.0 / 23.0);
  tail = fma(tail, rounded, 2.0 / 21.0);
  tail = fma(tail, rounded, 2.0 / 19.0);
  tail = fma(tail, rounded, 2.0 / 17.0);
  tail = fma(tail, rounded, 2.0 / 15.0);
  tail = fma(tail, rounded, 2.0 / 13.0);
  tail = fma(tail, rounded, 2.0 / 11.0);
  tail = fma(tail, rounded, 2.0 / 9.0);
  tail = fma(tail, rounded, 2.0 / 7.0);
  tail = fma(tail, rounded, 2.0 / 5.0) * rounded;
  constexpr double third = 2.0 / 3.0, third_low = 0x1.5555555555555p-55;
  const double q = third + tail, q_low = (third - q) + tail + third_low;
  const double w = z * q, w_low = fma(z, q_low, fma(z_low, q, fma(z, q, -w)));
  const double cube = s * w, cube_low = fma(s, w_low, fma(s_low, w, fma(s, w, -cube)));
  const double whole = k * 0x1.62e42feep-1;  // exact: this part of ln(2) has 32 bits
  const double first = whole + (s + s), first_low = (s + s) - (first - whole);
  const double second = first + cube, second_low = cube - (second - first);
  const double low = first_low + second_low + fma(k, 0x1.a39ef35793c76p-33, fma(2.0, s_low, cube_low));
  const double high = second + low;
  return {high, low - (high - second)};
}

KOKKOS_FORCEINLINE_FUNCTION float log(float x) {
  constexpr float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const float special = select(x < infinity, select(x == 0.0f, -infinity, nan), x);
  return select((x > 0.0f) & (x < infinity), static_cast<float>(log_for_float(static_cast<double>(x))), special);
}
KOKKOS_FORCEINLINE_FUNCTION double log(double x) {
  constexpr double infinity = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  const double special = select(x < infinity, select(x == 0.0, -infinity, nan), x);
  return select((x > 0.0) & (x < infinity), log_in_two(x).high, special);
}

// e^(high + low), where low is a rounding error of high.
KOKKOS_FORCEINLINE_FUNCTION double exp_of_sum(double high, double low) {
  low = select(std::fabs(high) <= 746.0, low, 0.0);
  high = high > 710.0 ? 710.0 : high;
  high = high < -746.0 ? -746.0 : high;
  const double shifted = fma(high, 0x1.71547652b82fep+0, 0x1.8p+52);
  const double n = shifted - 0x1.8p+52;
  const double rest = fma(n, -0x1.62e42feep-1, high), rest_low = fma(n, -0x1.a39ef35793c76p-33, low);
  const double r = rest + rest_low, r_low = rest_low - (r - rest);
  const double p = 1.0 + r, p_low = r - (p - 1.0);
  return times_power_of_two(p + (p_low + fma(r * r, exp_rest(r), r_low * p)), shifted);
}

// The sign of a power of x, given that of |x|.
KOKKOS_FORCEINLINE_FUNCTION float with_sign(float power, float x, Exponent y) {
  const auto sign = static_cast<std::uint32_t>(y.sign >> 32);
  return __builtin_bit_cast(float,
                            __builtin_bit_cast(std::uint32_t, power) ^ (__builtin_bit_cast(std::uint32_t, x) & sign));
}
KOKKOS_FORCEINLINE_FUNCTION double with_sign(double power, double x, Exponent y) {
  return __builtin_bit_cast(double,
                            __builtin_bit_cast(std::uint64_t, power) ^ (__builtin_bit_cast(std::uint64_t, x) & y.sign));
}
// The power of x, given that of |x|. Bases 1 and -1 are selected, because 0 times an infinite exponent is NaN.
template <class T>
KOKKOS_FORCEINLINE_FUNCTION T power_of(T x, Exponent y, T power) {
  constexpr T infinity = std::numeric_limits<T>::infinity(), nan = std::numeric_limits<T>::quiet_NaN();
  power = select(std::fabs(x) == T(1), T(1), power);
  power = with_sign(power, x, y);
  power = select((x < static_cast<T>(y.undefined_below)) & (x > -infinity), nan, power);
  power = select(x == x, power, x);
  return select((x == T(1)) | (y.value == 0.0), T(1), power);
}
KOKKOS_FORCEINLINE_FUNCTION float pow(float x, Exponent y) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const double a = static_cast<double>(std::fabs(x));
  const double logarithm = select(a > 0.0, select(a < infinity, log_for_float(a), a), -infinity);
  return power_of(x, y, static_cast<float>(exp_for_float(logarithm * y.value)));
}
KOKKOS_FORCEINLINE_FUNCTION double pow(double x, Exponent y) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const double a = std::fabs(x);
  const TwoDoubles logarithm = log_in_two(a);
  const double high = select(a > 0.0, select(a < infinity, logarithm.high, a), -infinity);
  const double product = high * y.value;
  return power_of(x, y, exp_of_sum(product, fma(logarithm.low, y.value, fma(high, y.value, -product))));
}

}  // namespace lockstep::kernels::math
