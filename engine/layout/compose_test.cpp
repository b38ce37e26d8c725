// The composed layout of every pair of axes on meshes of up to four axes, against an owner map that splits lists of
// indices: by the axes of tensor parallelism in their order, then by the axis of data parallelism.
#include "engine/layout/compose.hpp"

#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/core/error.hpp"
#include "engine/layout/simulated_ranks.hpp"

namespace lockstep::layout {
namespace {

using simulated::ceiling_chunk;
using simulated::counted;
using simulated::Indices;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

std::string axis_name(int axis) { return std::string(1, static_cast<char>('a' + axis)); }

// All meshes with `num_axes` axes and at most `max_ranks` ranks. Axes of size 1 are among them.
std::vector<MeshShape> meshes_of(int num_axes, int max_ranks) {
  std::vector<MeshShape> meshes;
  std::vector<int> sizes(static_cast<std::size_t>(num_axes), 1);
  std::vector<std::string> names;
  for (int axis = 0; axis < num_axes; ++axis) names.push_back(axis_name(axis));
  while (true) {
    int num_ranks = 1;
    for (const int size : sizes) num_ranks *= size;
    if (num_ranks <= max_ranks) meshes.emplace_back(sizes, names);
    std::size_t i = sizes.size();
    while (i > 0 && ++sizes[i - 1] > 4) sizes[--i] = 1;
    if (i == 0) return meshes;
  }
}

// One way to distribute a tensor of two dims over a mesh: a kind per axis.
enum class Use { unused, replicates, shards, inner_replicates, inner_shards_0, inner_shards_1 };

struct Case {
  MeshShape root;
  std::vector<Use> uses;  // per axis
  int dim = 0;
  bool is_inner(std::size_t axis) const { return uses[axis] >= Use::inner_replicates; }
};

// The rows or columns that a rank holds, by lists of indices.
Indices expected(const Case& one, const Dims& sizes, int rank, int dim) {
  Indices held = counted(sizes[dim]);
  const std::vector<int> at = one.root.coordinates_of(rank);
  const auto split = [&](std::size_t axis) {
    held = ceiling_chunk(held, one.root.size(static_cast<int>(axis)), at[axis]);
  };
  for (std::size_t axis = 0; axis < at.size(); ++axis)
    if (one.uses[axis] == (dim == 0 ? Use::inner_shards_0 : Use::inner_shards_1)) split(axis);
  for (std::size_t axis = 0; axis < at.size(); ++axis)
    if (one.uses[axis] == Use::shards && one.dim == dim) split(axis);
  return held;
}

Indices listed(const std::vector<Chunk>& ranges) {
  Indices all;
  for (const Chunk& range : ranges)
    for (std::int64_t i = 0; i < range.length; ++i) all.push_back(range.begin + i);
  return all;
}

ShardedLayout composed(const Case& one, const Dims& sizes, int rank) {
  std::vector<std::string> inner, outer;
  ShardedLayout existing{one.root, {}, sizes};
  int shard_axis = 0;
  for (std::size_t axis = 0; axis < one.uses.size(); ++axis) {
    const std::string& name = one.root.names()[axis];
    if (one.is_inner(axis)) {
      inner.push_back(name);
      existing.placements.push_back(one.uses[axis] == Use::inner_shards_0   ? shard(0)
                                    : one.uses[axis] == Use::inner_shards_1 ? shard(1)
                                                                            : replicate());
    } else if (one.uses[axis] != Use::unused) {
      if (one.uses[axis] == Use::shards) shard_axis = static_cast<int>(outer.size());
      outer.push_back(name);
    }
  }
  existing.mesh = one.root.slice(inner, rank);
  return compose("w", {one.root, one.root.slice(outer, rank), shard_axis}, existing, one.dim, rank);
}

// A description of the first difference, "" if there is none.
std::string differs(const Case& one, const Dims& sizes) {
  for (const int rank : one.root.ranks()) {
    const ShardedLayout layout = composed(one, sizes, rank);
    for (int dim = 0; dim < 2; ++dim) {
      const Indices wanted = expected(one, sizes, rank, dim);
      if (listed(global_ranges(layout, rank, dim)) != wanted || simulated::held(layout, rank, dim) != wanted ||
          local_sizes(layout, rank)[dim] != static_cast<std::int64_t>(wanted.size()))
        return layout.text();
      if (global_ranges(layout, rank, dim).size() > 1) return layout.text() + " has several ranges";
    }
  }
  return "";
}

// Runs `check` with every use of the axes: one that shards, at most one that replicates, and inner axes after them.
void for_each_use(const MeshShape& root, const std::function<void(const Case&)>& check) {
  const auto num_axes = static_cast<std::size_t>(root.num_axes());
  for (std::size_t shards = 0; shards < num_axes; ++shards)
    for (std::size_t replicates = 0; replicates < num_axes; ++replicates) {  // equal: none
      const std::size_t first_inner = std::max(shards, replicates) + 1;
      std::size_t num_cases = 1;
      for (std::size_t axis = first_inner; axis < num_axes; ++axis) num_cases *= 4;
      for (std::size_t number = 0; number < num_cases; ++number) {
        Case one{root, std::vector<Use>(num_axes, Use::unused), 0};
        one.uses[replicates] = Use::replicates;
        one.uses[shards] = Use::shards;
        bool has_inner = false;
        for (std::size_t axis = first_inner, rest = number; axis < num_axes; ++axis, rest /= 4) {
          constexpr Use uses[] = {Use::unused, Use::inner_replicates, Use::inner_shards_0, Use::inner_shards_1};
          one.uses[axis] = uses[rest % 4];
          has_inner = has_inner || one.is_inner(axis);
        }
        if (!has_inner) continue;
        for (one.dim = 0; one.dim < 2; ++one.dim) check(one);
      }
    }
}

TEST(Compose, GivesEveryRankItsRowsOnMeshesOfUpToFourAxes) {
  int num_checked = 0;
  for (int num_axes = 2; num_axes <= 4; ++num_axes)
    for (const MeshShape& root : meshes_of(num_axes, num_axes == 4 ? 8 : 16))
      for_each_use(root, [&](const Case& one) {
        for (const std::int64_t size : {1, 2, 3, 4, 5, 6, 7, 8, 9}) {
          if (num_axes == 4 && size % 4 == 0) continue;  // as even as 2
          EXPECT_EQ(differs(one, one.dim == 0 ? Dims{size, 5} : Dims{5, size}), "") << root.text();
          ++num_checked;
        }
      });
  EXPECT_GT(num_checked, 10000);
}

TEST(Compose, GivesEveryRankItsRowsOnAFullMeshOfSixteen) {
  for (const std::int64_t size : {1, 7, 9, 16, 17})
    for_each_use(MeshShape({2, 2, 2, 2}, {"a", "b", "c", "d"}), [size](const Case& one) {
      EXPECT_EQ(differs(one, {size, size}), "");
    });
}

// Gathering the shards of simulated ranks gives the rows in their order, with one all-gather per sharded axis.
TEST(Compose, CanBeGatheredInOrder) {
  const MeshShape root({2, 3, 2}, {"replicate", "shard", "tp"});
  for (std::int64_t rows = 1; rows <= 13; ++rows) {
    const ShardedLayout layout = compose("w", {root, root.slice({"replicate", "shard"}, 0), 1},
                                         {root.slice({"tp"}, 0), {shard(0)}, {rows, 2}}, 0, 0);
    EXPECT_EQ(to_text(layout.placements), "(Replicate, StridedShard(0, 2), Shard(0))");
    const ShardedLayout full = with_placements(layout, {replicate(), replicate(), replicate()});
    const std::vector<RedistributeStep> steps = redistribute_steps(layout, full);
    EXPECT_EQ(simulated::cost_of(steps).num_all_gather, 2);
    simulated::Ranks ranks(root);
    for (const int rank : root.ranks()) {
      const Indices held = simulated::held(layout, rank, 0);
      ranks.at(rank) = simulated::build({static_cast<std::int64_t>(held.size()), 2}, [&](const Dims& index) {
        return static_cast<double>(2 * held[static_cast<std::size_t>(index[0])] + index[1]);
      });
    }
    for (const RedistributeStep& step : steps) ranks.run(step);
    for (const int rank : root.ranks())
      for (std::int64_t i = 0; i < 2 * rows; ++i)
        ASSERT_EQ(ranks.at(rank).values.at(static_cast<std::size_t>(i)), static_cast<double>(i));
  }
}

TEST(Compose, KeepsTheOrderOfBothMeshes) {
  const MeshShape root({2, 2, 2, 2}, {"pp", "shard", "replicate", "tp"});
  const ShardedLayout layout =
      compose("w", {root, root.slice({"replicate", "shard"}, 9), 1}, {root.slice({"tp"}, 9), {shard(1)}, {4, 4}}, 0, 9);
  EXPECT_EQ(layout.text(), "(4, 4) as (Replicate, Shard(0), Shard(1)) on replicate 2 x shard 2 x tp 2");
  EXPECT_THAT(layout.mesh.ranks(), ::testing::ElementsAre(8, 9, 12, 13, 10, 11, 14, 15));
  // A slice in another order shards in another order.
  const MeshShape cube({2, 2, 2}, {"dp", "a", "b"});
  for (const int rank : cube.ranks()) {
    const MeshShape swapped = cube.slice({"b", "a"}, rank);
    const ShardedLayout made =
        compose("w", {cube, cube.slice({"dp"}, rank), 0}, {swapped, {shard(0), shard(0)}, {8}}, 0, rank);
    const std::vector<int> at = cube.coordinates_of(rank);
    EXPECT_THAT(global_ranges(made, rank, 0), ::testing::ElementsAre(Chunk{4 * at[2] + 2 * at[1] + at[0], 1}));
  }
}

// Four ranks of the shard axis keep a tensor of seven rows in pairs.
TEST(Compose, KeepsShardsAmongFewerRanks) {
  const MeshShape root({2, 4, 2}, {"replicate", "shard", "tp"});
  const ShardedLayout inner{root.slice({"tp"}, 3), {shard(0)}, {7, 3}};
  for (const int rank : root.ranks()) {
    const std::vector<int> at = root.coordinates_of(rank);
    const DataParallelAxes axes{root, root.slice({"replicate", "shard"}, rank), 1};
    ShardedLayout mine = inner;
    mine.mesh = root.slice({"tp"}, rank);
    const ShardedLayout kept = kept_layout(axes, &mine, {}, 0, 2, rank);
    EXPECT_EQ(kept.text(),
              "(7, 3) as (Replicate, StridedShard(0, 2), Shard(0)) on kept_replicate 2 x kept_shard 2 x tp 2");
    EXPECT_EQ(listed(global_ranges(kept, rank, 0)), ceiling_chunk(ceiling_chunk(counted(7), 2, at[2]), 2, at[1] % 2));
    const ShardedLayout plain = kept_layout(axes, nullptr, {7, 3}, 0, 2, rank);
    EXPECT_EQ(plain.text(), "(7, 3) as (Replicate, Shard(0)) on kept_replicate 2 x kept_shard 2");
    EXPECT_EQ(listed(global_ranges(plain, rank, 0)), ceiling_chunk(counted(7), 2, at[1] % 2));
  }
}

TEST(Compose, RefusesMeshesThatDoNotFit) {
  const MeshShape root({2, 2}, {"dp", "tp"}), other({2, 2}, {"x", "y"}, {0, 2, 1, 3});
  const MeshShape dp = root.slice({"dp"}, 0), tp = root.slice({"tp"}, 0);
  const auto refusal = [](const DataParallelAxes& axes, const ShardedLayout& inner) {
    return error_of([&] { compose("`w` of m", axes, inner, 0, 0); });
  };
  EXPECT_THAT(refusal({root, tp, 0}, {dp, {shard(0)}, {4}}),
              AllOf(HasSubstr("`w` of m is (4,) as (Shard(0)) on dp 2"),
                    HasSubstr("Found TP device_mesh on the 0 dimension of its parent mesh dp 2 x tp 2"),
                    HasSubstr("comes after `tp`")));
  EXPECT_THAT(refusal({root, dp, 0}, {dp, {shard(0)}, {4}}), HasSubstr("distributed over the axis `dp` already"));
  EXPECT_THAT(refusal({root, dp, 0}, {root, {replicate(), shard(0)}, {4}}), HasSubstr("the axis `dp` already"));
  EXPECT_THAT(refusal({dp, dp, 0}, {tp, {shard(0)}, {4}}),
              HasSubstr("the DP and TP mesh to have the same parent mesh"));
  EXPECT_THAT(refusal({root, dp, 0}, {other.slice({"y"}, 0), {shard(0)}, {4}}), HasSubstr("not a slice of the mesh"));
  EXPECT_THAT(refusal({root, dp, 0}, {tp, {partial()}, {4}}), HasSubstr("a partial tensor has no shards"));
  EXPECT_THAT(error_of([&] {
                compose("`w` of m", {root, dp, 0}, {tp, {shard(0)}, {4}}, 1, 0);
              }),
              HasSubstr("Shard(1) of a tensor of sizes (4,)"));
}

}  // namespace
}  // namespace lockstep::layout
