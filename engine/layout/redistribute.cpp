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

using Shardings = std::vector<AxisSharding>;

// The shardings of each dim, in the order in which they apply.
std::vector<Shardings> shardings_by_dim(const ShardedLayout& layout) {
  std::vector<Shardings> all(static_cast<std::size_t>(layout.sizes.size()));
  for (const AxisSharding& sharding : axis_shardings(layout))
    all[static_cast<std::size_t>(sharding.dim)].push_back(sharding);
  return all;
}

// Changes the current placements step by step until they are those of `to`.
class StepBuilder {
 public:
  StepBuilder(const ShardedLayout& from, const ShardedLayout& to)
      : to_(to), placements_(from.placements), current_(shardings_by_dim(from)), wanted_(shardings_by_dim(to)) {}

  std::vector<RedistributeStep> build() {
    // Slices come first because they reduce the data that later steps move. A gather comes only when no other step is
    // possible, because a later step may turn it into an all_to_all.
    while (slice() || exchange() || reduce_scatter() || all_reduce() || all_gather() || to_partial()) {
    }
    LOCKSTEP_CHECK(current_ == wanted_, "the steps to ", to_.text(), " end at ", to_text(placements_));
    return std::move(steps_);
  }

 private:
  std::size_t num_axes() const { return placements_.size(); }

  // Whether the current shardings of the dim are the first of the wanted ones, so that none has to be removed.
  bool is_ready(std::size_t dim) const {
    const Shardings& current = current_[dim];
    if (current.size() > wanted_[dim].size()) return false;
    for (std::size_t i = 0; i < current.size(); ++i)
      if (!(current[i] == wanted_[dim][i])) return false;
    return true;
  }
  // The sharding that this axis, which does not shard its dim yet, needs, if it is the next one and the dim is ready.
  std::optional<AxisSharding> next_sharding(std::size_t axis) const {
    const Placement& wanted = to_.placements[axis];
    if (!wanted.is_shard()) return {};
    const auto dim = static_cast<std::size_t>(wanted.dim);
    if (!is_ready(dim)) return {};
    const AxisSharding& next = wanted_[dim][current_[dim].size()];
    if (next.axis != static_cast<int>(axis)) return {};
    return next;
  }
  void apply(RedistributeStep step, bool removes, bool adds) {
    const auto axis = static_cast<std::size_t>(step.axis);
    if (removes) {
      current_[static_cast<std::size_t>(step.removed.dim)].pop_back();
      placements_[axis] = replicate();
    }
    if (adds) current_[static_cast<std::size_t>(step.added.dim)].push_back(step.added);
    if (adds || step.op == RedistributeOp::to_partial) placements_[axis] = to_.placements[axis];
    if (step.op == RedistributeOp::all_reduce) placements_[axis] = replicate();
    steps_.push_back(step);
  }

  bool slice() {
    for (std::size_t axis = 0; axis < num_axes(); ++axis) {
      if (!placements_[axis].is_replicate()) continue;
      const std::optional<AxisSharding> added = next_sharding(axis);
      if (!added) continue;
      apply({added->axis, RedistributeOp::slice, PartialOp::sum, {}, *added}, false, true);
      return true;
    }
    return false;
  }

  bool exchange() {
    for (std::size_t dim = 0; dim < current_.size(); ++dim) {
      if (is_ready(dim)) continue;
      const AxisSharding last = current_[dim].back();
      const std::optional<AxisSharding> added = next_sharding(static_cast<std::size_t>(last.axis));
      if (!added) continue;
      apply({last.axis, RedistributeOp::all_to_all, PartialOp::sum, last, *added}, true, true);
      return true;
    }
    return false;
  }

  bool reduce_scatter() {
    for (std::size_t axis = num_axes(); axis-- > 0;) {
      if (!placements_[axis].is_partial()) continue;
      const std::optional<AxisSharding> added = next_sharding(axis);
      if (!added) continue;
      apply({added->axis, RedistributeOp::reduce_scatter, placements_[axis].op, {}, *added}, false, true);
      return true;
    }
    return false;
  }

  // The inner axis is reduced first, as in every sum over two axes.
  bool all_reduce() {
    for (std::size_t axis = num_axes(); axis-- > 0;) {
      if (!placements_[axis].is_partial() || !to_.placements[axis].is_replicate()) continue;
      apply({static_cast<int>(axis), RedistributeOp::all_reduce, placements_[axis].op, {}, {}}, false, false);
      return true;
    }
    return false;
  }

  bool all_gather() {
    for (std::size_t dim = 0; dim < current_.size(); ++dim) {
      if (is_ready(dim)) continue;
      const AxisSharding last = current_[dim].back();
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
  std::vector<Placement> placements_;        // current; `current_` holds the details of the shards
  std::vector<Shardings> current_, wanted_;  // per dim
  std::vector<RedistributeStep> steps_;
};

}  // namespace

std::vector<RedistributeStep> redistribute_steps(const ShardedLayout& from, const ShardedLayout& to) {
  check(from);
  check(to);
  if (!(from.mesh == to.mesh) || !(from.sizes == to.sizes))
    throw Error(str("redistribute: from ", from.text(), " to ", to.text()),
                "keep mesh and sizes; use full_tensor() and distribute() to change the mesh");
  for (std::size_t axis = 0; axis < to.placements.size(); ++axis) {
    const Placement &before = from.placements[axis], &after = to.placements[axis];
    if (after.is_partial() && !(before == after) && !before.is_replicate())
      throw Error(str("redistribute: from ", from.text(), " to ", to_text(to.placements), ": ", to_text(before),
                      " becomes ", to_text(after)),
                  "only a replicated axis can be made partial");
  }
  return StepBuilder(from, to).build();
}

}  // namespace lockstep::layout
