// The error of an element-wise function in units in the last place, for the tests of this folder.
#pragma once

#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "engine/kernels/test_views.hpp"

namespace lockstep::kernels {

using Kernel = std::function<void(Execution, const View&, const View&)>;
template <class T>
using Word = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;

template <class T>
std::vector<T> apply(const Kernel& kernel, std::vector<T> values) {
  std::vector<T> out(values.size());
  kernel(Space::host, view_of(out), view_of(values));
  return out;
}

// Numbers from low to high in equal steps of their bit patterns, each with both signs.
template <class T>
std::vector<T> spread(T low, T high, int count) {
  std::vector<T> values;
  const Word<T> step = (std::bit_cast<Word<T>>(high) - std::bit_cast<Word<T>>(low)) / static_cast<Word<T>>(count);
  for (Word<T> bits = std::bit_cast<Word<T>>(low); bits < std::bit_cast<Word<T>>(high); bits += step) {
    values.push_back(std::bit_cast<T>(bits));
    values.push_back(-values.back());
  }
  return values;
}

// Random numbers between low and high.
template <class T>
std::vector<T> between(double low, double high, int count) {
  std::mt19937_64 random(5);
  std::uniform_real_distribution<double> draw(low, high);
  std::vector<T> values(static_cast<std::size_t>(count));
  for (T& value : values) value = static_cast<T>(draw(random));
  return values;
}

// Random bit patterns: numbers of every magnitude, and some NaN.
template <class T>
std::vector<T> random_bits(int count) {
  std::mt19937_64 random(6);
  std::vector<T> values(static_cast<std::size_t>(count));
  for (T& value : values) value = std::bit_cast<T>(static_cast<Word<T>>(random()));
  return values;
}

// In units in the last place of the exact value rounded. Special values must be equal, whatever the bits of a NaN.
template <class T>
double error_in_units(T actual, long double exact) {
  constexpr double wrong = std::numeric_limits<double>::infinity();
  const T rounded = static_cast<T>(exact);
  if (std::isnan(rounded)) return std::isnan(actual) ? 0.0 : wrong;
  if (std::isinf(rounded) || rounded == T(0))
    return actual == rounded && std::signbit(actual) == std::signbit(rounded) ? 0.0 : wrong;
  const T magnitude = std::fabs(rounded);
  const long double next = std::nextafter(magnitude, std::numeric_limits<T>::infinity());
  if (std::isnan(actual) || std::isinf(actual) || std::isinf(next)) return actual == rounded ? 0.0 : wrong;
  return static_cast<double>(std::fabs(static_cast<long double>(actual) - exact) / (next - magnitude));
}

template <class T>
double largest_error(const Kernel& kernel, const std::vector<T>& values,
                     const std::function<long double(long double)>& exact) {
  const std::vector<T> out = apply(kernel, values);
  double worst = 0.0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double error = error_in_units(out[i], exact(values[i]));
    if (error > worst) worst = error;
    EXPECT_FALSE(std::isinf(error)) << values[i] << " gives " << out[i];
  }
  return worst;
}

// An element has the same bits alone, in a vector and with strides.
template <class T>
void expect_same_bits_alone(const Kernel& kernel, std::vector<T> values) {
  const auto count = static_cast<std::int64_t>(values.size());
  std::vector<T> out = apply(kernel, values), strided(2 * values.size());
  kernel(Space::host, view_of(strided, {count}, {2}), view_of(values));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::vector<T> alone = apply(kernel, std::vector<T>{values[i]});
    ASSERT_EQ(std::memcmp(alone.data(), &out[i], sizeof(T)), 0) << values[i];
    ASSERT_EQ(std::memcmp(alone.data(), &strided[2 * i], sizeof(T)), 0) << values[i];
  }
}

}  // namespace lockstep::kernels
