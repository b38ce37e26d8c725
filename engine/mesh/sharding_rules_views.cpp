// Rules of operations that change the sizes and keep the elements.
#include <algorithm>
#include <limits>
#include <optional>

#include "engine/core/checked.hpp"
#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"
#include "engine/mesh/sharding_rules.hpp"

namespace lockstep::sharding {

using layout::Placement;

namespace {

// Consecutive dims of the operand and of the result that hold the same elements: the dims between two positions at
// which both have the same number of elements.
struct Group {
  int begin, end;        // dims of the operand
  int to_begin, to_end;  // dims of the result
};

std::vector<Group> groups_of(const Dims& from, const Dims& to) {
  std::vector<Group> groups;
  int i = 0, j = 0;
  while (i < from.size() && j < to.size()) {
    const int begin = i, to_begin = j;
    std::int64_t count = from[i++], to_count = to[j++];
    while (count != to_count) {
      if (count < to_count)
        count = bounded_product(count, from[i++]);
      else
        to_count = bounded_product(to_count, to[j++]);
    }
    groups.push_back({begin, i, to_begin, j});
  }
  return groups;  // dims of size 1 at the end of either list belong to no group
}

std::int64_t product_of(const Dims& sizes, int begin, int end) {
  std::int64_t product = 1;
  for (int dim = begin; dim < end; ++dim) product = bounded_product(product, sizes[dim]);
  return product;
}

// A view of a sharded tensor: which dim of the result takes the place of each sharded dim. Three cases, each exact:
//   first   the dim is the first of its group: its shards are shards of the first dim of the result
//   merged  the dim follows others that merge with it: each of their elements has a piece of the shard, a strided shard
//   split   the inverse of merged: a strided shard becomes a shard of a later dim
class ViewedDims {
 public:
  ViewedDims(const ShardedLayout& a, const Dims& sizes) : a_(a), sizes_(sizes), shardings_(layout::axis_shardings(a)) {}

  // The placement of an axis that shards; nullopt if no dim of the result has its shards.
  std::optional<Placement> placement(std::size_t axis) const {
    const Placement& own = a_.placements[axis];
    if (num_elements(a_.sizes) == 0) return own.dim < sizes_.size() ? std::optional(own) : std::nullopt;
    for (const Group& group : groups_of(a_.sizes, sizes_)) {
      if (own.dim >= group.end) continue;
      if (elements_before(group, own.dim) > 1) return merged(axis, group);
      const std::optional<int> to = dim_after_split(axis, group);
      return to ? layout::shard(*to) : first(axis, group);
    }
    return std::nullopt;
  }

 private:
  std::int64_t elements_before(const Group& group, int dim) const { return product_of(a_.sizes, group.begin, dim); }
  std::int64_t elements_after(const Group& group, int dim) const { return product_of(a_.sizes, dim + 1, group.end); }

  // The dim of the result, in the group, with so many elements before and after it.
  std::optional<int> dim_between(const Group& group, std::int64_t before, std::int64_t after) const {
    for (int to = group.to_begin; to < group.to_end; ++to)
      if (product_of(sizes_, group.to_begin, to) == before && product_of(sizes_, to + 1, group.to_end) == after)
        return to;
    return std::nullopt;
  }

  // Into how many shards the axes divide dims begin to end, the splits of strided shards included. `others_than`: an
  // axis that is left out, -1 for none.
  std::int64_t num_shards(int begin, int end, int others_than = -1) const {
    std::int64_t count = 1;
    for (const layout::AxisSharding& sharding : shardings_)
      if (sharding.dim >= begin && sharding.dim < end && sharding.axis != others_than)
        count = bounded_product(bounded_product(count, sharding.num_splits), a_.mesh.size(sharding.axis));
    return count;
  }
  bool has_strided(int begin, int end, int others_than) const {
    for (std::size_t axis = 0; axis < a_.placements.size(); ++axis) {
      const Placement& placement = a_.placements[axis];
      if (static_cast<int>(axis) != others_than && placement.kind == Placement::Kind::strided_shard &&
          placement.dim >= begin && placement.dim < end)
        return true;
    }
    return false;
  }

  std::optional<int> dim_after_split(std::size_t axis, const Group& group) const {
    const Placement& own = a_.placements[axis];
    const int number = static_cast<int>(axis), dim = own.dim;
    if (own.kind != Placement::Kind::strided_shard || has_strided(dim, dim + 1, number)) return std::nullopt;
    const auto sharding = std::find_if(shardings_.begin(), shardings_.end(),
                                       [number](const layout::AxisSharding& s) { return s.axis == number; });
    const std::int64_t pieces = bounded_product(num_shards(dim, dim + 1, number), sharding->num_splits);
    if (pieces == 1) return std::nullopt;
    return dim_between(group, pieces, elements_after(group, dim));
  }

