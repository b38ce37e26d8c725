// How one tensor lies on a mesh of ranks, as a pure value: a placement an axis, chunk arithmetic, the local sizes and
// offsets of any rank. No communication.
//
// A dim is cut by ceiling division: size 5 over 4 is 2, 2, 1, 0. When two axes shard one dim, the later axis of the
// mesh cuts what the earlier one left, unless the earlier one is a STRIDED shard: then the later axis cut first (as
// tensor parallelism below data parallelism does), and the earlier one cuts each of its pieces.
//
//   ShardedLayout layout{mesh, {replicate(), shard(0)}, {9, 4}};
//   layout::local_sizes(layout, rank);
//
// After the semantics of PyTorch's DTensor (torch.distributed.tensor, placement types).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/core/shape.hpp"
#include "engine/layout/mesh_shape.hpp"

namespace lockstep::layout {

enum class PartialOp : std::uint8_t { sum, mean, max, min, product };

struct Placement {
  enum class Kind : std::uint8_t { replicate, shard, strided_shard, partial };
  Kind kind = Kind::replicate;
  int dim = 0;                    // of a shard
  int split_factor = 1;           // of a strided shard: how many pieces later axes cut the dim into first
  PartialOp op = PartialOp::sum;  // of a partial value
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

// What a sharded tensor carries: TensorImpl::layout. Sizes are the GLOBAL ones.
struct ShardedLayout {
  MeshShape mesh;
  std::vector<Placement> placements;  // one an axis of the mesh
  Dims sizes;
  std::string text() const;  // "(9, 4) as (Replicate, Shard(0)) on dp 2 x tp 2"
  friend bool operator==(const ShardedLayout&, const ShardedLayout&) = default;
};
// Throws Error when placements do not fit the mesh or the sizes.
void check(const ShardedLayout& layout);

// Part `index` of `size` elements cut into `parts` by ceiling division.
struct Chunk {
  std::int64_t begin = 0;  // `size` for an empty part past the end
  std::int64_t length = 0;
};
Chunk chunk(std::int64_t size, int parts, int index);
std::int64_t chunk_length(std::int64_t size, int parts);  // of the largest part

Dims local_sizes(const ShardedLayout& layout, int rank);
// Where the local part of `rank` begins in the global tensor; of a strided shard, where its first piece begins.
Dims local_offsets(const ShardedLayout& layout, int rank);

}  // namespace lockstep::layout
