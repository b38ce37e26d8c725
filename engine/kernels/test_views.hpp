// Views over vectors, for the tests of this folder.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/kernels/view.hpp"

namespace lockstep::kernels {

template <class T>
View view_of(std::vector<T>& values, const Dims& sizes, const Dims& strides, std::int64_t offset = 0) {
  return {values.data() + offset, dtype_of<T>, sizes, strides};
}
template <class T>
View view_of(std::vector<T>& values, const Dims& sizes) {
  return view_of(values, sizes, contiguous_strides(sizes));
}
template <class T>
View view_of(std::vector<T>& values) {
  return view_of(values, Dims{static_cast<std::int64_t>(values.size())});
}

// Values of mixed magnitude and sign, whose sum depends on the order of summation.
template <class T>
std::vector<T> mixed_values(std::size_t count, std::uint32_t seed = 1) {
  std::vector<T> values(count);
  std::uint32_t word = seed * 2654435761u + 1u;
  for (T& value : values) {
    word = word * 1664525u + 1013904223u;
    const double unit = static_cast<double>(word >> 8) * 0x1p-23 - 1.0;
    value = static_cast<T>(static_cast<ComputeType<T>>(unit * (word % 7 == 0 ? 1000.0 : 1.0)));
  }
  return values;
}

}  // namespace lockstep::kernels