  std::optional<Placement> first(std::size_t axis, const Group& group) const {
    Placement made = a_.placements[axis];
    const int dim = made.dim;
    int moved_away = -1;  // the axis whose strided shard becomes a shard of a later dim
    for (std::size_t other = 0; other < a_.placements.size(); ++other)
      if (a_.placements[other].is_shard(dim) && dim_after_split(other, group)) moved_away = static_cast<int>(other);
    if (const std::optional<int> same = dim_between(group, 1, elements_after(group, dim)); same && moved_away < 0) {
      made.dim = *same;
      return made;
    }
    for (int to = group.to_begin; to < group.to_end; ++to) {
      if (sizes_[to] == 1) continue;
      made.dim = defect_armed(Defect::sharded_view_takes_last_dim) ? group.to_end - 1 : to;
      const std::int64_t inner = elements_after(group, dim), to_inner = product_of(sizes_, to + 1, group.to_end);
      return same_shards(axis, moved_away, {a_.sizes[dim], inner}, {sizes_[to], to_inner}) ? std::optional(made)
                                                                                           : std::nullopt;
    }
    return std::nullopt;
  }

  // A dim, and the number of elements of each of its indices.
  struct Extent {
    std::int64_t size, each;
  };
  // Whether the shardings of the dim of an axis, without those of `left_out`, give every rank the same elements.
  bool same_shards(std::size_t axis, int left_out, Extent from, Extent to) const {
    const Placement& own = a_.placements[axis];
    const int ranks = a_.mesh.size(static_cast<int>(axis));
    const std::int64_t shards = num_shards(own.dim, own.dim + 1, left_out);
    if (from.size % shards == 0 && to.size % shards == 0) return true;
    return shards == ranks && bounded_product(layout::chunk_length(from.size, ranks), from.each) ==
                                  bounded_product(layout::chunk_length(to.size, ranks), to.each);
  }

  std::optional<Placement> merged(std::size_t axis, const Group& group) const {
    const Placement& own = a_.placements[axis];
    const int number = static_cast<int>(axis), dim = own.dim;
    const std::optional<int> to = dim_between(group, 1, elements_after(group, dim));
    if (!to || own.kind != Placement::Kind::shard || num_shards(dim, dim + 1, number) != 1 ||
        has_strided(group.begin, dim, number))
      return std::nullopt;
    std::int64_t later = 1;  // shards that later axes make of the merged dim
    for (std::size_t other = 0; other < a_.placements.size(); ++other) {
      const Placement& before = a_.placements[other];
      if (!before.is_shard() || before.dim < group.begin || before.dim >= dim) continue;
      if (elements_before(group, before.dim) != 1 || a_.sizes[before.dim] % num_shards(before.dim, before.dim + 1) != 0)
        return std::nullopt;
      if (other > axis) later = bounded_product(later, a_.mesh.size(static_cast<int>(other)));
    }
    const std::int64_t pieces = elements_before(group, dim) / num_shards(group.begin, dim);
    const std::int64_t split_factor = bounded_product(pieces, later);
    if (split_factor > std::numeric_limits<int>::max()) return std::nullopt;
    return layout::strided_shard(*to, static_cast<int>(split_factor));
  }

