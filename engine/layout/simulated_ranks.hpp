// For tests: all ranks of a mesh in one place, each with its local part in a plain vector, and what the steps of a
// redistribution do to them. Written with lists of indices and none of the arithmetic under test.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "engine/layout/redistribute.hpp"

namespace lockstep::layout::simulated {

using Indices = std::vector<std::int64_t>;

inline Indices counted(std::int64_t length) {
  Indices all(static_cast<std::size_t>(length));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// The elements of `held` in ceiling chunk `index` of `parts`, dealt out one by one.
inline Indices ceiling_part(const Indices& held, int parts, int index) {
  const std::size_t each = (held.size() + static_cast<std::size_t>(parts) - 1) / static_cast<std::size_t>(parts);
  Indices part;
  for (std::size_t i = 0; i < held.size(); ++i)
    if (i / each == static_cast<std::size_t>(index)) part.push_back(held[i]);
  return part;
}
inline Indices part_in_pieces(const Indices& held, int parts, int index, int pieces) {
  Indices part;
  for (int piece = 0; piece < pieces; ++piece)
    for (const std::int64_t i : ceiling_part(ceiling_part(held, pieces, piece), parts, index)) part.push_back(i);
  return part;
}

// The global indices of a dim that a rank holds: plain shards cut in the order of the axes, then the strided ones from
// the last axis to the first.
inline Indices held(const ShardedLayout& layout, int rank, int dim) {
  Indices indices = counted(layout.sizes[dim]);
  const std::vector<int> at = layout.mesh.coordinates_of(rank);
  const int num_axes = layout.mesh.num_axes();
  const auto placement = [&](int axis) { return layout.placements[static_cast<std::size_t>(axis)]; };
  for (int axis = 0; axis < num_axes; ++axis)
    if (placement(axis) == shard(dim))
      indices = ceiling_part(indices, layout.mesh.size(axis), at[static_cast<std::size_t>(axis)]);
  for (int axis = num_axes - 1; axis >= 0; --axis) {
    if (placement(axis).kind != Placement::Kind::strided_shard || placement(axis).dim != dim) continue;
    int pieces = placement(axis).split_factor;
    for (int later = axis + 1; later < num_axes; ++later)
      if (placement(later).is_shard(dim)) pieces /= layout.mesh.size(later);
    indices = part_in_pieces(indices, layout.mesh.size(axis), at[static_cast<std::size_t>(axis)], pieces);
  }
  return indices;
}

// A local part: values in row-major order.
struct Local {
  Dims sizes;
  std::vector<double> values;
};

template <class F>
Local build(const Dims& sizes, F&& value_at) {
  Local made{sizes, {}};
  Dims index(sizes.size(), 0);
  for (std::int64_t i = 0; i < num_elements(sizes); ++i) {
    made.values.push_back(value_at(index));
    for (int dim = sizes.size() - 1; dim >= 0 && ++index[dim] == sizes[dim]; --dim) index[dim] = 0;
  }
  return made;
}
inline double value_at(const Local& local, const Dims& index) {
  std::int64_t at = 0;
  for (int dim = 0; dim < index.size(); ++dim) at = at * local.sizes[dim] + index[dim];
  return local.values.at(static_cast<std::size_t>(at));
}

inline double combine(PartialOp op, double a, double b) {
  switch (op) {
    case PartialOp::sum:
    case PartialOp::mean:
      return a + b;
    case PartialOp::max:
      return std::max(a, b);
    case PartialOp::min:
      return std::min(a, b);
    case PartialOp::product:
      return a * b;
  }
  return 0.0;
}

// The local parts of all ranks, in the order of mesh.ranks().
class Ranks {
 public:
  explicit Ranks(MeshShape mesh) : mesh_(std::move(mesh)), locals_(static_cast<std::size_t>(mesh_.num_ranks())) {}
  Local& at(int rank) {
    const auto& ranks = mesh_.ranks();
    return locals_[static_cast<std::size_t>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin())];
  }

  void run(const RedistributeStep& step) {
    switch (step.op) {
      case RedistributeOp::all_gather:
        return gather(step.undone);
      case RedistributeOp::slice:
        return slice(step.made);
      case RedistributeOp::all_to_all:
        gather(step.undone);
        return slice(step.made);
      case RedistributeOp::all_reduce:
        return reduce(step.axis, step.reduce);
      case RedistributeOp::reduce_scatter:
        reduce(step.axis, step.reduce);
        return slice(step.made);
      case RedistributeOp::to_partial:
        for (Local& local : locals_)
          for (double& value : local.values) value = share(step.reduce, value, mesh_.size(step.axis));
        return;
    }
  }

 private:
  // What each of n ranks may hold so that the reduction gives the value.
  static double share(PartialOp op, double value, int n) {
    if (op == PartialOp::sum) return value / n;
    if (op == PartialOp::product) return std::pow(std::fabs(value), 1.0 / n);
    return value;
  }
  int coordinate(int rank, int axis) const { return mesh_.coordinates_of(rank)[static_cast<std::size_t>(axis)]; }

  void gather(const Cut& cut) {
    Ranks after(mesh_);
    for (const int rank : mesh_.ranks()) {
      const std::vector<int> members = mesh_.axis_members(cut.axis, rank);
      Dims sizes = at(rank).sizes;
      sizes[cut.dim] = 0;
      for (const int member : members) sizes[cut.dim] += at(member).sizes[cut.dim];
      // Who holds an index of the dim, and where.
      std::vector<std::pair<int, std::int64_t>> where(static_cast<std::size_t>(sizes[cut.dim]));
      for (std::size_t m = 0; m < members.size(); ++m) {
        std::int64_t place = 0;
        for (const std::int64_t i :
             part_in_pieces(counted(sizes[cut.dim]), mesh_.size(cut.axis), static_cast<int>(m), cut.pieces))
          where[static_cast<std::size_t>(i)] = {members[m], place++};
      }
      after.at(rank) = build(sizes, [&](Dims index) {
        const auto [member, place] = where[static_cast<std::size_t>(index[cut.dim])];
        index[cut.dim] = place;
        return value_at(at(member), index);
      });
    }
    *this = after;
  }

  void slice(const Cut& cut) {
    for (const int rank : mesh_.ranks()) {
      const Local before = at(rank);
      const Indices part =
          part_in_pieces(counted(before.sizes[cut.dim]), mesh_.size(cut.axis), coordinate(rank, cut.axis), cut.pieces);
      Dims sizes = before.sizes;
      sizes[cut.dim] = static_cast<std::int64_t>(part.size());
      at(rank) = build(sizes, [&](Dims index) {
        index[cut.dim] = part[static_cast<std::size_t>(index[cut.dim])];
        return value_at(before, index);
      });
    }
  }

  void reduce(int axis, PartialOp op) {
    Ranks after(mesh_);
    for (const int rank : mesh_.ranks()) {
      const std::vector<int> members = mesh_.axis_members(axis, rank);
      Local& made = after.at(rank) = at(members.front());
      for (std::size_t m = 1; m < members.size(); ++m)
        for (std::size_t i = 0; i < made.values.size(); ++i)
          made.values[i] = combine(op, made.values[i], at(members[m]).values.at(i));
      if (op == PartialOp::mean)
        for (double& value : made.values) value /= static_cast<double>(members.size());
    }
    *this = after;
  }

  MeshShape mesh_;
  std::vector<Local> locals_;
};

}  // namespace lockstep::layout::simulated
