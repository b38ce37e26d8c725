// The index of a checkpoint: which tensors it holds, where their chunks lie, and its plain values. README.md describes
// the file index.json. The chunks themselves are tensors of safetensors files, one file per rank.
//
//   Index index = index_from_text(text, "run/step_100/index.json");
//   for (const auto& [key, tensor] : index.tensors) ... tensor.chunks ...
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/types.hpp"
#include "engine/state/box.hpp"

namespace lockstep::state {

inline constexpr int format_version = 1;
inline constexpr const char* index_name = "index.json";

struct SavedChunk {
  std::string file;          // in the folder of the checkpoint
  std::uint64_t offset = 0;  // of the first byte in the file
  Box box;
  std::uint64_t hash_block = 0;       // bytes per hash
  std::vector<std::uint64_t> hashes;  // of consecutive blocks; the last block may be shorter
};
struct SavedTensor {
  DType dtype = DType::float32;
  Dims sizes;  // of the full tensor
  std::vector<SavedChunk> chunks;
  std::uint64_t chunk_bytes(const SavedChunk& chunk) const {
    return bounded_bytes(chunk.box.num_elements(), size_of(dtype));
  }
};
struct Index {
  std::map<std::string, std::uint64_t> files;  // their bytes, by name
  std::map<std::string, SavedTensor> tensors;  // by key
  std::map<std::string, std::string> values;   // JSON texts by key
};

// The text of index.json. `values` must be valid JSON.
std::string index_text(const Index& index);
// Reads and checks a text: syntax, version, the hash of the index, types and ranges of all entries, file names without
// folders, chunks within their files, and that the chunks of each tensor tile it. `file` is the name for messages.
// Throws Error naming the file and the key.
Index index_from_text(std::string_view text, const std::string& file);

}  // namespace lockstep::state
