// Helpers of the comparison's tests: operands from lists of values.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "harness/verdict/compare.hpp"

namespace lockstep::verdict::testing_support {

inline constexpr float nan32 = std::numeric_limits<float>::quiet_NaN();
inline constexpr float inf32 = std::numeric_limits<float>::infinity();
inline constexpr double inf64 = std::numeric_limits<double>::infinity();

template <class T>
Operand operand(const std::vector<T>& values, Dims sizes) {
  return Operand{dtype_of<T>, sizes, values.data(), nullptr, 0};
}

template <class T>
Operand operand(const std::vector<T>& values) {
  return operand(values, Dims{static_cast<std::int64_t>(values.size())});
}

template <class T>
Comparison compare_lists(const std::vector<T>& a, const std::vector<T>& b, CompareOptions options) {
  return compare(operand(a), operand(b), options);
}

template <class T>
Comparison compare_by_type(const std::vector<T>& a, const std::vector<T>& b) {
  return compare_lists(a, b, CompareOptions{tolerance_of(dtype_of<T>), 0, 0, false});
}

inline CompareOptions exactly() { return CompareOptions{}; }
inline CompareOptions same_bits() { return CompareOptions{tolerance_of(DType::float32), 0, 0, true}; }

}  // namespace lockstep::verdict::testing_support