  const ShardedLayout& a_;
  const Dims& sizes_;
  std::vector<layout::AxisSharding> shardings_;
};

void require_unsharded(const char* operation, const ShardedLayout& a, int dim, const char* remedy) {
  for (const Placement& placement : a.placements)
    if (placement.is_shard(dim))
      throw Error(str(operation, ": along dim ", dim, " of ", a.text(), ", which is sharded"), remedy);
}
constexpr const char* free_the_dim = "redistribute it so that no axis shards the dim";

}  // namespace

Dims complete_sizes(const char* operation, const Dims& from, const Dims& sizes) {
  Dims made = sizes;
  std::int64_t known = 1;
  int open = -1;
  for (int dim = 0; dim < sizes.size(); ++dim) {
    const bool is_open = sizes[dim] == -1;
    if (sizes[dim] < -1 || (is_open && open >= 0))
      throw Error(str(operation, ": sizes ", to_text(sizes)), "give sizes of 0 or more, or one -1");
    if (is_open)
      open = dim;
    else
      known = checked_multiply(known, sizes[dim], operation);
  }
  const std::int64_t count = num_elements(from);
  if (open >= 0 && known > 0 && count % known == 0)
    made[open] = count / known;
  else if (open >= 0 || known != count)
    throw Error(
        str(operation, ": sizes ", to_text(sizes), " for a sharded tensor ", to_text(from), " of ", count, " elements"),
        "give sizes of the full tensor whose product is its number of elements, or one -1");
  return made;
}

Unary view(const char* operation, const ShardedLayout& a, const Dims& sizes) {
  Unary rule{a, {a.mesh, a.placements, sizes}};
  const ViewedDims dims(a, sizes);
  for (std::size_t axis = 0; axis < a.placements.size(); ++axis) {
    if (!a.placements[axis].is_shard()) continue;
    const std::optional<Placement> to = dims.placement(axis);
    if (!to)
      throw Error(
          str(operation, ": ", a.text(), " to ", to_text(sizes), ": the shards of dim ", a.placements[axis].dim,
              " are no shards of the result"),
          "split or merge dims with the sharded one first, so that its shards stay whole, or redistribute it before");
    rule.result.placements[axis] = *to;
  }
  return rule;
}

Unary squeeze(const ShardedLayout& a, int dim) {
  const int at = normalize_dim(dim, a.sizes.size(), "squeeze");
  if (a.sizes.empty() || a.sizes[at] != 1) return {a, a};
  return along("squeeze", a, at, Dim::removed, Keeps::all);
}

Unary expand(const ShardedLayout& a, const Dims& given) {
  const int added = given.size() - a.sizes.size();
  const auto require = [&](bool fits) {
    if (!fits)
      throw Error(str("expand: ", a.text(), " to ", to_text(given)),
                  "give sizes of the full tensor that differ only at dims of size 1 and at added dims in front");
  };
  require(added >= 0);
  Dims sizes = given;
  for (int dim = 0; dim < a.sizes.size(); ++dim)
    if (given[dim + added] == -1) sizes[dim + added] = a.sizes[dim];
  for (const std::int64_t size : sizes) require(size >= 0);
  for (int dim = 0; dim < a.sizes.size(); ++dim) require(a.sizes[dim] == sizes[dim + added] || a.sizes[dim] == 1);
  Unary rule{a, {a.mesh, a.placements, sizes}};
  for (int dim = 0; dim < a.sizes.size(); ++dim)
    if (a.sizes[dim] != sizes[dim + added]) require_unsharded("expand", a, dim, free_the_dim);
  for (Placement& placement : rule.result.placements)
    if (placement.is_shard()) placement.dim += added;
  return rule;
}

Unary slice(const char* operation, const ShardedLayout& a, int dim, std::int64_t begin, std::int64_t end) {
  if (a.sizes.empty()) throw Error(str(operation, ": ", a.text(), " has no dim ", dim), "give it a dim with unsqueeze");
  const int at = normalize_dim(dim, a.sizes.size(), operation);
  const std::int64_t size = a.sizes[at];
  const auto clamped = [size](std::int64_t index) {
    return std::clamp<std::int64_t>(index < 0 ? index + size : index, 0, size);
  };
  const std::int64_t from = clamped(begin), length = std::max<std::int64_t>(0, clamped(end) - from);
  if (length == size) return {a, a};
  require_unsharded(operation, a, at, free_the_dim);
  Unary rule{a, a};
  rule.result.sizes[at] = length;
  return rule;
}

namespace {

// Whether operands can be joined along `at`: equal meshes, equal placements except partial ones, equal other sizes.
bool joins(const ShardedLayout& a, const ShardedLayout& b, int at) {
  if (!(a.mesh == b.mesh) || a.sizes.size() != b.sizes.size()) return false;
  for (int dim = 0; dim < a.sizes.size(); ++dim)
    if (dim != at && a.sizes[dim] != b.sizes[dim]) return false;
  return reduced(a, Keeps::nothing).placements == reduced(b, Keeps::nothing).placements;
}

}  // namespace

Many join(const char* operation, const std::vector<ShardedLayout>& operands, int dim, bool stack) {
  const ShardedLayout& first = operands.front();
  const int num_dims = first.sizes.size(), at = normalize_dim(dim, num_dims + (stack ? 1 : 0), operation);
  Many rule{operands, {}, first};
  bool all_partial_alike = true;
  std::int64_t length = 0;
  for (const ShardedLayout& operand : operands) {
    if (!joins(first, operand, stack ? -1 : at))
      throw Error(str(operation, ": ", first.text(), " with ", operand.text()),
                  "redistribute them to the same placements, and give sizes that differ along the dim only");
    all_partial_alike = all_partial_alike && operand.placements == first.placements;
    if (!stack) length = checked_add(length, operand.sizes[at], operation);
  }
  if (!stack) require_unsharded(operation, first, at, free_the_dim);
  for (ShardedLayout& operand : rule.operands) {
    if (!all_partial_alike) operand = reduced(operand, Keeps::nothing);
    rule.gradients.push_back(reduced(operand, Keeps::nothing));
  }
  rule.result = stack ? unsqueeze(rule.operands.front(), at).result : rule.operands.front();
  rule.result.sizes[at] = stack ? static_cast<std::int64_t>(operands.size()) : length;
  return rule;
}

}  // namespace lockstep::sharding
