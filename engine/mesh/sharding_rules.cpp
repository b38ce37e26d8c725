#include "engine/mesh/sharding_rules.hpp"

#include <algorithm>
#include <functional>
#include <optional>

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

[[noreturn]] void refuse(const char* operation, const std::vector<ShardedLayout>& operands) {
  std::string text;
  for (const ShardedLayout& operand : operands) text += str(text.empty() ? "" : " with ", operand.text());
  throw Error(str(operation, ": ", text), operands.size() == 2 ? "redistribute one of them to the layout of the other"
                                                               : "redistribute them to one layout");
}

void require_unsharded(const char* operation, const ShardedLayout& a, int dim) {
  for (const Placement& placement : a.placements)
    if (placement.is_shard(dim))
      throw Error(str(operation, ": along dim ", dim, " of ", a.text(), ", which is sharded"),
                  "redistribute it so that no axis shards the dim");
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

namespace {

// An operand of an element-wise operation, seen from the dims of the result.
struct Aligned {
  const ShardedLayout& layout;
  int offset;  // of its first dim
  // 1 for a dim that the operand does not have.
  std::int64_t size(int dim) const { return dim < offset ? 1 : layout.sizes[dim - offset]; }
  Placement placement(std::size_t axis) const {
    const Placement& own = layout.placements[axis];
    return own.is_shard() ? moved(own, own.dim + offset) : own;
  }
};

// The placement of the result on an axis where no operand is partial; nullopt if the operands do not match. Marks the
// gradients of operands that are repeated over the shards of others as partial.
std::optional<Placement> common_placement(std::size_t axis, const std::vector<Aligned>& operands,
                                          std::vector<ShardedLayout>& gradients) {
  const Aligned* sharded = nullptr;
  for (const Aligned& operand : operands)
    if (operand.placement(axis).is_shard()) sharded = &operand;
  if (!sharded) return layout::replicate();
  const Placement out = sharded->placement(axis);
  for (std::size_t i = 0; i < operands.size(); ++i) {
    const std::int64_t size = operands[i].size(out.dim);
    if (operands[i].placement(axis) == out && size == sharded->size(out.dim)) continue;
    if (!operands[i].placement(axis).is_replicate() || size != 1) return std::nullopt;
    gradients[i].placements[axis] = layout::partial();
  }
  return out;
}

}  // namespace

Many elementwise(const char* operation, const std::vector<ShardedLayout>& operands, Keeps keeps) {
  Many rule{operands, {}, operands.front()};
  for (const ShardedLayout& operand : operands) {
    if (!(operand.mesh == operands.front().mesh)) refuse(operation, operands);
    rule.result.sizes = broadcast_sizes(rule.result.sizes, operand.sizes, operation);
  }
  const auto has_same = [&operands](std::size_t axis) {
    return std::all_of(operands.begin(), operands.end(), [&](const ShardedLayout& operand) {
      return operand.placements[axis] == operands.front().placements[axis];
    });
  };
  // The result is partial on an axis where all operands are partial in the same way.
  const std::vector<std::size_t> axes = axes_of(operands.front());
  for (const std::size_t axis : axes)
    for (ShardedLayout& operand : rule.operands) {
      Placement& placement = operand.placements[axis];
      if (placement.is_partial() && !(has_same(axis) && is_kept(placement, keeps))) placement = layout::replicate();
    }
  std::vector<Aligned> aligned;
  for (const ShardedLayout& operand : rule.operands) {
    aligned.push_back({operand, rule.result.sizes.size() - operand.sizes.size()});
    rule.gradients.push_back(reduced(operand, Keeps::nothing));
  }
  for (const std::size_t axis : axes) {
    rule.result.placements[axis] = rule.operands.front().placements[axis];
    if (rule.result.placements[axis].is_partial()) continue;
    const std::optional<Placement> out = common_placement(axis, aligned, rule.gradients);
    if (!out) refuse(operation, operands);
    rule.result.placements[axis] = *out;
  }
  return rule;
}

Binary elementwise(const char* operation, const ShardedLayout& a, const ShardedLayout& b, Keeps keeps) {
  Many rule = elementwise(operation, std::vector<ShardedLayout>{a, b}, keeps);
  return {rule.operands[0], rule.operands[1], rule.result, rule.gradients[0], rule.gradients[1]};
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

Unary along(const char* operation, const ShardedLayout& a, int dim, Dim what, Keeps keeps) {
  const int at = normalize_dim(dim, a.sizes.size(), operation);
  const ShardedLayout operand = reduced(a, keeps);
  require_unsharded(operation, operand, at);
  Dims sizes = a.sizes;
  if (!sizes.empty()) {  // a tensor without dims is taken to have dim 0
    if (what == Dim::kept_as_one) sizes[at] = 1;
    if (what == Dim::removed) sizes.erase(at);
  }
  return mapped(operand, sizes, [&](int d) { return what == Dim::removed && d > at ? d - 1 : d; });
}

Unary extreme(const char* operation, const ShardedLayout& a, int dim, bool keep_dim, PartialOp op) {
  const int at = normalize_dim(dim, a.sizes.size(), operation);
  ShardedLayout operand = a;
  for (Placement& placement : operand.placements)
    if (placement.is_partial() && placement.op != op) placement = layout::replicate();
  ShardedLayout whole = operand;  // without the shardings of the dim
  for (Placement& placement : whole.placements)
    if (placement.is_shard(at)) placement = layout::replicate();
  Unary rule = along(operation, whole, dim, keep_dim ? Dim::kept_as_one : Dim::removed, Keeps::all);
  for (const std::size_t axis : axes_of(a))
    if (operand.placements[axis].is_shard(at)) rule.result.placements[axis] = layout::partial(op);
  rule.operand = operand;
  return rule;
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
