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

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/tensor/tensor.hpp"

namespace lockstep::state {

using NamedTensors = std::vector<std::pair<std::string, Tensor>>;

// The tensors in the order of the header, on `device`. `file` is the name for messages.
NamedTensors read_safetensors(std::string_view bytes, const std::string& file, device::Device device);
// Writes plain tensors in the given order, without gaps. Throws Error for duplicate names and for `__metadata__`.
std::string write_safetensors(const NamedTensors& tensors);

// ---- files that are too large to be read or written at once ----
struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::float32;
  Dims sizes;
  std::uint64_t begin = 0, end = 0;  // bytes, counted from the end of the header
};
// The bytes before the data of a file whose first 8 bytes or more are `first_bytes`.
std::uint64_t safetensors_header_bytes(std::string_view first_bytes, std::uint64_t file_bytes, const std::string& file);
// The entries of a file of `file_bytes` bytes; `first_bytes` contains all of its header. Throws as read_safetensors.
std::vector<SafetensorsEntry> read_safetensors_header(std::string_view first_bytes, std::uint64_t file_bytes,
                                                      const std::string& file);
// The bytes before the data, a multiple of 8. The entries cover the data without gaps, in order. Throws Error for
// duplicate names and for `__metadata__`.
std::string safetensors_header(const std::vector<SafetensorsEntry>& entries);

std::string_view safetensors_type(DType dtype);  // "F32"
std::optional<DType> dtype_of_safetensors(std::string_view name);

}  // namespace lockstep::state
