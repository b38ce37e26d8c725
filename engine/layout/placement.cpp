#include "engine/layout/placement.hpp"

#include <algorithm>
#include <charconv>
#include <utility>

#include "engine/core/checked.hpp"
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

Placement placement_from_text(std::string_view text) {
  const auto refuse = [text]() {
    return Error(str("`", text, "` is not a placement"), "use shard(dim), replicate() or partial(op)");
  };
  const auto integer = [&refuse](std::string_view digits) {
    int value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || end != digits.data() + digits.size()) throw refuse();
    return value;
  };
  if (text == "Replicate") return replicate();
  const std::size_t open = text.find('(');
  if (open == std::string_view::npos || text.back() != ')') throw refuse();
  const std::string_view kind = text.substr(0, open), inner = text.substr(open + 1, text.size() - open - 2);
  if (kind == "Shard") return shard(integer(inner));
  const std::size_t comma = inner.find(", ");
  if (kind == "StridedShard" && comma != std::string_view::npos)
    return strided_shard(integer(inner.substr(0, comma)), integer(inner.substr(comma + 2)));
  if (kind == "Partial")
    for (const PartialOp op : {PartialOp::sum, PartialOp::mean, PartialOp::max, PartialOp::min, PartialOp::product})
      if (text == to_text(partial(op))) return partial(op);
  throw refuse();
}

std::string to_text(const std::vector<Placement>& placements) {
  std::string all;
  for (const Placement& placement : placements) all += str(all.empty() ? "" : ", ", to_text(placement));
  return str("(", all, ")");
}

std::string ShardedLayout::text() const {
  return str(lockstep::to_text(sizes), " as ", to_text(placements), " on ", mesh.text());
}

namespace {

// Whether reductions with the two operations give the same result in either order.
bool commute(PartialOp a, PartialOp b) {
  const auto adds = [](PartialOp op) { return op == PartialOp::sum || op == PartialOp::mean; };
  return a == b || (adds(a) && adds(b));
}

// The number of shards that the axes after `axis` make of this dim.
int num_later_shards(const ShardedLayout& layout, std::size_t axis, int dim) {
  int num_shards = 1;
  for (std::size_t later = axis + 1; later < layout.placements.size(); ++later)
    if (layout.placements[later].is_shard(dim)) num_shards *= layout.mesh.size(static_cast<int>(later));
  return num_shards;
}

}  // namespace

void check(const ShardedLayout& layout) {
  if (static_cast<int>(layout.placements.size()) != layout.mesh.num_axes())
    throw Error(str("placements ", to_text(layout.placements), " on a mesh ", layout.mesh.text()),
                "give one placement per mesh axis");
  checked_bytes(layout.sizes, 1, "layout");
  const Placement* first_partial = nullptr;
  for (std::size_t axis = 0; axis < layout.placements.size(); ++axis) {
    const Placement& placement = layout.placements[axis];
    if (placement.is_shard() && (placement.dim < 0 || placement.dim >= layout.sizes.size()))
      throw Error(str(to_text(placement), " of a tensor of sizes ", lockstep::to_text(layout.sizes)),
                  "give a dim of the tensor");
    if (placement.kind == Placement::Kind::strided_shard) {
      const int num_shards = num_later_shards(layout, axis, placement.dim);
      if (placement.split_factor < 1 || placement.split_factor % num_shards != 0)
        throw Error(str(to_text(placement), " in ", to_text(layout.placements), " on a mesh ", layout.mesh.text(),
                        ": the later axes split the dim into ", num_shards, " shards"),
                    str("give a split factor that is a multiple of ", num_shards));
    }
    if (!placement.is_partial()) continue;
    if (!first_partial) first_partial = &placement;
    if (!commute(first_partial->op, placement.op))
      throw Error(
          str(to_text(*first_partial), " and ", to_text(placement), " in one layout: their order of reduction matters"),
          "use one operation on all axes, or sum and mean");
  }
}

ShardedLayout with_placements(const ShardedLayout& layout, std::vector<Placement> placements) {
  ShardedLayout made{layout.mesh, std::move(placements), layout.sizes};
  check(made);
  return made;
}

bool has_partial(const ShardedLayout& layout) {
  return std::any_of(layout.placements.begin(), layout.placements.end(),
                     [](const Placement& placement) { return placement.is_partial(); });
}

bool has_shard(const ShardedLayout& layout) {
  return std::any_of(layout.placements.begin(), layout.placements.end(),
                     [](const Placement& placement) { return placement.is_shard(); });
}

