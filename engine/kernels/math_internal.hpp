// exp, erf and tanh in forms that vectorise (internal to engine/kernels; log and pow are in logarithm_internal.hpp).
//
// They use additions, products, divisions, explicit fma and selections only: no branch and no library call. An element
// therefore has the same bits alone and in a vector, at any offset, on any processor and on a GPU; a processor without
// fma is slow. They are always inlined, because a call in a loop prevents vectorisation. The errors are below 1 unit in
// the last place for exp, and for erf and tanh below 2 in float and 1.5 in double (math_test.cpp). Coefficients in
// hexadecimal are those of minimax polynomials, found by the exchange algorithm in 50 digits.
#pragma once

#include <cmath>
#include <cstdint>

#include <Kokkos_Macros.hpp>

namespace lockstep::kernels::math {

KOKKOS_FORCEINLINE_FUNCTION float fma(float a, float b, float c) { return std::fma(a, b, c); }
KOKKOS_FORCEINLINE_FUNCTION double fma(double a, double b, double c) { return std::fma(a, b, c); }

// yes ? a : b for computed values. It selects bits: for a conditional the compiler would move the computation into
// branches, and loops with such branches do not vectorise.
KOKKOS_FORCEINLINE_FUNCTION float select(bool yes, float a, float b) {
  const std::uint32_t mask = 0u - static_cast<std::uint32_t>(yes);
  return __builtin_bit_cast(
      float, (__builtin_bit_cast(std::uint32_t, a) & mask) | (__builtin_bit_cast(std::uint32_t, b) & ~mask));
}
KOKKOS_FORCEINLINE_FUNCTION double select(bool yes, double a, double b) {
  const std::uint64_t mask = 0u - static_cast<std::uint64_t>(yes);
  return __builtin_bit_cast(
      double, (__builtin_bit_cast(std::uint64_t, a) & mask) | (__builtin_bit_cast(std::uint64_t, b) & ~mask));
}

// The same with a condition in memory. The condition is read as a byte, because the compiler turns a bool back into a
// branch.
KOKKOS_FORCEINLINE_FUNCTION float choose(const bool* yes, float a, float b) {
  const std::uint32_t mask = 0u - static_cast<std::uint32_t>(*reinterpret_cast<const unsigned char*>(yes));
  return __builtin_bit_cast(
      float, (__builtin_bit_cast(std::uint32_t, a) & mask) | (__builtin_bit_cast(std::uint32_t, b) & ~mask));
}
KOKKOS_FORCEINLINE_FUNCTION double choose(const bool* yes, double a, double b) {
  const std::uint64_t mask =
      std::uint64_t{0} - static_cast<std::uint64_t>(*reinterpret_cast<const unsigned char*>(yes));
  return __builtin_bit_cast(
      double, (__builtin_bit_cast(std::uint64_t, a) & mask) | (__builtin_bit_cast(std::uint64_t, b) & ~mask));
}

// e^x = 2^n e^r with |r| <= ln(2) / 2. Adding and subtracting 1.5 * 2^23 rounds to the integer n, which remains in the
// last bits of the sum. 2^n is applied as two factors, so that subnormal results round once.
KOKKOS_FORCEINLINE_FUNCTION float exp(float x) {
  x = x > 89.0f ? 89.0f : x;
  x = x < -104.0f ? -104.0f : x;
  const float shifted = fma(x, 0x1.715476p+0f, 0x1.8p+23f);
  const float n = shifted - 0x1.8p+23f;
  const float r = fma(n, 0x1.bd0106p-13f, fma(n, -0x1.63p-1f, x));
  float q = 1.0f / 5040.0f;
  q = fma(q, r, 1.0f / 720.0f);
  q = fma(q, r, 1.0f / 120.0f);
  q = fma(q, r, 1.0f / 24.0f);
  q = fma(q, r, 1.0f / 6.0f);
  q = fma(q, r, 0.5f);
  const float p = 1.0f + fma(r * r, q, r);
  const std::int32_t exponent = static_cast<std::int32_t>(__builtin_bit_cast(std::uint32_t, shifted) - 0x4b400000u);
  const std::int32_t half = exponent >> 1;
  const float low = __builtin_bit_cast(float, static_cast<std::uint32_t>(half + 127) << 23);
  const float high = __builtin_bit_cast(float, static_cast<std::uint32_t>(exponent - half + 127) << 23);
  return p * low * high;
}

// The parts of the double exp. (e^r - 1 - r) / r^2 for |r| <= ln(2) / 2:
KOKKOS_FORCEINLINE_FUNCTION double exp_rest(double r) {
  double q = 1.0 / 6227020800.0;
  q = fma(q, r, 1.0 / 479001600.0);
  q = fma(q, r, 1.0 / 39916800.0);
  q = fma(q, r, 1.0 / 3628800.0);
  q = fma(q, r, 1.0 / 362880.0);
  q = fma(q, r, 1.0 / 40320.0);
  q = fma(q, r, 1.0 / 5040.0);
  q = fma(q, r, 1.0 / 720.0);
  q = fma(q, r, 1.0 / 120.0);
  q = fma(q, r, 1.0 / 24.0);
  q = fma(q, r, 1.0 / 6.0);
  return fma(q, r, 0.5);
}
// p 2^n, where `shifted` is n + 1.5 * 2^52. The shifts are of unsigned numbers: AVX2 has no others of 64 bits.
KOKKOS_FORCEINLINE_FUNCTION double times_power_of_two(double p, double shifted) {
  const std::uint64_t biased = __builtin_bit_cast(std::uint64_t, shifted) - (0x4338000000000000u - 2048u);
  const std::uint64_t half = biased >> 1;
  const double low = __builtin_bit_cast(double, (half - 1u) << 52);
  const double high = __builtin_bit_cast(double, (biased - half - 1u) << 52);
  return p * low * high;
}
KOKKOS_FORCEINLINE_FUNCTION double exp(double x) {
  x = x > 710.0 ? 710.0 : x;
  x = x < -746.0 ? -746.0 : x;
  const double shifted = fma(x, 0x1.71547652b82fep+0, 0x1.8p+52);
  const double n = shifted - 0x1.8p+52;
  const double r = fma(n, -0x1.a39ef35793c76p-33, fma(n, -0x1.62e42feep-1, x));
  return times_power_of_two(1.0 + fma(r * r, exp_rest(r), r), shifted);
}

// An odd polynomial below 1. From 1 on it is 1 - e^Q, where Q is a polynomial for log(erfc) around 2.5. Above 4 it
// is 1.
KOKKOS_FORCEINLINE_FUNCTION float erf(float x) {
  const float a = std::fabs(x);
  const float t = x * x;
  float small = -0x1.445f48p-17f;
  small = fma(small, t, 0x1.d88750p-14f);
  small = fma(small, t, -0x1.bccf66p-11f);
  small = fma(small, t, 0x1.562a60p-8f);
  small = fma(small, t, -0x1.b829c8p-6f);
  small = fma(small, t, 0x1.ce2f08p-4f);
  small = fma(small, t, -0x1.812746p-2f);
  small = fma(small, t, 0x1.06eba8p-3f);
  // `select`, because next to the bounds in `exp` a conditional becomes a branch on processors without masked vectors.
  const float u = select(a > 4.0f, 4.0f, a) - 2.5f;
  float log_rest = 0x1.b77830p-20f;
  log_rest = fma(log_rest, u, -0x1.bec71ap-17f);
  log_rest = fma(log_rest, u, 0x1.442efcp-14f);
  log_rest = fma(log_rest, u, -0x1.b887c8p-12f);
  log_rest = fma(log_rest, u, 0x1.1bcf88p-9f);
  log_rest = fma(log_rest, u, -0x1.63d00cp-7f);
  log_rest = fma(log_rest, u, -0x1.e3460ap-1f);
  log_rest = fma(log_rest, u, -0x1.569252p+2f);
  log_rest = fma(log_rest, u, -0x1.f3a2dcp+2f);
  const float large = std::copysign(1.0f - exp(log_rest), x);
  return select(a < 1.0f, fma(x, small, x), select(x == x, large, x));
}
// The same, with Q = S - x^2, where S is a polynomial for log(erfc) + x^2 around 2. Its highest coefficient is
// negative: above 5.95, where 1 - e^Q is 1, Q falls to minus infinity.
KOKKOS_FORCEINLINE_FUNCTION double erf(double x) {
  const double a = std::fabs(x);
  const double t = x * x;
  double small = -0x1.abae353b8c9f6p-31;
  small = fma(small, t, 0x1.d71b21cf3dcd1p-27);
  small = fma(small, t, -0x1.5c072df7c0e9ep-23);
  small = fma(small, t, 0x1.b97fd5d5cea58p-20);
  small = fma(small, t, -0x1.f4ca4dbca9a02p-17);
  small = fma(small, t, 0x1.f9a2bab00ed8ep-14);
  small = fma(small, t, -0x1.c02db03e3cd72p-11);
  small = fma(small, t, 0x1.565bccf92eaadp-8);
  small = fma(small, t, -0x1.b82ce311fab6fp-6);
  small = fma(small, t, 0x1.ce2f21a040d21p-4);
  small = fma(small, t, -0x1.812746b0379bdp-2);
  small = fma(small, t, 0x1.06eba8214db68p-3);
  const double u = a - 2.0;
  double rest = -0x1.56551545f9962p-38;
  rest = fma(rest, u, 0x1.421c5e22de211p-35);
  rest = fma(rest, u, -0x1.3a9a4faf8f419p-34);
  rest = fma(rest, u, -0x1.1a6fbc117b84fp-32);
  rest = fma(rest, u, 0x1.66a55117ef2c6p-29);
  rest = fma(rest, u, -0x1.e0b14546d0f58p-27);
  rest = fma(rest, u, 0x1.ef9bc24449488p-25);
  rest = fma(rest, u, -0x1.73e225a9bd90cp-23);
  rest = fma(rest, u, 0x1.b580161726eb0p-23);
  rest = fma(rest, u, 0x1.0604a11dca350p-19);
  rest = fma(rest, u, -0x1.5b659d1256855p-16);
  rest = fma(rest, u, 0x1.1bc3a4d271a15p-13);
  rest = fma(rest, u, -0x1.7ffcfb02326d2p-11);
  rest = fma(rest, u, 0x1.d406b378bede2p-9);
  rest = fma(rest, u, -0x1.0dc3b5fb310f2p-6);
  rest = fma(rest, u, 0x1.3851098b6b4dep-4);
  rest = fma(rest, u, -0x1.ac3258a8dc2a7p-2);
  rest = fma(rest, u, -0x1.5d6cca6c7d450p+0);
  const double large = std::copysign(1.0 - exp(fma(-a, a, rest)), x);
  return select(a < 1.0, fma(x, small, x), select(x == x, large, x));
}

// An odd polynomial below 0.625, otherwise 1 - 2 / (e^2x + 1).
KOKKOS_FORCEINLINE_FUNCTION float tanh(float x) {
  const float a = std::fabs(x);
  const float t = x * x;
  float small = 0x1.2977d8p-9f;
  small = fma(small, t, -0x1.10bbf4p-7f);
  small = fma(small, t, 0x1.648e8ep-6f);
  small = fma(small, t, -0x1.ba0718p-5f);
  small = fma(small, t, 0x1.1110e4p-3f);
  small = fma(small, t, -0x1.555556p-2f);
  const float large = 1.0f - 2.0f / (exp(2.0f * a) + 1.0f);
  return std::copysign(select(a < 0.625f, fma(a * t, small, a), large), x);
}
KOKKOS_FORCEINLINE_FUNCTION double tanh(double x) {
  const double a = std::fabs(x);
  const double t = x * x;
  double small = -0x1.0da727ec205e1p-16;
  small = fma(small, t, 0x1.439121bc56b0ep-14);
  small = fma(small, t, -0x1.df557a0c72495p-13);
  small = fma(small, t, 0x1.336612f77926ep-11);
  small = fma(small, t, -0x1.7d68a334317dep-10);
  small = fma(small, t, 0x1.d6cf280f63f2ap-9);
  small = fma(small, t, -0x1.226e162bfe02dp-7);
  small = fma(small, t, 0x1.664f477adb191p-6);
  small = fma(small, t, -0x1.ba1ba1b5064d4p-5);
  small = fma(small, t, 0x1.111111110accep-3);
  small = fma(small, t, -0x1.55555555554ffp-2);
  const double large = 1.0 - 2.0 / (exp(2.0 * a) + 1.0);
  return std::copysign(select(a < 0.625, fma(a * t, small, a), large), x);
}

template <class T>
KOKKOS_FORCEINLINE_FUNCTION T sigmoid(T x) {
  return T(1) / (T(1) + exp(-x));
}

}  // namespace lockstep::kernels::math
