// Copies between whole parameters and the flat buffers of gathers and reductions, on the current stream.
#pragma once

#include "engine/layout/flat_shards.hpp"
#include "engine/tensor/tensor.hpp"

namespace lockstep::parallel {

// Parameter `index` of the plan out of a gathered buffer, or its gradient into one, casting where the types differ.
void copy_out(const Tensor& full, const Tensor& gathered, const layout::CutParameter& cut,
              const layout::FlatShards& flat, std::size_t index);
void copy_in(const Tensor& gathered, const Tensor& full, const layout::CutParameter& cut,
             const layout::FlatShards& flat, std::size_t index);
// Elements of a type in a contiguous flat buffer of that or another one.
Tensor typed_view(const Tensor& flat, const Dims& sizes, DType dtype, std::int64_t offset_bytes);
// Zeroes what copy_in() leaves out.
void zero_padding(const Tensor& gathered, const layout::CutParameter& cut, const layout::FlatShards& flat,
                  std::size_t index);

}  // namespace lockstep::parallel
