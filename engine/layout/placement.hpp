// How one tensor lies on a mesh of ranks, as a pure value: a placement an axis, chunk arithmetic, the local sizes and
// offsets of any rank. No communication.
//
// A dim is cut by ceiling division: size 5 over 4 is 2, 2, 1, 0. When two axes shard one dim, the later axis of the
// mesh cuts what the earlier one left, unless the earlier one is a STRIDED shard: then the later axis cut first (as
// tensor parallelism below data parallelism does), and the earlier one cuts each of its pieces. Where that later axis
// holds the whole dim (it was gathered), each rank of the strided one holds its part of every piece: several ranges.
//
//   ShardedLayout layout{mesh, {replicate(), shard(0)}, {9, 4}};
//   layout::local_sizes(layout, rank);
//   layout::global_ranges(layout, rank, 0);    // which rows
//
// After the semantics of PyTorch's DTensor (torch.distributed.tensor, placement types).
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
  int dim = 0;                    // of a shard
  int split_factor = 1;           // of a strided shard: how many pieces the dim was cut into first, by later axes
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
Placement placement_from_text(std::string_view text);           // as to_text writes it; throws Error for any other

// What a sharded tensor carries: TensorImpl::layout. Sizes are the GLOBAL ones.
struct ShardedLayout {
  MeshShape mesh;
  std::vector<Placement> placements;  // one an axis of the mesh
  Dims sizes;
  std::string text() const;  // "(9, 4) as (Replicate, Shard(0)) on dp 2 x tp 2"
  friend bool operator==(const ShardedLayout&, const ShardedLayout&) = default;
};
// Throws Error when placements do not fit the mesh or the sizes, when the split factor of a strided shard is no
// multiple of what the later axes cut its dim into, or when partial values would be reduced by operations whose order
// matters.
void check(const ShardedLayout& layout);
// The same with these placements instead, checked.
ShardedLayout with_placements(const ShardedLayout& layout, std::vector<Placement> placements);
bool has_partial(const ShardedLayout& layout);
bool has_shard(const ShardedLayout& layout);
// How the gradient of such a tensor lies: alike, but whole where the tensor is partial, as every rank's part of a sum
// has the gradient of the sum. The same pointer when nothing is partial; null stays null.
std::shared_ptr<const ShardedLayout> gradient_layout(const std::shared_ptr<const ShardedLayout>& layout);

// Part `index` of `size` elements cut into `parts` by ceiling division.
struct Chunk {
  std::int64_t begin = 0;  // `size` for an empty part past the end
  std::int64_t length = 0;
  friend bool operator==(const Chunk&, const Chunk&) = default;
};
Chunk chunk(std::int64_t size, int parts, int index);
std::int64_t chunk_length(std::int64_t size, int parts);  // of the largest part

// One cut of a dim. What is left of the dim falls into `pieces` (1 but for a strided shard whose later axes do not
// cut), each of which the axis cuts.
struct Cut {
  int axis = 0;
  int dim = 0;
  int pieces = 1;
  friend bool operator==(const Cut&, const Cut&) = default;
};
// In the order in which they are made: what comes later cuts what comes earlier left.
std::vector<Cut> cuts(const ShardedLayout& layout);
// What part `index` of `parts` holds of `length` elements in `pieces`, in order, ranges of no element left out.
std::vector<Chunk> cut_ranges(std::int64_t length, int parts, int index, int pieces = 1);
std::int64_t total_length(const std::vector<Chunk>& ranges);

Dims local_sizes(const ShardedLayout& layout, int rank);
// Where the local part of `rank` begins in the global tensor; of a strided shard, where its first range begins; the
// size itself where it holds nothing.
Dims local_offsets(const ShardedLayout& layout, int rank);
// The ranges of the global tensor that `rank` holds of a dim, in the order in which they lie locally; none when empty.
std::vector<Chunk> global_ranges(const ShardedLayout& layout, int rank, int dim);

}  // namespace lockstep::layout
