#include "engine/layout/redistribute.hpp"

#include <cstddef>
#include <optional>
#include <utility>

#include "engine/core/error.hpp"

namespace lockstep::layout {

std::string to_text(RedistributeOp op) {
  static constexpr const char* names[] = {"all_gather", "all_reduce", "reduce_scatter",
                                          "all_to_all", "slice",      "to_partial"};
  return names[static_cast<int>(op)];
}

namespace {

using Cuts = std::vector<Cut>;

// The cuts of each dim, in order.
std::vector<Cuts> cuts_by_dim(const ShardedLayout& layout) {
  std::vector<Cuts> all(static_cast<std::size_t>(layout.sizes.size()));
  for (const Cut& cut : cuts(layout)) all[static_cast<std::size_t>(cut.dim)].push_back(cut);
  return all;
}

class Planner {
 public:
  Planner(const ShardedLayout& from, const ShardedLayout& to)
      : to_(to), placements_(from.placements), cuts_(cuts_by_dim(from)), wanted_(cuts_by_dim(to)) {}

  std::vector<RedistributeStep> plan() {
    // Local cuts first, as they make less to move; gathers only when nothing else is left, as a gather that comes later
    // may turn into an all_to_all.
    while (slice() || exchange() || reduce_scatter() || all_reduce(true) || all_gather() || all_reduce(false) ||
           to_partial()) {
    }
    return std::move(steps_);
  }

 private:
  std::size_t num_axes() const { return placements_.size(); }

  // Whether nothing of this dim is to be undone.
  bool is_ready(std::size_t dim) const {
    const Cuts& now = cuts_[dim];
    if (now.size() > wanted_[dim].size()) return false;
    for (std::size_t i = 0; i < now.size(); ++i)
      if (!(now[i] == wanted_[dim][i])) return false;
    return true;
  }
  // The cut that this axis is to make, when it is the next one of its dim and can be made now.
  std::optional<Cut> next_cut(std::size_t axis) const {
    const Placement& wanted = to_.placements[axis];
    if (!wanted.is_shard()) return {};
    const auto dim = static_cast<std::size_t>(wanted.dim);
    if (!is_ready(dim) || cuts_[dim].size() == wanted_[dim].size()) return {};
    const Cut& next = wanted_[dim][cuts_[dim].size()];
    if (next.axis != static_cast<int>(axis)) return {};
    return next;
  }
  void apply(RedistributeStep step, bool undo, bool make) {
    const auto axis = static_cast<std::size_t>(step.axis);
    if (undo) {
      cuts_[static_cast<std::size_t>(step.undone.dim)].pop_back();
      placements_[axis] = replicate();
    }
    if (make) cuts_[static_cast<std::size_t>(step.made.dim)].push_back(step.made);
    if (make || step.op == RedistributeOp::to_partial) placements_[axis] = to_.placements[axis];
    if (step.op == RedistributeOp::all_reduce) placements_[axis] = replicate();
    steps_.push_back(step);
  }

  bool slice() {
    for (std::size_t axis = 0; axis < num_axes(); ++axis) {
      if (!placements_[axis].is_replicate()) continue;
      const std::optional<Cut> cut = next_cut(axis);
      if (!cut) continue;
      apply({cut->axis, RedistributeOp::slice, PartialOp::sum, {}, *cut}, false, true);
      return true;
    }
    return false;
  }

  bool exchange() {
    for (std::size_t dim = 0; dim < cuts_.size(); ++dim) {
      if (is_ready(dim)) continue;
      const Cut last = cuts_[dim].back();
      const std::optional<Cut> cut = next_cut(static_cast<std::size_t>(last.axis));
      if (!cut) continue;
      apply({last.axis, RedistributeOp::all_to_all, PartialOp::sum, last, *cut}, true, true);
      return true;
    }
    return false;
  }

  bool reduce_scatter() {
    for (std::size_t axis = num_axes(); axis-- > 0;) {
      if (!placements_[axis].is_partial()) continue;
      const std::optional<Cut> cut = next_cut(axis);
      if (!cut) continue;
      apply({cut->axis, RedistributeOp::reduce_scatter, placements_[axis].op, {}, *cut}, false, true);
      return true;
    }
    return false;
  }

  // The inner axis first, as sums over two axes go.
  bool all_reduce(bool only_to_replicate) {
    for (std::size_t axis = num_axes(); axis-- > 0;) {
      const Placement& wanted = to_.placements[axis];
      if (!placements_[axis].is_partial() || wanted.is_partial()) continue;
      if (only_to_replicate && !wanted.is_replicate()) continue;
      apply({static_cast<int>(axis), RedistributeOp::all_reduce, placements_[axis].op, {}, {}}, false, false);
      return true;
    }
    return false;
  }

  bool all_gather() {
    for (std::size_t dim = 0; dim < cuts_.size(); ++dim) {
      if (is_ready(dim)) continue;
      const Cut last = cuts_[dim].back();
      apply({last.axis, RedistributeOp::all_gather, PartialOp::sum, last, {}}, true, false);
      return true;
    }
    return false;
  }

  bool to_partial() {
    for (std::size_t axis = 0; axis < num_axes(); ++axis) {
      const Placement& wanted = to_.placements[axis];
      if (!wanted.is_partial() || !placements_[axis].is_replicate()) continue;
      apply({static_cast<int>(axis), RedistributeOp::to_partial, wanted.op, {}, {}}, false, false);
      return true;
    }
    return false;
  }

  const ShardedLayout& to_;
  std::vector<Placement> placements_;  // where a shard is, `cuts_` tells how it was cut
  std::vector<Cuts> cuts_, wanted_;
  std::vector<RedistributeStep> steps_;
};

}  // namespace

std::vector<RedistributeStep> plan_redistribute(const ShardedLayout& from, const ShardedLayout& to) {
  check(from);
  check(to);
  if (!(from.mesh == to.mesh) || !(from.sizes == to.sizes))
    throw Error(str("redistribute: from ", from.text(), " to ", to.text()),
                "keep mesh and sizes; full_tensor() and distribute() lead to another mesh");
  for (std::size_t axis = 0; axis < to.placements.size(); ++axis) {
    const Placement &before = from.placements[axis], &after = to.placements[axis];
    if (after.is_partial() && !(before == after) && !before.is_replicate())
      throw Error(str("redistribute: from ", from.text(), " to ", to_text(to.placements), ": ", to_text(before),
                      " becomes ", to_text(after)),
                  "only a replicated axis can be made partial");
  }
  return Planner(from, to).plan();
}

RedistributeCost cost_of(const std::vector<RedistributeStep>& steps) {
  RedistributeCost cost;
  for (const RedistributeStep& step : steps) {
    cost.num_all_gather += step.op == RedistributeOp::all_gather;
    cost.num_all_reduce += step.op == RedistributeOp::all_reduce;
    cost.num_reduce_scatter += step.op == RedistributeOp::reduce_scatter;
    cost.num_all_to_all += step.op == RedistributeOp::all_to_all;
  }
  return cost;
}

}  // namespace lockstep::layout
