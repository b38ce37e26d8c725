#include "engine/mesh/sharding_rules.hpp"

#include <algorithm>
#include <functional>

#include "engine/core/error.hpp"

namespace lockstep::sharding {

using layout::PartialOp;
using layout::Placement;

namespace {

bool is_kept(const Placement& placement, Keeps keeps) {
  if (!placement.is_partial() || keeps == Keeps::all) return true;
  return keeps == Keeps::sums && (placement.op == PartialOp::sum || placement.op == PartialOp::mean);
}

std::vector<std::size_t> axes_of(const ShardedLayout& layout) {
  std::vector<std::size_t> axes(layout.placements.size());
  for (std::size_t axis = 0; axis < axes.size(); ++axis) axes[axis] = axis;
  return axes;
}

// The placement of a dim whose index has changed.
Placement moved(Placement placement, int to) {
  placement.dim = to;
  return placement;
}

[[noreturn]] void refuse(const char* operation, const ShardedLayout& a, const ShardedLayout& b) {
  throw Error(str(operation, ": ", a.text(), " with ", b.text()),
              "redistribute one of them to the layout of the other");
}

bool is_in(int dim, const Dims& dims) { return std::find(dims.begin(), dims.end(), dim) != dims.end(); }

// `to` maps each dim of the operand to a dim of the result, which has `sizes`.
Unary mapped(const ShardedLayout& operand, const Dims& sizes, const std::function<int(int)>& to) {
  Unary rule{operand, {operand.mesh, operand.placements, sizes}};
  for (Placement& placement : rule.result.placements)
    if (placement.is_shard()) placement = moved(placement, to(placement.dim));
  return rule;
}

}  // namespace

ShardedLayout reduced(const ShardedLayout& layout, Keeps keeps) {
  ShardedLayout made = layout;
  for (Placement& placement : made.placements)
    if (!is_kept(placement, keeps)) placement = layout::replicate();
  return made;
}

Binary elementwise(const char* operation, const ShardedLayout& a, const ShardedLayout& b, Keeps keeps) {
  if (!(a.mesh == b.mesh)) refuse(operation, a, b);
  Binary rule{a, b, {a.mesh, a.placements, broadcast_sizes(a.sizes, b.sizes, operation)}, a, b};
  // The result is partial on an axis where both operands are partial in the same way.
  for (const std::size_t axis : axes_of(a)) {
    Placement &left = rule.a.placements[axis], &right = rule.b.placements[axis];
    if (left == right && is_kept(left, keeps)) continue;
    if (left.is_partial()) left = layout::replicate();
    if (right.is_partial()) right = layout::replicate();
  }
  rule.a_grad = reduced(rule.a, Keeps::nothing);
  rule.b_grad = reduced(rule.b, Keeps::nothing);
  const int num_dims = rule.result.sizes.size();
  const auto aligned = [num_dims](const Placement& placement, const Dims& sizes) {
    return placement.is_shard() ? moved(placement, placement.dim + num_dims - sizes.size()) : placement;
  };
  const auto size_at = [num_dims](const Dims& sizes, int dim) {
    const int own = dim - (num_dims - sizes.size());
    return own < 0 ? std::int64_t{1} : sizes[own];
  };
  for (const std::size_t axis : axes_of(a)) {
    const Placement left = aligned(rule.a.placements[axis], a.sizes), right = aligned(rule.b.placements[axis], b.sizes);
    Placement& out = rule.result.placements[axis];
    if (left == right) {
      out = left;
      // Same placement, but different sizes of the sharded dim: the local shards do not match.
      if (left.is_shard() && size_at(a.sizes, left.dim) != size_at(b.sizes, left.dim)) refuse(operation, a, b);
    } else if (left.is_shard() && right.is_replicate() && size_at(b.sizes, left.dim) == 1) {
      out = left;
      rule.b_grad.placements[axis] = layout::partial();
    } else if (right.is_shard() && left.is_replicate() && size_at(a.sizes, right.dim) == 1) {
      out = right;
      rule.a_grad.placements[axis] = layout::partial();
    } else {
      refuse(operation, a, b);
    }
  }
  return rule;
}

Unary sum(const ShardedLayout& a, const Dims& dims, bool keep_dims) {
  Dims summed;
  for (const std::int64_t dim : dims) summed.push_back(normalize_dim(dim, a.sizes.size(), "sum"));
  Dims sizes, targets;  // targets: the dim of the result for each dim
  for (int dim = 0; dim < a.sizes.size(); ++dim) {
    targets.push_back(sizes.size());
    if (!is_in(dim, summed))
      sizes.push_back(a.sizes[dim]);
    else if (keep_dims)
      sizes.push_back(1);
  }
  Unary rule{reduced(a, Keeps::sums), {a.mesh, {}, sizes}};
  for (const Placement& placement : rule.operand.placements)
    rule.result.placements.push_back(!placement.is_shard() ? placement
                                     : is_in(placement.dim, summed)
                                         ? layout::partial()
                                         : moved(placement, static_cast<int>(targets[placement.dim])));
  return rule;
}

Unary along(const char* operation, const ShardedLayout& a, int dim, Dim what) {
  const int at = normalize_dim(dim, a.sizes.size(), operation);
  const ShardedLayout operand = reduced(a, Keeps::nothing);
  for (const Placement& placement : operand.placements)
    if (placement.is_shard(at))
      throw Error(str(operation, ": along dim ", at, " of ", a.text(), ", which is sharded"),
                  "redistribute it so that no axis shards the dim");
  Dims sizes = a.sizes;
  if (what == Dim::kept_as_one) sizes[at] = 1;
  if (what == Dim::removed) sizes.erase(at);
  return mapped(operand, sizes, [&](int d) { return what == Dim::removed && d > at ? d - 1 : d; });
}

Unary permute(const ShardedLayout& a, const Dims& order) {
  Dims from, sizes;
  for (const std::int64_t dim : order) from.push_back(normalize_dim(dim, a.sizes.size(), "permute"));
  for (const std::int64_t dim : from) sizes.push_back(a.sizes[static_cast<int>(dim)]);
  return mapped(a, sizes,
                [&](int dim) { return static_cast<int>(std::find(from.begin(), from.end(), dim) - from.begin()); });
}

Unary unsqueeze(const ShardedLayout& a, int dim) {
  const int at = normalize_dim(dim, a.sizes.size() + 1, "unsqueeze");
  Dims sizes = a.sizes;
  sizes.insert(at, 1);
  return mapped(a, sizes, [at](int d) { return d >= at ? d + 1 : d; });
}

}  // namespace lockstep::sharding
