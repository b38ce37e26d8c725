// Reading a checkpoint without ranks: its content, its integrity, its differences from another one, and its tensors as
// one unsharded file.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::state {

struct CheckpointFolder {
  CheckpointFolder(const std::string& of) : path(of), shown(of) {}
  CheckpointFolder(std::string of, std::string name) : path(std::move(of)), shown(std::move(name)) {}

  std::string path, shown;  // `shown` is its name in messages
};

// A table of tensors with type, shape, bytes and chunks, the plain values and the files. Throws Error for a folder that
// is no checkpoint.
std::string show_checkpoint(const CheckpointFolder& folder);

struct Verification {
  std::int64_t num_tensors = 0, num_chunks = 0;
  std::uint64_t bytes = 0;            // of chunks
  std::vector<std::string> problems;  // empty: the checkpoint is complete and undamaged
};
// Compares all bytes with their hashes, and the header of every file with the index. Throws Error if the index itself
// cannot be read.
Verification verify_checkpoint(const CheckpointFolder& folder);

// The differences of two checkpoints, a line each: keys of one only, types, shapes, the number of elements that differ
// in their bits with the first of them, plain values. Their shards may differ. Throws Error for damaged checkpoints.
std::vector<std::string> diff_checkpoints(const CheckpointFolder& a, const CheckpointFolder& b);

// Writes all tensors, unsharded, as one safetensors file. Holds one tensor in memory at a time. Throws Error if the
// file exists, and for a damaged checkpoint; then no file is left. `shown_file` is the name of the file in messages,
// and `before_write` gets its size in bytes.
void export_checkpoint(const CheckpointFolder& folder, const std::string& file, const std::string& shown_file,
                       const std::function<void(std::uint64_t bytes)>& before_write = {});

}  // namespace lockstep::state
