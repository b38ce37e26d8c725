// The steps between every pair of layouts, run on the simulated shards of all ranks.
#include "engine/layout/redistribute.hpp"

#include <functional>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/core/error.hpp"
#include "engine/layout/simulated_ranks.hpp"

namespace lockstep::layout {
namespace {

using simulated::Local;
using simulated::Ranks;
using ::testing::HasSubstr;

// Never zero, and divisible by every number of ranks in these tests.
double global_value(const Dims& index) {
  std::int64_t at = 1;
  for (const std::int64_t i : index) at = at * 11 + i;
  return static_cast<double>(at) * 24.0;
}

Dims global_index(const ShardedLayout& layout, int rank, const Dims& local) {
  Dims index = local;
  for (int dim = 0; dim < local.size(); ++dim)
    index[dim] = simulated::held(layout, rank, dim)[static_cast<std::size_t>(local[dim])];
  return index;
}

// A rank's place among the ranks that reduce a value: their number, its index, and how many of them a sum adds up.
struct Share {
  int count = 1, index = 0, num_added = 1;
  PartialOp op = PartialOp::sum;
};
Share share_of(const ShardedLayout& layout, int rank) {
  Share share;
  const std::vector<int> at = layout.mesh.coordinates_of(rank);
  for (std::size_t axis = 0; axis < layout.placements.size(); ++axis) {
    if (!layout.placements[axis].is_partial()) continue;
    const int size = layout.mesh.size(static_cast<int>(axis));
    share.index = share.index * size + at[axis];
    share.count *= size;
    share.op = layout.placements[axis].op;
    if (share.op == PartialOp::sum) share.num_added *= size;
  }
  return share;
}

// The contribution of a rank to a value: the contributions differ between ranks and reduce to the value.
double local_value(double value, const Share& share) {
  const double offset = 2.0 * share.index - (share.count - 1);  // adds up to zero
  switch (share.op) {
    case PartialOp::sum:
    case PartialOp::mean:
      return value / share.num_added + offset;
    case PartialOp::max:
      return share.index == share.count - 1 ? value : value - 5.0 - share.index;
    case PartialOp::min:
      return share.index == 0 ? value : value + share.index;
    case PartialOp::product:
      return (share.index == 0 ? value : 1.0) * std::exp2(offset);
  }
  return 0.0;
}

Ranks start(const ShardedLayout& layout) {
  Ranks ranks(layout.mesh);
  for (const int rank : layout.mesh.ranks()) {
    const Share share = share_of(layout, rank);
    Dims sizes = layout.sizes;
    for (int dim = 0; dim < sizes.size(); ++dim)
      sizes[dim] = static_cast<std::int64_t>(simulated::held(layout, rank, dim).size());
    ranks.at(rank) = simulated::build(
        sizes, [&](const Dims& index) { return local_value(global_value(global_index(layout, rank, index)), share); });
  }
  return ranks;
}

// "" when all ranks hold the shards of the layout, else the first difference.
std::string wrong(Ranks& ranks, const ShardedLayout& layout) {
  for (const int rank : layout.mesh.ranks()) {
    Local& local = ranks.at(rank);
    Dims sizes = layout.sizes;
    for (int dim = 0; dim < sizes.size(); ++dim)
      sizes[dim] = static_cast<std::int64_t>(simulated::held(layout, rank, dim).size());
    if (!(local.sizes == sizes))
      return str("rank ", rank, " holds ", to_text(local.sizes), " instead of ", to_text(sizes));
  }
  // Reduced along every partial axis, each element is the global one.
  Ranks reduced = ranks;
  for (int axis = layout.mesh.num_axes() - 1; axis >= 0; --axis)
    if (const Placement& placement = layout.placements[static_cast<std::size_t>(axis)]; placement.is_partial())
      reduced.run({axis, RedistributeOp::all_reduce, placement.op, {}, {}});
  for (const int rank : layout.mesh.ranks()) {
    const Local& local = reduced.at(rank);
    std::string found;
    simulated::build(local.sizes, [&](const Dims& index) {
      const double value = simulated::value_at(local, index);
      const double expected = global_value(global_index(layout, rank, index));
      if (found.empty() && !(std::fabs(value - expected) <= 1e-9 * expected))
        found = str("rank ", rank, " holds ", value, " at ", to_text(index), " instead of ", expected);
      return 0.0;
    });
    if (!found.empty()) return found;
  }
  return "";
}

bool holds(const ShardedLayout& layout) {
  try {
    check(layout);
    return true;
  } catch (const Error&) {
    return false;
  }
}

// All layouts of the mesh with these placements.
std::vector<ShardedLayout> layouts_of(const MeshShape& mesh, const std::vector<Placement>& kinds, const Dims& sizes) {
  std::vector<ShardedLayout> all;
  std::vector<std::size_t> pick(static_cast<std::size_t>(mesh.num_axes()), 0);
  while (true) {
    std::vector<Placement> placements;
    for (const std::size_t i : pick) placements.push_back(kinds[i]);
    if (ShardedLayout layout{mesh, placements, sizes}; holds(layout)) all.push_back(layout);
    std::size_t axis = 0;
    while (axis < pick.size() && ++pick[axis] == kinds.size()) pick[axis++] = 0;
    if (axis == pick.size()) return all;
  }
}

bool is_allowed(const ShardedLayout& from, const ShardedLayout& to) {
  for (std::size_t axis = 0; axis < to.placements.size(); ++axis)
    if (to.placements[axis].is_partial() && !from.placements[axis].is_replicate() &&
        !(from.placements[axis] == to.placements[axis]))
      return false;
  return true;
}

// Runs the steps from one layout to the other; counts the pairs.
void check_pair(const ShardedLayout& from, const ShardedLayout& to, const Ranks& at_start, int& num_run) {
  if (!is_allowed(from, to)) {
    EXPECT_THROW(redistribute_steps(from, to), Error) << from.text() << " to " << to.text();
    return;
  }
  Ranks ranks = at_start;
  const std::vector<RedistributeStep> steps = redistribute_steps(from, to);
  for (const RedistributeStep& step : steps) ranks.run(step);
  const std::string what = wrong(ranks, to);
  ASSERT_EQ(what, "") << from.text() << " to " << to.text();
  // No axis costs more than one collective.
  ASSERT_LE(simulated::cost_of(steps).total(), from.mesh.num_axes()) << from.text() << " to " << to.text();
  ASSERT_TRUE(!(from == to) || steps.empty());
  ++num_run;
}

void check_all(const MeshShape& mesh, const std::vector<Placement>& kinds, const std::vector<std::int64_t>& sizes,
               int at_least) {
  int num_run = 0;
  for (const std::int64_t size : sizes) {
    const std::vector<ShardedLayout> layouts = layouts_of(mesh, kinds, Dims{size});
    for (const ShardedLayout& from : layouts) {
      const Ranks at_start = start(from);
      for (const ShardedLayout& to : layouts) {
        check_pair(from, to, at_start, num_run);
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
  EXPECT_GE(num_run, at_least);
}

const std::vector<std::int64_t> zero_to_nine = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};

TEST(Redistribute, ConnectsEveryPairOnOneAxis) {
  for (const int size : {1, 2, 3, 4, 5})
    check_all(MeshShape({size}, {"dp"}),
              {replicate(), shard(0), strided_shard(0, 1), strided_shard(0, 2), strided_shard(0, 3), partial(),
               partial(PartialOp::mean), partial(PartialOp::max), partial(PartialOp::min), partial(PartialOp::product)},
              zero_to_nine, 400);
}

TEST(Redistribute, ConnectsEveryPairOnTwoAxes) {
  for (const std::vector<int>& sizes : {std::vector<int>{2, 2}, {2, 3}, {3, 2}, {1, 4}})
    check_all(MeshShape(sizes, {"dp", "tp"}),
              {replicate(), shard(0), strided_shard(0, 1), strided_shard(0, 2), strided_shard(0, 3),
               strided_shard(0, 4), partial(), partial(PartialOp::mean), partial(PartialOp::max)},
              zero_to_nine, 5000);
}

TEST(Redistribute, ConnectsEveryPairOnThreeAxes) {
  check_all(MeshShape({2, 2, 2}, {"pp", "dp", "tp"}),
            {replicate(), shard(0), strided_shard(0, 2), strided_shard(0, 4), partial()}, zero_to_nine, 20000);
}

TEST(Redistribute, ConnectsSampledPairsOfMatrixLayouts) {
  const unsigned seed = 20240817;
  SCOPED_TRACE(str("seed ", seed));
  std::mt19937 generator(seed);
  const auto draw = [&](int count) { return static_cast<int>(generator() % static_cast<unsigned>(count)); };
  const std::vector<std::vector<int>> meshes = {{4}, {2, 2}, {3, 2}, {2, 4}, {2, 2, 2}, {2, 3, 2}};
  const std::vector<Placement> kinds = {replicate(),         shard(0),  shard(1),
                                        strided_shard(0, 2), partial(), partial(PartialOp::mean),
                                        strided_shard(1, 4), shard(0),  shard(1)};
  int num_run = 0;
  while (num_run < 10000 && !HasFailure()) {
    const MeshShape mesh(meshes[static_cast<std::size_t>(draw(static_cast<int>(meshes.size())))]);
    const Dims sizes{draw(8), draw(8)};
    std::vector<Placement> a, b;
    for (int axis = 0; axis < mesh.num_axes(); ++axis) {
      a.push_back(kinds[static_cast<std::size_t>(draw(static_cast<int>(kinds.size())))]);
      b.push_back(kinds[static_cast<std::size_t>(draw(static_cast<int>(kinds.size())))]);
    }
    const ShardedLayout from{mesh, a, sizes}, to{mesh, b, sizes};
    if (holds(from) && holds(to)) check_pair(from, to, start(from), num_run);
  }
}

simulated::RedistributeCost cost(const MeshShape& mesh, const std::vector<Placement>& from,
                                 const std::vector<Placement>& to, const Dims& sizes = {9, 6}) {
  return simulated::cost_of(redistribute_steps({mesh, from, sizes}, {mesh, to, sizes}));
}

TEST(Redistribute, CostsDocumentedCollectives) {
  const MeshShape one({4}, {"tp"});
  EXPECT_EQ(cost(one, {shard(0)}, {replicate()}), (simulated::RedistributeCost{1, 0, 0, 0}));
  EXPECT_EQ(cost(one, {partial()}, {replicate()}), (simulated::RedistributeCost{0, 1, 0, 0}));
  EXPECT_EQ(cost(one, {partial()}, {shard(1)}), (simulated::RedistributeCost{0, 0, 1, 0}));
  EXPECT_EQ(cost(one, {shard(0)}, {shard(1)}), (simulated::RedistributeCost{0, 0, 0, 1}));
  EXPECT_EQ(cost(one, {replicate()}, {shard(1)}), (simulated::RedistributeCost{}));
  EXPECT_EQ(cost(one, {replicate()}, {partial()}), (simulated::RedistributeCost{}));
  const MeshShape two({2, 2}, {"dp", "tp"});
  EXPECT_EQ(cost(two, {strided_shard(0, 2), shard(0)}, {replicate(), replicate()}),
            (simulated::RedistributeCost{2, 0, 0, 0}));
  EXPECT_EQ(cost(two, {strided_shard(0, 2), shard(0)}, {replicate(), shard(0)}),
            (simulated::RedistributeCost{1, 0, 0, 0}));
  EXPECT_EQ(cost(two, {partial(), partial()}, {shard(0), shard(1)}), (simulated::RedistributeCost{0, 0, 2, 0}));
  EXPECT_EQ(cost(two, {replicate(), partial()}, {shard(0), shard(0)}), (simulated::RedistributeCost{0, 0, 1, 0}));
  // Two axes that swap dims: one is gathered, the other exchanged.
  EXPECT_EQ(cost(two, {shard(0), shard(1)}, {shard(1), shard(0)}), (simulated::RedistributeCost{1, 0, 0, 1}));
  // Of two axes that shard one dim, the outer sharding can be removed only after the inner one.
  EXPECT_EQ(cost(two, {shard(0), shard(0)}, {replicate(), shard(0)}), (simulated::RedistributeCost{2, 0, 0, 0}));
}

TEST(Redistribute, RefusesImpossiblePairs) {
  const MeshShape mesh({2}, {"tp"});
  const auto error_of = [](const ShardedLayout& from, const ShardedLayout& to) {
    try {
      redistribute_steps(from, to);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_THAT(error_of({mesh, {shard(0)}, {4}}, {mesh, {partial()}, {4}}), HasSubstr("Shard(0) becomes Partial(sum)"));
  EXPECT_THAT(error_of({mesh, {partial(PartialOp::max)}, {4}}, {mesh, {partial()}, {4}}),
              HasSubstr("only a replicated axis can be made partial"));
  EXPECT_THAT(error_of({mesh, {shard(0)}, {4}}, {mesh, {shard(0)}, {5}}), HasSubstr("keep mesh and sizes"));
  EXPECT_THAT(error_of({mesh, {shard(0)}, {4}}, {MeshShape({2}, {"dp"}), {shard(0)}, {4}}),
              HasSubstr("keep mesh and sizes"));
}

}  // namespace
}  // namespace lockstep::layout
