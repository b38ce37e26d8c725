#include "engine/layout/placement.hpp"

#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/core/error.hpp"
#include "engine/layout/simulated_ranks.hpp"

namespace lockstep::layout {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::int64_t> rows(const ShardedLayout& layout) {
  std::vector<std::int64_t> all;
  for (const int rank : layout.mesh.ranks()) all.push_back(local_sizes(layout, rank)[0]);
  return all;
}

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Placement, ShardsByCeilingDivision) {
  const MeshShape mesh({4}, {"dp"});
  EXPECT_THAT(rows({mesh, {shard(0)}, {2, 3}}), ElementsAre(1, 1, 0, 0));
  EXPECT_THAT(rows({mesh, {shard(0)}, {5, 3}}), ElementsAre(2, 2, 1, 0));
  EXPECT_THAT(rows({mesh, {shard(1)}, {5, 3}}), ElementsAre(5, 5, 5, 5));
  const ShardedLayout columns{mesh, {shard(1)}, {5, 6}};
  EXPECT_EQ(local_sizes(columns, 3), (Dims{5, 0}));
  EXPECT_THAT(global_ranges(columns, 2, 1), ElementsAre(Chunk{4, 2}));
  EXPECT_THAT(global_ranges(columns, 3, 1), IsEmpty());
  EXPECT_THAT(global_ranges(columns, 3, 0), ElementsAre(Chunk{0, 5}));
}

TEST(Placement, StridedShardSplitsShardsOfInnerAxis) {
  const MeshShape mesh({2, 2}, {"dp", "tp"});
  const ShardedLayout layout{mesh, {strided_shard(0, 2), shard(0)}, {9, 4}};
  // Ranks in order: (dp 0, tp 0), (dp 0, tp 1), (dp 1, tp 0), (dp 1, tp 1).
  EXPECT_THAT(rows(layout), ElementsAre(3, 2, 2, 2));
  EXPECT_THAT(global_ranges(layout, 0, 0), ElementsAre(Chunk{0, 3}));
  EXPECT_THAT(global_ranges(layout, 1, 0), ElementsAre(Chunk{5, 2}));
  EXPECT_THAT(global_ranges(layout, 2, 0), ElementsAre(Chunk{3, 2}));
  EXPECT_THAT(global_ranges(layout, 3, 0), ElementsAre(Chunk{7, 2}));
  // Not strided: dp shards first.
  EXPECT_THAT(rows({mesh, {shard(0), shard(0)}, {9, 4}}), ElementsAre(3, 2, 2, 2));
  EXPECT_THAT(global_ranges({mesh, {shard(0), shard(0)}, {9, 4}}, 1, 0), ElementsAre(Chunk{3, 2}));
}

TEST(Placement, StridedShardHoldsSeveralRangesWhenInnerAxisReplicates) {
  const MeshShape mesh({2, 2}, {"dp", "tp"});
  const ShardedLayout gathered{mesh, {strided_shard(0, 2), replicate()}, {9, 4}};
  EXPECT_THAT(global_ranges(gathered, 0, 0), ElementsAre(Chunk{0, 3}, Chunk{5, 2}));
  EXPECT_THAT(global_ranges(gathered, 3, 0), ElementsAre(Chunk{3, 2}, Chunk{7, 2}));
  EXPECT_EQ(local_sizes(gathered, 1), (Dims{5, 4}));
}

TEST(Placement, RangesAndSizesMatchElementwiseReference) {
  const MeshShape mesh({2, 3, 2}, {"a", "b", "c"});
  const std::vector<Placement> kinds = {
      replicate(), shard(0), shard(1), strided_shard(0, 2), strided_shard(0, 6), strided_shard(1, 12)};
  int num_checked = 0;
  for (const Placement& a : kinds)
    for (const Placement& b : kinds)
      for (const Placement& c : kinds)
        for (std::int64_t size = 0; size <= 25; ++size) {
          const ShardedLayout layout{mesh, {a, b, c}, {size, 25 - size}};
          if (error_of([&] { check(layout); }) != "no error") continue;
          for (const int rank : mesh.ranks())
            for (int dim = 0; dim < 2; ++dim) {
              simulated::Indices expected = simulated::held(layout, rank, dim), indices;
              for (const Chunk& range : global_ranges(layout, rank, dim))
                for (std::int64_t i = 0; i < range.length; ++i) indices.push_back(range.begin + i);
              ASSERT_EQ(indices, expected) << layout.text() << " rank " << rank << " dim " << dim;
              ASSERT_EQ(local_sizes(layout, rank)[dim], static_cast<std::int64_t>(expected.size()));
              ++num_checked;
            }
        }
  EXPECT_GT(num_checked, 50000);
}

TEST(Placement, RefusesInvalidLayouts) {
  const MeshShape mesh({2, 2}, {"dp", "tp"});
  EXPECT_THAT(error_of([&] { check({mesh, {shard(0)}, {4}}); }), HasSubstr("one placement per mesh axis"));
  EXPECT_THAT(error_of([&] {
                check({mesh, {shard(1), replicate()}, {4}});
              }),
              HasSubstr("Shard(1) of a tensor of sizes (4,)"));
  EXPECT_THAT(error_of([&] {
                check({mesh, {strided_shard(0, 3), shard(0)}, {4}});
              }),
              HasSubstr("the later axes split the dim into 2 shards"));
  EXPECT_THAT(error_of([&] {
                check({mesh, {partial(PartialOp::max), partial()}, {4}});
              }),
              HasSubstr("their order of reduction matters"));
  EXPECT_EQ(error_of([&] { check({mesh, {partial(PartialOp::mean), partial()}, {4}}); }), "no error");
}

TEST(Placement, RoundTripsThroughText) {
  for (const Placement& placement : {replicate(), shard(3), shard(-1), strided_shard(1, 4), partial(),
                                     partial(PartialOp::mean), partial(PartialOp::product)})
    EXPECT_EQ(placement_from_text(to_text(placement)), placement);
  for (const char* text :
       {"", "Shard", "Shard()", "Shard(0", "Shard(x)", "StridedShard(0)", "Partial(none)", "replicate"})
    EXPECT_THAT(error_of([&] { placement_from_text(text); }), HasSubstr("is not a placement")) << text;
}

TEST(Placement, GradientLayoutReplicatesPartialAxes) {
  const MeshShape mesh({2, 2}, {"dp", "tp"});
  const auto plain = std::make_shared<const ShardedLayout>(ShardedLayout{mesh, {shard(0), replicate()}, {4}});
  EXPECT_EQ(gradient_layout(plain), plain);
  EXPECT_EQ(gradient_layout(nullptr), nullptr);
  const auto sum = std::make_shared<const ShardedLayout>(ShardedLayout{mesh, {shard(0), partial()}, {4}});
  EXPECT_EQ(*gradient_layout(sum), *plain);
  EXPECT_EQ(sum->text(), "(4,) as (Shard(0), Partial(sum)) on dp 2 x tp 2");
}

}  // namespace
}  // namespace lockstep::layout
