// The index of a checkpoint: which tensors it holds, where their chunks lie, their hashes, and its plain values. It is
// two files, index.json and hashes.bin, which README.md describes. The chunks themselves are tensors of safetensors
// files, one file per rank.
//
//   Index index = index_from_files({text, hashes}, "run/step_100");
//   for (const auto& [key, tensor] : index.tensors) ... tensor.chunks ...
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/types.hpp"
#include "engine/state/box.hpp"
#include "engine/state/tiles.hpp"

namespace lockstep::state {

inline constexpr int format_version = 2;  // version 1 has its hashes in index.json, and no tiles; it is read
inline constexpr const char* index_name = "index.json";
inline constexpr const char* hashes_name = "hashes.bin";
inline constexpr int max_index_depth = 100;                  // levels of index.json
inline constexpr int max_value_depth = max_index_depth - 3;  // a plain value is within `values` of `content`

struct SavedChunk {
  std::string file;          // in the folder of the checkpoint
  std::uint64_t offset = 0;  // of the first byte in the file
  Box box;
  std::uint64_t hash_block = 0;            // bytes per hash
  std::vector<std::uint64_t> hashes;       // of consecutive blocks; the last block may be shorter
  Dims tile_parts;                         // the grid of the chunk (tiles.hpp); empty if it has none
  std::vector<std::uint64_t> tile_hashes;  // in row-major order of the grid
};
struct SavedTensor {
  DType dtype = DType::float32;
  Dims sizes;  // of the full tensor
  std::vector<SavedChunk> chunks;
  std::uint64_t chunk_bytes(const SavedChunk& chunk) const {
    return bounded_bytes(chunk.box.num_elements(), size_of(dtype));
  }
  TileGrid grid(const SavedChunk& chunk) const { return {chunk.box.sizes, size_of(dtype), chunk.tile_parts}; }
};
struct Index {
  int version = format_version;                // of the format
  std::map<std::string, std::uint64_t> files;  // their bytes, by name
  std::map<std::string, SavedTensor> tensors;  // by key
  std::map<std::string, std::string> values;   // JSON texts by key
};

// The levels of maps and lists of a JSON text.
int depth_of(std::string_view json);

// The contents of the two files; `hashes` is empty in version 1.
struct IndexFiles {
  std::string text, hashes;
};
// `values` must be valid JSON.
IndexFiles index_files(const Index& index);
// Reads and checks the contents: syntax, version, the hashes of both files, types and ranges of all entries, file names
// without folders, chunks within their files, and that the chunks of each tensor tile it. `folder` is the name of the
// checkpoint for messages. Throws Error naming the file and the key.
Index index_from_files(const IndexFiles& files, const std::string& folder);

}  // namespace lockstep::state
