// What each rank writes of a checkpoint, and what each rank reads of one, as pure functions without ranks or files.
//
// plan_writes: every element is written once. A box that several ranks hold (a replicated tensor, the replicas of a
// hybrid mesh, a plain tensor) is written by one of them, or cut into pieces if it is large. The choice evens out the
// bytes per rank. All ranks compute the same plan from the same descriptions.
//
// plan_reads: the pieces of the saved chunks that a rank's shard consists of, and the ranges of bytes that they are.
//
//   WritePlan plan = plan_writes(descriptions_of_all_ranks);
//   for (const Piece& piece : plan_reads(chunks, held_boxes(sizes, layout, rank))) ...
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/core/types.hpp"
#include "engine/state/box.hpp"

namespace lockstep::state {

// ---- writing ----
// A tensor as one rank holds it.
struct HeldTensor {
  std::string key;
  DType dtype = DType::float32;
  Dims sizes;                // global
  std::vector<Box> boxes;    // that the rank holds; none for an empty shard
  std::uint64_t digest = 0;  // of the held values, where several ranks may hold the same ones; else 0
  std::string same_as;       // the key of the tensor of the rank that is this very tensor (tied parameters); "" if none
};
// A chunk: a box that one rank writes, contiguous in its file.
struct PlannedChunk {
  std::string key;
  DType dtype = DType::float32;
  Box box;
  std::string name;         // of the chunk's tensor in the file: the key, and the box unless it is the full tensor
  std::uint64_t begin = 0;  // bytes, counted from the end of the file's header
  std::uint64_t bytes() const { return bounded_bytes(box.num_elements(), size_of(dtype)); }
};
// "fc1.weight" if the box is the full tensor, else "fc1.weight[0:4, 2:8]".
std::string name_of_chunk(const std::string& key, const Dims& sizes, const Box& box);
struct PlannedTensor {
  DType dtype = DType::float32;
  Dims sizes;
  std::string same_as;  // its chunks are those of this key
};
struct WritePlan {
  std::map<std::string, PlannedTensor> tensors;    // by key
  std::vector<std::vector<PlannedChunk>> by_rank;  // in the order of the rank's file; empty: the rank writes no file
};
// `held`: the tensors of each rank; the ranks may hold different keys, in any order. Boxes of at least `cut_bytes` that
// several ranks hold are cut along their first dim of more than one element. Throws Error, naming the key and the
// ranks, if ranks disagree on type, sizes or values, if ranks hold boxes that overlap without being equal, and if no
// rank holds some of the elements.
WritePlan plan_writes(const std::vector<std::vector<HeldTensor>>& held, std::int64_t cut_bytes = 1 << 20);

// ---- reading ----
struct Piece {
  std::size_t chunk = 0;  // index of the saved chunk
  Box box;                // in the full tensor, within the chunk
  Dims at;                // offsets in the local tensor
};
// The pieces that make up `wanted`. The chunks do not overlap. Throws Error for elements that no chunk has.
std::vector<Piece> plan_reads(const std::vector<Box>& chunks, const std::vector<HeldBox>& wanted);

struct ByteRange {
  std::uint64_t begin = 0, length = 0;  // counted from the begin of the chunk
  friend bool operator==(const ByteRange&, const ByteRange&) = default;
};
// The bytes that `box`, which lies within `chunk`, is made of in the file, in order; neighbours are merged.
std::vector<ByteRange> byte_ranges(const Box& chunk, const Box& box, std::size_t element);
// The ranges extended to whole blocks of `block` bytes, at most to `end`; sorted, overlaps and neighbours merged.
std::vector<ByteRange> whole_blocks(std::vector<ByteRange> ranges, std::uint64_t block, std::uint64_t end);

}  // namespace lockstep::state
