// Copies between full tensors and the flat buffers of all-gathers and reductions, on the current stream.
#pragma once

#include "engine/layout/flat_shards.hpp"
#include "engine/tensor/tensor.hpp"

namespace lockstep::parallel {

// `full`: the unsharded parameter `index` of the plan or its full gradient, of cut.sizes. `gathered`: the flat buffer
// of all ranks, 1-d and contiguous. copy_out() reads the parameter from the buffer; copy_in() writes a gradient into
// it. Both cast where the types differ and skip the padding.
void copy_out(const Tensor& full, const Tensor& gathered, const layout::ShardedParameter& cut,
              const layout::FlatShards& flat, std::size_t index);
void copy_in(const Tensor& gathered, const Tensor& full, const layout::ShardedParameter& cut,
             const layout::FlatShards& flat, std::size_t index);
// Zeroes the padding of parameter `index`, which copy_in() skips. Each rank has one shard.
void zero_padding(const Tensor& gathered, const layout::ShardedParameter& cut, const layout::FlatShards& flat,
                  std::size_t index);
// A contiguous view of `sizes` and `dtype` over a contiguous flat buffer of any type, from a byte offset that is a
// multiple of the element size.
Tensor typed_view(const Tensor& flat, const Dims& sizes, DType dtype, std::int64_t offset_bytes);

}  // namespace lockstep::parallel
