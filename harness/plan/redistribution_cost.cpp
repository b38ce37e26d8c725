#include "harness/plan/redistribution_cost.hpp"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "engine/core/checked.hpp"
#include "engine/core/error.hpp"

namespace lockstep::plan {

namespace {

using layout::Placement;

std::int64_t ceiling(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// The length of part `index` of `length` elements in `num_parts` parts: all parts but the last filled ones are equal.
std::int64_t part_length(std::int64_t length, std::int64_t num_parts, std::int64_t index) {
  const std::int64_t each = ceiling(length, num_parts);
  return std::max<std::int64_t>(0, std::min(length - std::min(length, index * each), each));
}

// One axis that shards a dim, inside the shardings that are listed before it. With several pieces, the axis shards each
// of these parts of the elements.
struct Cut {
  std::size_t axis = 0;
  int num_pieces = 1;
  friend bool operator==(const Cut&, const Cut&) = default;
};
using Cuts = std::vector<Cut>;  // of one dim, the outermost first

// A shard contains the shards of later axes. A strided shard is inside them: they make `split_factor` parts of its dim,
// or fewer, if some of these axes were gathered. Then the strided axis shards each of the remaining parts.
std::vector<Cuts> cuts_of(const layout::MeshShape& mesh, const std::vector<Placement>& placements, int num_dims) {
  std::vector<Cuts> cuts(static_cast<std::size_t>(num_dims));
  for (std::size_t axis = placements.size(); axis-- > 0;) {
    const Placement& placement = placements[axis];
    if (!placement.is_shard()) continue;
    Cuts& of_dim = cuts[static_cast<std::size_t>(placement.dim)];
    if (placement.kind == Placement::Kind::shard) {
      of_dim.insert(of_dim.begin(), {axis, 1});
      continue;
    }
    int num_pieces = placement.split_factor;
    for (const Cut& later : of_dim) num_pieces /= mesh.size(static_cast<int>(later.axis));
    of_dim.push_back({axis, num_pieces});
  }
  return cuts;
}

class Redistribution {
 public:
  Redistribution(const layout::ShardedLayout& from, std::vector<Placement> to, int rank)
      : mesh_(from.mesh), sizes_(from.sizes), placements_(from.placements), to_(std::move(to)) {
    for (const int index : mesh_.coordinates_of(rank)) coordinates_.push_back(index);
    cuts_ = cuts_of(mesh_, placements_, sizes_.size());
    wanted_ = cuts_of(mesh_, to_, sizes_.size());
  }

  std::vector<Movement> run() {
    while (slice() || exchange() || reduce(true) || reduce(false) || gather() || reduce_rest()) {
    }
    return std::move(movements_);
  }

 private:
  std::int64_t size_of_axis(std::size_t axis) const { return mesh_.size(static_cast<int>(axis)); }

  std::int64_t cut_length(std::int64_t length, const Cut& cut, std::int64_t index) const {
    std::int64_t total = 0;
    for (std::int64_t piece = 0; piece < cut.num_pieces; ++piece)
      total += part_length(part_length(length, cut.num_pieces, piece), size_of_axis(cut.axis), index);
    return total;
  }
  // The length of a dim on this rank within the first `depth` shardings.
  std::int64_t length(std::size_t dim, std::size_t depth) const {
    std::int64_t left = sizes_[static_cast<int>(dim)];
    for (std::size_t i = 0; i < depth; ++i) left = cut_length(left, cuts_[dim][i], coordinates_[cuts_[dim][i].axis]);
    return left;
  }
  // The elements on this rank, without the dims `a` and `b`.
  std::int64_t elements_without(std::size_t a, std::size_t b) const {
    std::int64_t product = 1;
    for (std::size_t dim = 0; dim < cuts_.size(); ++dim)
      if (dim != a && dim != b) product = checked_multiply(product, length(dim, cuts_[dim].size()), "plan");
    return product;
  }
  void note(const char* operation, std::size_t axis, std::int64_t elements) {
    movements_.push_back({operation, static_cast<int>(axis), elements});
  }

  // ---- which changes are possible ----
  // Whether no sharding of the dim has to be removed before others are added.
  bool is_prefix(std::size_t dim) const {
    return cuts_[dim].size() <= wanted_[dim].size() &&
           std::equal(cuts_[dim].begin(), cuts_[dim].end(), wanted_[dim].begin());
  }
  // The dim along which the axis can be sharded now; none: the number of dims.
  std::size_t next_dim_of(std::size_t axis) const {
    for (std::size_t dim = 0; dim < cuts_.size(); ++dim)
      if (is_prefix(dim) && cuts_[dim].size() < wanted_[dim].size() && wanted_[dim][cuts_[dim].size()].axis == axis)
        return dim;
    return cuts_.size();
  }
  void shard(std::size_t axis, std::size_t dim) {
    cuts_[dim].push_back(wanted_[dim][cuts_[dim].size()]);
    placements_[axis] = to_[axis];
  }

  // ---- changes; each returns whether it was made ----
  bool slice() {
    for (std::size_t axis = 0; axis < to_.size(); ++axis) {
      const std::size_t dim = next_dim_of(axis);
      if (!placements_[axis].is_replicate() || dim == cuts_.size()) continue;
      shard(axis, dim);
      return true;
    }
    return false;
  }

  bool exchange() {
    for (std::size_t dim = 0; dim < cuts_.size(); ++dim) {
      if (is_prefix(dim)) continue;
      const Cut last = cuts_[dim].back();
      const std::size_t target = next_dim_of(last.axis);
      if (target == cuts_.size()) continue;
      const std::int64_t gathered = cut_length(length(dim, cuts_[dim].size() - 1), last, 0);
      const std::int64_t sharded =
          cut_length(length(target, cuts_[target].size()), wanted_[target][cuts_[target].size()], 0);
      const std::int64_t block = checked_multiply(gathered, sharded, "plan");
      note("all_to_all", last.axis,
           checked_multiply(checked_multiply(block, elements_without(dim, target), "plan"), size_of_axis(last.axis),
                            "plan"));
      cuts_[dim].pop_back();
      shard(last.axis, target);
      return true;
    }
    return false;
  }

  // A partial axis that becomes a shard, or with `scatter` false one that becomes replicated. The last axis comes
  // first.
  bool reduce(bool scatter) {
    for (std::size_t axis = to_.size(); axis-- > 0;) {
      if (!placements_[axis].is_partial()) continue;
      const std::size_t dim = next_dim_of(axis);
      if (scatter && dim < cuts_.size()) {
        const std::int64_t each = cut_length(length(dim, cuts_[dim].size()), wanted_[dim][cuts_[dim].size()], 0);
        note("reduce_scatter", axis,
             checked_multiply(checked_multiply(each, elements_without(dim, dim), "plan"), size_of_axis(axis), "plan"));
        shard(axis, dim);
        return true;
      }
      if (!scatter && to_[axis].is_replicate()) return all_reduce(axis);
    }
    return false;
  }
  bool all_reduce(std::size_t axis) {
    note("all_reduce", axis, elements_without(cuts_.size(), cuts_.size()));
    placements_[axis] = layout::replicate();
    return true;
  }

  bool gather() {
    for (std::size_t dim = 0; dim < cuts_.size(); ++dim) {
      if (is_prefix(dim)) continue;
      const Cut last = cuts_[dim].back();
      const std::int64_t each = cut_length(length(dim, cuts_[dim].size() - 1), last, 0);
      note("all_gather", last.axis,
           checked_multiply(checked_multiply(each, elements_without(dim, dim), "plan"), size_of_axis(last.axis),
                            "plan"));
      cuts_[dim].pop_back();
      placements_[last.axis] = layout::replicate();
      return true;
    }
    return false;
  }

  // Partial axes whose sharding has to wait for a gather.
  bool reduce_rest() {
    for (std::size_t axis = to_.size(); axis-- > 0;)
      if (placements_[axis].is_partial() && !to_[axis].is_partial()) return all_reduce(axis);
    return false;
  }

  const layout::MeshShape& mesh_;
  const Dims& sizes_;
  std::vector<std::int64_t> coordinates_;
  std::vector<Placement> placements_, to_;
  std::vector<Cuts> cuts_, wanted_;  // per dim
  std::vector<Movement> movements_;
};

}  // namespace

std::vector<Movement> redistribution(const layout::ShardedLayout& from, const std::vector<Placement>& to, int rank) {
  for (std::size_t axis = 0; axis < to.size(); ++axis)
    if (to[axis].is_partial() && !from.placements[axis].is_replicate() && !(to[axis] == from.placements[axis]))
      throw Error(
          str("the plan knows no redistribution from ", layout::to_text(from.placements), " to ", layout::to_text(to)));
  return Redistribution(from, to, rank).run();
}

std::vector<Placement> gradient_placements(std::vector<Placement> placements) {
  for (Placement& placement : placements)
    if (placement.is_partial()) placement = layout::replicate();
  return placements;
}

std::vector<Movement> redistribution_backward(const layout::ShardedLayout& from, const std::vector<Placement>& to,
                                              int rank) {
  return redistribution({from.mesh, gradient_placements(to), from.sizes}, gradient_placements(from.placements), rank);
}

std::vector<Movement> gather_in_full(const layout::ShardedLayout& from, int rank) {
  return redistribution(from, std::vector<Placement>(from.placements.size()), rank);
}

}  // namespace lockstep::plan
