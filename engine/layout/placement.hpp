// How one tensor is distributed over a mesh of ranks, as a pure value: one placement per mesh axis, the arithmetic of
// shards, the local sizes and offsets of any rank. No communication.
//
// A dim is sharded by ceiling division: size 5 over 4 ranks gives shards of 2, 2, 1, 0. When two axes shard one dim,
// the earlier axis of the mesh shards first and the later axis shards each of its shards. A STRIDED shard reverses
// this: the later axis shards first (as tensor parallelism within data parallelism does), and the strided axis shards
// each of its shards. Where that later axis replicates the dim (after an all-gather), each rank of the strided axis
// holds one range from every shard of the later axis.
//
//   ShardedLayout layout{mesh, {replicate(), shard(0)}, {9, 4}};
//   layout::local_sizes(layout, rank);         // {5, 4} on the first rank of the second axis, {4, 4} on the next
//   layout::global_ranges(layout, rank, 0);    // the rows that the rank holds
//
// The semantics follow PyTorch's DTensor (torch.distributed.tensor, placement types).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/shape.hpp"
#include "engine/layout/mesh_shape.hpp"

namespace lockstep::layout {

enum class PartialOp : std::uint8_t { sum, mean, max, min, product };

struct Placement {
  enum class Kind : std::uint8_t { replicate, shard, strided_shard, partial };
  Kind kind = Kind::replicate;
  int dim = 0;                    // shard and strided_shard
  int split_factor = 1;           // strided_shard: the number of shards into which the later axes split the dim first
  PartialOp op = PartialOp::sum;  // partial
  bool is_replicate() const { return kind == Kind::replicate; }
  bool is_shard() const { return kind == Kind::shard || kind == Kind::strided_shard; }
  bool is_shard(int of_dim) const { return is_shard() && dim == of_dim; }
  bool is_partial() const { return kind == Kind::partial; }
  friend bool operator==(const Placement&, const Placement&) = default;
};
Placement replicate();
Placement shard(int dim);
Placement strided_shard(int dim, int split_factor);
Placement partial(PartialOp op = PartialOp::sum);
std::string to_text(const Placement& placement);                // "Shard(0)"
std::string to_text(const std::vector<Placement>& placements);  // "(Replicate, Shard(0))"
Placement placement_from_text(std::string_view text);  // the inverse of to_text; throws Error for any other text

// The layout of a sharded tensor (Tensor::layout). `sizes` are the GLOBAL sizes.
struct ShardedLayout {
  MeshShape mesh;
  std::vector<Placement> placements;  // one per mesh axis
  Dims sizes;
  std::string text() const;  // "(9, 4) as (Replicate, Shard(0)) on dp 2 x tp 2"
  friend bool operator==(const ShardedLayout&, const ShardedLayout&) = default;
};
// Throws Error when the placements do not fit the mesh or the sizes, when the split factor of a strided shard is not a
// multiple of the number of shards that the later axes make of its dim, or when the layout has partial placements whose
// operations do not commute (anything but equal operations, or sums with means).
void check(const ShardedLayout& layout);
// A layout with the same mesh and sizes and these placements. Throws as check() does.
ShardedLayout with_placements(const ShardedLayout& layout, std::vector<Placement> placements);
bool has_partial(const ShardedLayout& layout);
bool has_shard(const ShardedLayout& layout);
// The layout of the gradient of a tensor: the same, but replicated where the tensor is partial, because the gradient of
// each summand is the gradient of the sum. Returns the same pointer when nothing is partial, null for null.
std::shared_ptr<const ShardedLayout> gradient_layout(const std::shared_ptr<const ShardedLayout>& layout);

// A range of consecutive elements of a dim.
struct Chunk {
  std::int64_t begin = 0;
  std::int64_t length = 0;
  friend bool operator==(const Chunk&, const Chunk&) = default;
};
// Chunk `index` of `size` elements split into `num_chunks` by ceiling division; {size, 0} for an empty chunk at the
// end.
Chunk chunk(std::int64_t size, int num_chunks, int index);
std::int64_t chunk_length(std::int64_t size, int num_chunks);  // of the largest chunk

// How one mesh axis shards a dim. The elements of the dim that earlier shardings leave to a rank are split into
// `num_splits` chunks, and the axis shards each of them. num_splits is 1 except for a strided shard whose later axes
// provide less than its split factor.
struct AxisSharding {
  int axis = 0;
  int dim = 0;
  int num_splits = 1;
  friend bool operator==(const AxisSharding&, const AxisSharding&) = default;
};
// All shardings of a layout in the order in which they apply: each shards the shards of those before it.
std::vector<AxisSharding> axis_shardings(const ShardedLayout& layout);
// The ranges of `length` elements that shard `index` of `num_shards` holds, in order, without empty ranges.
std::vector<Chunk> shard_ranges(std::int64_t length, int num_shards, int index, int num_splits = 1);
std::int64_t total_length(const std::vector<Chunk>& ranges);

// The sizes of the local shard of `rank`. Throws as check() does, and when the rank is not in the mesh.
Dims local_sizes(const ShardedLayout& layout, int rank);
// The ranges of a dim of the full tensor that `rank` holds, in their local order. No range when the shard is empty.
std::vector<Chunk> global_ranges(const ShardedLayout& layout, int rank, int dim);

}  // namespace lockstep::layout
