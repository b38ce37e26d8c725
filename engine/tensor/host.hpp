// Copies between host memory and tensors of any strides. Internal to engine/tensor.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/tensor/tensor.hpp"

namespace lockstep::host {

// Calls f(offset) for each element in row-major order; offset: in elements from the first one.
template <class F>
void for_each_offset(const Dims& sizes, const Dims& strides, F&& f) {
  const std::int64_t count = num_elements(sizes);
  Dims index(sizes.size(), 0);
  std::int64_t offset = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    f(offset);
    for (int dim = sizes.size() - 1; dim >= 0; --dim) {
      offset += strides[dim];
      if (++index[dim] < sizes[dim]) break;
      offset -= element_offset(index[dim], strides[dim]);
      index[dim] = 0;
    }
  }
}

// `from`: all elements in row-major order and the type of `to`. Waits for the current stream. Does not bump the
// version.
void write_elements(const Tensor& to, const void* from);

}  // namespace lockstep::host
