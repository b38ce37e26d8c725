// For tests: all ranks of a mesh in one thread, each with its local shard in a plain vector, and the effect of
// redistribution steps on them. Works on lists of indices and uses none of the arithmetic under test.
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

// Chunk `index` of `num_chunks` of `held` by ceiling division, assigned element by element.
inline Indices ceiling_chunk(const Indices& held, int num_chunks, int index) {
  const auto chunks = static_cast<std::size_t>(num_chunks);
  const std::size_t each = (held.size() + chunks - 1) / chunks;
  Indices chunk;
  for (std::size_t i = 0; i < held.size(); ++i)
    if (i / each == static_cast<std::size_t>(index)) chunk.push_back(held[i]);
  return chunk;
}
// Shard `index` of `num_shards` of `held`, which is split into `num_splits` chunks first.
inline Indices shard_of(const Indices& held, int num_shards, int index, int num_splits) {
  Indices shard;
  for (int split = 0; split < num_splits; ++split)
    for (const std::int64_t i : ceiling_chunk(ceiling_chunk(held, num_splits, split), num_shards, index))
      shard.push_back(i);
  return shard;
}

// The global indices of a dim that a rank holds: plain shards apply in the order of the axes, then strided shards from
// the last axis to the first.
inline Indices held(const ShardedLayout& layout, int rank, int dim) {
  Indices indices = counted(layout.sizes[dim]);
  const std::vector<int> at = layout.mesh.coordinates_of(rank);
  const int num_axes = layout.mesh.num_axes();
  const auto placement = [&](int axis) { return layout.placements[static_cast<std::size_t>(axis)]; };
  for (int axis = 0; axis < num_axes; ++axis)
    if (placement(axis) == shard(dim))
      indices = ceiling_chunk(indices, layout.mesh.size(axis), at[static_cast<std::size_t>(axis)]);
  for (int axis = num_axes - 1; axis >= 0; --axis) {
    if (placement(axis).kind != Placement::Kind::strided_shard || placement(axis).dim != dim) continue;
    int num_splits = placement(axis).split_factor;
    for (int later = axis + 1; later < num_axes; ++later)
      if (placement(later).is_shard(dim)) num_splits /= layout.mesh.size(later);
    indices = shard_of(indices, layout.mesh.size(axis), at[static_cast<std::size_t>(axis)], num_splits);
  }
  return indices;
}

// A local shard: values in row-major order.
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

// The local shards of all ranks, in the order of mesh.ranks().
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
        return gather(step.removed);
      case RedistributeOp::slice:
        return slice(step.added);
      case RedistributeOp::all_to_all:
        gather(step.removed);
        return slice(step.added);
      case RedistributeOp::all_reduce:
        return reduce(step.axis, step.reduce);
      case RedistributeOp::reduce_scatter:
        reduce(step.axis, step.reduce);
        return slice(step.added);
      case RedistributeOp::to_partial:
        for (Local& local : locals_)
          for (double& value : local.values) value = share(step.reduce, value, mesh_.size(step.axis));
        return;
    }
  }

 private:
  // A contribution for each of n ranks whose reduction is the value.
  static double share(PartialOp op, double value, int n) {
    if (op == PartialOp::sum) return value / n;
    if (op == PartialOp::product) return std::pow(std::fabs(value), 1.0 / n);
    return value;
  }
  int coordinate(int rank, int axis) const { return mesh_.coordinates_of(rank)[static_cast<std::size_t>(axis)]; }

  void gather(const AxisSharding& sharding) {
    Ranks after(mesh_);
    for (const int rank : mesh_.ranks()) {
      const std::vector<int> members = mesh_.axis_members(sharding.axis, rank);
      Dims sizes = at(rank).sizes;
      std::int64_t& length = sizes[sharding.dim];
      length = 0;
      for (const int member : members) length += at(member).sizes[sharding.dim];
      // The member that holds each index of the dim, and its local index there.
      std::vector<std::pair<int, std::int64_t>> where(static_cast<std::size_t>(length));
      for (std::size_t m = 0; m < members.size(); ++m) {
        std::int64_t place = 0;
        for (const std::int64_t i :
             shard_of(counted(length), mesh_.size(sharding.axis), static_cast<int>(m), sharding.num_splits))
          where[static_cast<std::size_t>(i)] = {members[m], place++};
      }
      after.at(rank) = build(sizes, [&](Dims index) {
        const auto [member, place] = where[static_cast<std::size_t>(index[sharding.dim])];
        index[sharding.dim] = place;
        return value_at(at(member), index);
      });
    }
    *this = after;
  }

  void slice(const AxisSharding& sharding) {
    for (const int rank : mesh_.ranks()) {
      const Local before = at(rank);
      const Indices shard = shard_of(counted(before.sizes[sharding.dim]), mesh_.size(sharding.axis),
                                     coordinate(rank, sharding.axis), sharding.num_splits);
      Dims sizes = before.sizes;
      sizes[sharding.dim] = static_cast<std::int64_t>(shard.size());
      at(rank) = build(sizes, [&](Dims index) {
        index[sharding.dim] = shard[static_cast<std::size_t>(index[sharding.dim])];
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

// The collectives of a list of steps.
struct RedistributeCost {
  int num_all_gather = 0, num_all_reduce = 0, num_reduce_scatter = 0, num_all_to_all = 0;
  int total() const { return num_all_gather + num_all_reduce + num_reduce_scatter + num_all_to_all; }
  friend bool operator==(const RedistributeCost&, const RedistributeCost&) = default;
};
inline RedistributeCost cost_of(const std::vector<RedistributeStep>& steps) {
  RedistributeCost cost;
  for (const RedistributeStep& step : steps) {
    cost.num_all_gather += step.op == RedistributeOp::all_gather;
    cost.num_all_reduce += step.op == RedistributeOp::all_reduce;
    cost.num_reduce_scatter += step.op == RedistributeOp::reduce_scatter;
    cost.num_all_to_all += step.op == RedistributeOp::all_to_all;
  }
  return cost;
}

}  // namespace lockstep::layout::simulated
