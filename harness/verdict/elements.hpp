// One pass over the elements of two operands: how many are off, which is the first and which the worst. Internal to
// harness/verdict.
//
//   const Elements<float> actual(data), expected(other_data);
//   const Findings findings = examine(actual, expected, n, {rtol, absolute}, false);
//   if (findings.num_off > 0) report(findings.first, findings.worst);
//
// An element is off when it is beyond the tolerance, or, where the same bits are required, when its bits differ.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "engine/core/checked.hpp"
#include "engine/core/types.hpp"

namespace lockstep::verdict::elementwise {

inline constexpr double infinity = std::numeric_limits<double>::infinity();
inline constexpr std::int64_t block = 2048;  // elements per block of the pass; both sides of a block fit in the cache
inline constexpr int lanes = 8;

// The type in which an element is read. A bool is read as a byte, because reading a byte other than 0 and 1 as a bool
// is undefined.
template <class T>
struct ElementOf {
  using Stored = T;
};
template <>
struct ElementOf<bool> {
  using Stored = std::uint8_t;
};

template <class T>
using Bits = std::conditional_t<
    sizeof(T) == 8, std::uint64_t,
    std::conditional_t<sizeof(T) == 4, std::uint32_t, std::conditional_t<sizeof(T) == 2, std::uint16_t, std::uint8_t>>>;

// The elements of one operand. Elements are copied out, so the data may have any alignment.
template <class T>
class Elements {
 public:
  explicit Elements(const void* data) : data_(static_cast<const char*>(data)) {}
  T operator[](std::int64_t i) const {
    T value;
    std::memcpy(&value, data_ + element_offset(i, static_cast<std::int64_t>(sizeof(T))), sizeof(T));
    return value;
  }
  Bits<T> bits(std::int64_t i) const {
    Bits<T> value;
    std::memcpy(&value, data_ + element_offset(i, static_cast<std::int64_t>(sizeof(T))), sizeof(T));
    return value;
  }

 private:
  const char* data_;
};

template <class T>
constexpr bool is_float = !std::is_integral_v<T>;

template <class T>
double as_double(T value) {
  if constexpr (is_float<T>) {
    return static_cast<double>(static_cast<ComputeType<T>>(value));
  } else {
    return static_cast<double>(value);
  }
}

template <class T>
std::uint64_t integer_distance(T a, T b) {
  const auto wide_a = static_cast<std::uint64_t>(static_cast<std::int64_t>(a));
  const auto wide_b = static_cast<std::uint64_t>(static_cast<std::int64_t>(b));
  return a > b ? wide_a - wide_b : wide_b - wide_a;
}

struct Allowed {
  double rtol;
  double absolute;  // atol plus of_largest * largest_expected
};

// Whether `a` is within the tolerance of the expected `b`. An infinite difference never is, for any tolerance.
template <class T>
bool within(T a, T b, const Allowed& allowed) {
  if constexpr (is_float<T>) {
    const double x = as_double(a);
    const double y = as_double(b);
    const double difference = std::fabs(x - y);
    return (x == y) | ((difference <= allowed.absolute + allowed.rtol * std::fabs(y)) & (difference < infinity));
  } else {
    if (a == b) return true;
    // The 64-bit mantissa of a long double holds every difference of two int64.
    const auto limit = static_cast<long double>(allowed.absolute) +
                       static_cast<long double>(allowed.rtol) * std::fabs(static_cast<long double>(b));
    return static_cast<long double>(integer_distance(a, b)) <= limit;
  }
}

template <class T>
double difference_of(T a, T b) {
  if constexpr (is_float<T>) {
    const double x = as_double(a);
    const double y = as_double(b);
    return x == y ? 0.0 : std::fabs(x - y);
  } else {
    return static_cast<double>(integer_distance(a, b));
  }
}

template <class T>
bool is_nan(T value) {
  if constexpr (std::is_same_v<T, Half>) {
    return (value.bits & 0x7fffu) > 0x7c00u;
  } else if constexpr (is_float<T>) {
    return std::isnan(static_cast<ComputeType<T>>(value));
  } else {
    return false;
  }
}

template <class T>
bool is_zero(T value) {
  if constexpr (is_float<T>) {
    return static_cast<ComputeType<T>>(value) == 0;
  } else {
    return value == 0;
  }
}

template <class T>
bool all_zero(const Elements<T>& elements, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    if (!is_zero(elements[i])) return false;
  }
  return true;
}

