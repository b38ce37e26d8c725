// Reading a checkpoint without ranks: its content, its integrity, its differences from another one, and its tensors as
// one unsharded file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::state {

// A table of tensors with type, shape, bytes and chunks, the plain values and the files. Throws Error for a folder that
// is no checkpoint.
std::string show_checkpoint(const std::string& folder);

struct Verification {
  std::int64_t num_tensors = 0, num_chunks = 0;
  std::uint64_t bytes = 0;            // of chunks
  std::vector<std::string> problems;  // empty: the checkpoint is complete and undamaged
};
// Compares all bytes with their hashes, and the header of every file with the index. Throws Error if the index itself
// cannot be read.
Verification verify_checkpoint(const std::string& folder);

// The differences of two checkpoints, a line each: keys of one only, types, shapes, the number of elements that differ
// in their bits with the first of them, plain values. Their shards may differ. Throws Error for damaged checkpoints.
std::vector<std::string> diff_checkpoints(const std::string& a, const std::string& b);

// Writes all tensors, unsharded, as one safetensors file. Holds one tensor in memory at a time. Throws Error if the
// file exists, and for a damaged checkpoint; then no file is left.
void export_checkpoint(const std::string& folder, const std::string& file);

}  // namespace lockstep::state