std::shared_ptr<const ShardedLayout> gradient_layout(const std::shared_ptr<const ShardedLayout>& layout) {
  if (!layout || !has_partial(*layout)) return layout;
  auto reduced = std::make_shared<ShardedLayout>(*layout);
  for (Placement& placement : reduced->placements)
    if (placement.is_partial()) placement = replicate();
  return reduced;
}

std::int64_t chunk_length(std::int64_t size, int num_chunks) { return (size + num_chunks - 1) / num_chunks; }

Chunk chunk(std::int64_t size, int num_chunks, int index) {
  const std::int64_t length = chunk_length(size, num_chunks);
  const std::int64_t begin = std::min(size, bounded_product(length, index));
  return {begin, std::min(size, begin + length) - begin};
}

std::vector<AxisSharding> axis_shardings(const ShardedLayout& layout) {
  std::vector<AxisSharding> all, strided;
  for (std::size_t axis = 0; axis < layout.placements.size(); ++axis) {
    const Placement& placement = layout.placements[axis];
    const int number = static_cast<int>(axis);
    if (placement.kind == Placement::Kind::shard) all.push_back({number, placement.dim, 1});
    if (placement.kind == Placement::Kind::strided_shard)
      strided.push_back(
          {number, placement.dim, placement.split_factor / num_later_shards(layout, axis, placement.dim)});
  }
  all.insert(all.end(), strided.rbegin(), strided.rend());
  return all;
}

std::vector<Chunk> shard_ranges(std::int64_t length, int num_shards, int index, int num_splits) {
  std::vector<Chunk> ranges;
  for (int i = 0; i < num_splits; ++i) {
    const Chunk split = chunk(length, num_splits, i);
    if (split.length == 0) break;  // and so are all later ones, of which there may be many more than elements
    const Chunk shard = chunk(split.length, num_shards, index);
    if (shard.length > 0) ranges.push_back({split.begin + shard.begin, shard.length});
  }
  return ranges;
}

std::int64_t total_length(const std::vector<Chunk>& ranges) {
  std::int64_t total = 0;
  for (const Chunk& range : ranges) total += range.length;
  return total;
}

Dims local_sizes(const ShardedLayout& layout, int rank) {
  check(layout);
  const std::vector<int> coordinates = layout.mesh.coordinates_of(rank);
  Dims sizes = layout.sizes;
  for (const AxisSharding& sharding : axis_shardings(layout)) {
    const int index = coordinates[static_cast<std::size_t>(sharding.axis)];
    const int num_shards = layout.mesh.size(sharding.axis);
    std::int64_t& size = sizes[sharding.dim];
    size = sharding.num_splits == 1 ? chunk(size, num_shards, index).length
                                    : total_length(shard_ranges(size, num_shards, index, sharding.num_splits));
  }
  return sizes;
}

namespace {

// Appends to `out` the elements that `wanted` counts within the list `held`, as ranges of the full dim.
void append_elements(const std::vector<Chunk>& held, Chunk wanted, std::vector<Chunk>& out) {
  std::int64_t passed = 0;
  for (const Chunk& range : held) {
    const std::int64_t begin = std::max(wanted.begin, passed);
    const std::int64_t end = std::min(wanted.begin + wanted.length, passed + range.length);
    if (begin < end) {
      const Chunk found{range.begin + begin - passed, end - begin};
      if (!out.empty() && out.back().begin + out.back().length == found.begin)
        out.back().length += found.length;
      else
        out.push_back(found);
    }
    passed += range.length;
  }
}

}  // namespace

std::vector<Chunk> global_ranges(const ShardedLayout& layout, int rank, int dim) {
  check(layout);
  const std::vector<int> coordinates = layout.mesh.coordinates_of(rank);
  std::vector<Chunk> held;
  if (layout.sizes[dim] > 0) held.push_back({0, layout.sizes[dim]});
  for (const AxisSharding& sharding : axis_shardings(layout)) {
    if (sharding.dim != dim) continue;
    std::vector<Chunk> shard;
    for (const Chunk& wanted : shard_ranges(total_length(held), layout.mesh.size(sharding.axis),
                                            coordinates[static_cast<std::size_t>(sharding.axis)], sharding.num_splits))
      append_elements(held, wanted, shard);
    held = std::move(shard);
  }
  return held;
}

}  // namespace lockstep::layout