template <class T>
bool any_nan(const Elements<T>& elements, std::int64_t n) {
  if constexpr (is_float<T>) {
    for (std::int64_t start = 0; start < n; start += block) {
      const std::int64_t end = std::min(n, start + block);
      int found = 0;
      for (std::int64_t i = start; i < end; ++i) found |= is_nan(elements[i]) ? 1 : 0;
      if (found != 0) return true;
    }
  }
  return false;
}

// The result of one pass over both operands.
struct Findings {
  std::int64_t num_off = 0;
  std::int64_t num_nan = 0;     // elements off in which either side is not a number
  std::int64_t num_beyond = 0;  // elements off that are beyond the tolerance by value
  std::int64_t first = -1;      // flat index of the first element that is off
  std::int64_t worst = -1;      // flat index of the one with the largest difference
  double worst_difference = -1.0;
  double max_difference = 0.0;
};

// Counts one element that is off, and keeps it if it is the first or the worst.
template <class T>
void note(Findings& findings, std::int64_t i, T a, T b, const Allowed& allowed) {
  const bool nan = is_nan(a) || is_nan(b);
  const double difference = nan ? std::numeric_limits<double>::quiet_NaN() : difference_of(a, b);
  ++findings.num_off;
  if (nan) ++findings.num_nan;
  if (nan || !within(a, b, allowed)) ++findings.num_beyond;
  if (findings.first < 0) findings.first = i;
  const double badness = nan ? infinity : difference;
  if (badness > findings.worst_difference) {
    findings.worst = i;
    findings.worst_difference = badness;
  }
  if (nan) findings.max_difference = difference;
}

// Whether element i is off. With `bits` the bits must be the same, and not those of a not-a-number.
template <class T>
bool is_off(const Elements<T>& a, const Elements<T>& b, std::int64_t i, const Allowed& allowed, bool bits) {
  const T x = a[i];
  if (bits) return a.bits(i) != b.bits(i) || is_nan(x);
  return !within(x, b[i], allowed);
}

template <class T>
Findings examine(const Elements<T>& a, const Elements<T>& b, std::int64_t n, const Allowed& allowed, bool bits) {
  Findings findings;
  double largest[lanes] = {};
  for (std::int64_t start = 0; start < n; start += block) {
    const std::int64_t end = std::min(n, start + block);
    // The lanes are independent and free of branches, so the compiler can vectorize the inner loop.
    std::int64_t off[lanes] = {};
    std::int64_t i = start;
    for (; i + lanes <= end; i += lanes) {
      for (int lane = 0; lane < lanes; ++lane) {
        const double difference = difference_of(a[i + lane], b[i + lane]);
        largest[lane] = difference > largest[lane] ? difference : largest[lane];
        off[lane] += is_off(a, b, i + lane, allowed, bits) ? 1 : 0;
      }
    }
    std::int64_t num_off = 0;
    for (std::int64_t count : off) num_off += count;
    for (; i < end; ++i) {
      const double difference = difference_of(a[i], b[i]);
      largest[0] = difference > largest[0] ? difference : largest[0];
      num_off += is_off(a, b, i, allowed, bits) ? 1 : 0;
    }
    if (num_off == 0) continue;
    for (i = start; i < end; ++i) {
      if (is_off(a, b, i, allowed, bits)) note(findings, i, a[i], b[i], allowed);
    }
  }
  if (!std::isnan(findings.max_difference)) findings.max_difference = *std::max_element(largest, largest + lanes);
  return findings;
}

}  // namespace lockstep::verdict::elementwise
