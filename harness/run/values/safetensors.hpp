// The .safetensors format: the length of the header in 8 bytes (little-endian), a JSON header
// {name: {dtype, shape, data_offsets}}, the data.
//
// The reader validates everything. It throws Error, naming the file and the tensor, for:
// - a header that is truncated, larger than 100 MB, not JSON, or nested too deeply;
// - a duplicate name or field, and a field that is missing or of the wrong type;
// - an unknown element type, more than 8 dims, and a shape whose bytes overflow 64 bits or differ from those of its
// data;
// - data outside the file, overlapping data, and bytes that belong to no tensor;
// - a bool that is neither 0 nor 1.
//
//   for (auto& [name, tensor] : read_safetensors(bytes, "weights.safetensors", device)) ...
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/tensor/tensor.hpp"

namespace lockstep::run {

using NamedTensors = std::vector<std::pair<std::string, Tensor>>;

// The tensors in the order of the header, on `device`. `file` is the name for messages.
NamedTensors read_safetensors(std::string_view bytes, const std::string& file, device::Device device);
// Writes plain tensors in the given order, without gaps. Throws Error for duplicate names and for `__metadata__`.
std::string write_safetensors(const NamedTensors& tensors);

}  // namespace lockstep::run
