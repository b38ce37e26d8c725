#include "engine/layout/placement.hpp"

#include <algorithm>

#include "engine/core/error.hpp"

namespace lockstep::layout {

Placement replicate() { return {}; }
Placement shard(int dim) { return {Placement::Kind::shard, dim, 1, PartialOp::sum}; }
Placement strided_shard(int dim, int split_factor) {
  return {Placement::Kind::strided_shard, dim, split_factor, PartialOp::sum};
}
Placement partial(PartialOp op) { return {Placement::Kind::partial, 0, 1, op}; }

std::string to_text(const Placement& placement) {
  static constexpr const char* ops[] = {"sum", "mean", "max", "min", "product"};
  switch (placement.kind) {
    case Placement::Kind::replicate:
      return "Replicate";
    case Placement::Kind::shard:
      return str("Shard(", placement.dim, ")");
    case Placement::Kind::strided_shard:
      return str("StridedShard(", placement.dim, ", ", placement.split_factor, ")");
    case Placement::Kind::partial:
      return str("Partial(", ops[static_cast<int>(placement.op)], ")");
  }
  return "";
}

std::string to_text(const std::vector<Placement>& placements) {
  std::string all;
  for (const Placement& placement : placements) all += str(all.empty() ? "" : ", ", to_text(placement));
  return str("(", all, ")");
}

std::string ShardedLayout::text() const {
  return str(lockstep::to_text(sizes), " as ", to_text(placements), " on ", mesh.text());
}

void check(const ShardedLayout& layout) {
  if (static_cast<int>(layout.placements.size()) != layout.mesh.num_axes())
    throw Error(str("placements ", to_text(layout.placements), " on a mesh ", layout.mesh.text()),
                "give one placement an axis");
  for (const Placement& placement : layout.placements)
    if (placement.is_shard() && (placement.dim < 0 || placement.dim >= layout.sizes.size()))
      throw Error(str(to_text(placement), " of a tensor of sizes ", lockstep::to_text(layout.sizes)),
                  "shard a dim that the tensor has");
}

std::int64_t chunk_length(std::int64_t size, int parts) { return (size + parts - 1) / parts; }

Chunk chunk(std::int64_t size, int parts, int index) {
  const std::int64_t length = chunk_length(size, parts);
  const std::int64_t begin = std::min(size, length * index);
  return {begin, std::min(size, begin + length) - begin};
}

namespace {

// The axes in the order in which they cut: those with a strided shard after the later axes of the same dim.
std::vector<int> cutting_order(const ShardedLayout& layout) {
  std::vector<int> order, strided;
  for (int axis = 0; axis < layout.mesh.num_axes(); ++axis) {
    const bool late = layout.placements[static_cast<std::size_t>(axis)].kind == Placement::Kind::strided_shard;
    (late ? strided : order).push_back(axis);
  }
  order.insert(order.end(), strided.rbegin(), strided.rend());
  return order;
}

struct Part {
  Dims sizes, offsets;
};

Part part_of(const ShardedLayout& layout, int rank) {
  check(layout);
  const std::vector<int> coordinates = layout.mesh.coordinates_of(rank);
  Part part{layout.sizes, layout.sizes};
  for (std::int64_t& offset : part.offsets) offset = 0;
  for (const int axis : cutting_order(layout)) {
    const Placement& placement = layout.placements[static_cast<std::size_t>(axis)];
    if (!placement.is_shard()) continue;
    const Chunk cut =
        chunk(part.sizes[placement.dim], layout.mesh.size(axis), coordinates[static_cast<std::size_t>(axis)]);
    part.offsets[placement.dim] += cut.begin;
    part.sizes[placement.dim] = cut.length;
  }
  return part;
}

}  // namespace

Dims local_sizes(const ShardedLayout& layout, int rank) { return part_of(layout, rank).sizes; }
Dims local_offsets(const ShardedLayout& layout, int rank) { return part_of(layout, rank).offsets; }

}  // namespace lockstep::layout
