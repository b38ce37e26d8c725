// The message of a comparison that does not hold: number and share of the elements that are off, the first and the
// worst with both values, and the tolerance. Internal to harness/verdict.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include <fmt/format.h>

#include "engine/core/shape.hpp"
#include "engine/core/text.hpp"
#include "harness/verdict/compare.hpp"
#include "harness/verdict/elements.hpp"

namespace lockstep::verdict::elementwise {

// Number of steps from one representable number to the other. Both zeros count as the same number.
template <class T>
std::uint64_t units_apart(T a, T b) {
  constexpr int width = sizeof(T) * 8;
  const auto place = [](T value) {
    Bits<T> bits;
    std::memcpy(&bits, &value, sizeof bits);
    const std::uint64_t magnitude = bits & (~std::uint64_t{0} >> (65 - width));
    const bool negative = (bits >> (width - 1)) != 0;
    return std::pair(negative, magnitude);
  };
  const auto [negative_a, magnitude_a] = place(a);
  const auto [negative_b, magnitude_b] = place(b);
  if (negative_a != negative_b) return magnitude_a + magnitude_b;
  return magnitude_a > magnitude_b ? magnitude_a - magnitude_b : magnitude_b - magnitude_a;
}

template <class T>
std::string value_text(T value) {
  if constexpr (std::is_same_v<T, std::uint8_t>) {
    return value != 0 ? "true" : "false";
  } else if constexpr (is_float<T>) {
    return is_nan(value) ? "nan" : str(static_cast<ComputeType<T>>(value));
  } else {
    return str(value);
  }
}

inline std::string index_text(std::int64_t flat, const Dims& sizes) {
  Dims index(sizes.size(), 0);
  for (int dim = sizes.size() - 1; dim >= 0; --dim) {
    index[dim] = flat % sizes[dim];
    flat /= sizes[dim];
  }
  return to_text(index);
}

// "actual 1.5, expected 1.25, difference 0.25 absolute, 0.2 relative, 2097152 units in the last place"
template <class T>
std::string pair_text(T a, T b, const CompareOptions& options) {
  std::string text = str(options.before_actual, value_text(a), ", ", options.before_expected, value_text(b));
  if constexpr (!std::is_same_v<T, std::uint8_t>) {
    if (is_nan(a) || is_nan(b)) return text;
    const double difference = difference_of(a, b);
    const double magnitude = std::fabs(as_double(b));
    const double relative = difference == 0 ? 0.0 : difference / magnitude;
    if constexpr (is_float<T>) {
      text += fmt::format(", difference {:.6g} absolute", difference);
    } else {
      text += str(", difference ", integer_distance(a, b), " absolute");
    }
    if (!std::isnan(relative)) text += fmt::format(", {:.4g} relative", relative);
    if constexpr (is_float<T>) {
      if (std::isfinite(as_double(a)) && std::isfinite(as_double(b))) {
        const std::uint64_t units = units_apart(a, b);
        text += str(", ", units, units == 1 ? " unit" : " units", " in the last place");
      }
    }
  }
  return text;
}

inline std::string tolerance_text(const CompareOptions& options, double allowance) {
  std::string text = str("rtol ", options.tolerance.rtol, ", atol ", options.tolerance.atol);
  if (options.of_largest != 0) {
    text += str(", of_largest ", options.of_largest, " of ", options.largest_expected, " = ", allowance);
  }
  return text;
}

template <class T>
std::string describe(const Findings& findings, const Elements<T>& a, const Elements<T>& b, const Dims& sizes,
                     std::int64_t n, const CompareOptions& options, double allowance) {
  const std::string tolerance = tolerance_text(options, allowance);
  const auto percent = 100.0 * static_cast<double>(findings.num_off) / static_cast<double>(n);
  std::string text = fmt::format("{} of {} element{} ({:.3g} %) ", findings.num_off, n, n == 1 ? "" : "s", percent);
  const bool one = findings.num_off == 1;
  const bool no_tolerance = options.tolerance.rtol == 0 && options.tolerance.atol == 0 && options.of_largest == 0;
  const bool exact = std::is_same_v<T, std::uint8_t> || (!is_float<T> && no_tolerance);
  if (options.bits) {
    text += one ? "has other bits" : "have other bits";
    if (findings.num_beyond == 0) {
      text += str(", all within ", tolerance);
    } else {
      text += str(", ", findings.num_beyond, findings.num_beyond == 1 ? " is" : " are", " beyond ", tolerance);
    }
  } else if (exact) {
    text += one ? "differs, compared exactly" : "differ, compared exactly";
  } else {
    text += str(one ? "is" : "are", " beyond ", tolerance);
  }
  if (findings.num_nan > 0) {
    text +=
        str("; ", findings.num_nan, findings.num_nan == 1 ? " has" : " have", " a not-a-number, which equals nothing");
  }
  const auto place = [&](std::int64_t i) { return sizes.empty() ? std::string{} : " at " + index_text(i, sizes); };
  const auto line = [&](std::string_view which, std::int64_t i) {
    return str("\n  ", which, place(i), ": ", pair_text(a[i], b[i], options));
  };
  if (findings.first == findings.worst) {
    text += line(n == 1 ? "value" : one ? "there" : "first and worst", findings.first);
  } else {
    text += line("first", findings.first);
    text += line("worst", findings.worst);
  }
  return text;
}

}  // namespace lockstep::verdict::elementwise
