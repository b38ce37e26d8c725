// The .safetensors format: 8 bytes of length (little-endian), a JSON header {name: {dtype, shape, data_offsets}}, the
// data.
//
// Nothing of a file is believed. A reader throws Error, which names the file and the tensor, for: a header that is cut,
// larger than 100 MB, no JSON, or nested too deeply; a name or field given twice, a field that is missing or of the
// wrong type; an unknown element type; more than 8 dims; a shape whose bytes do not fit in 64 bits or differ from those
// of its data; data outside the file; data of two tensors that overlap, and bytes of no tensor; a bool that is neither
// 0 nor 1.
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

// In the order of the header. `file` is the name for messages.
NamedTensors read_safetensors(std::string_view bytes, const std::string& file, device::Device device);
// Plain tensors, in the order given, without holes.
std::string write_safetensors(const NamedTensors& tensors);

}  // namespace lockstep::run
