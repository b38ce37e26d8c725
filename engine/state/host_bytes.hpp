// The bytes of tensors on the host, without a copy where they are contiguous on the cpu.
#pragma once

#include <cstddef>
#include <functional>

#include "engine/tensor/tensor.hpp"

namespace lockstep::state {

// Calls f(bytes, size) with the elements of a plain tensor in row-major order, after the launches of the current stream
// of its device. The bytes are valid during the call. f is called once, also for a tensor without elements.
void with_host_bytes(const Tensor& tensor, const std::function<void(const std::byte*, std::size_t)>& f);

// Calls f(bytes) with the memory of a plain contiguous tensor, for writing.
void with_writable_bytes(const Tensor& tensor, const std::function<void(std::byte*)>& f);

// Writes all elements of a plain tensor of any strides; `bytes` are in row-major order. Waits for its stream.
void write_row_major(const Tensor& tensor, const std::byte* bytes);

// The elements [at, at + sizes) of a plain tensor, a view.
Tensor view_of_box(const Tensor& tensor, const Dims& at, const Dims& sizes);

}  // namespace lockstep::state
