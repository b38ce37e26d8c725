#include "engine/mesh/sharding_rules.hpp"

#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/core/error.hpp"

namespace lockstep::sharding {
namespace {

using layout::MeshShape;
using layout::partial;
using layout::PartialOp;
using layout::Placement;
using layout::replicate;
using layout::shard;
using layout::strided_shard;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const MeshShape mesh({2, 2}, {"dp", "tp"});

ShardedLayout layout_of(const Dims& sizes, std::vector<Placement> placements) {
  return {mesh, std::move(placements), sizes};
}

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(ShardingRules, KeepEqualLayouts) {
  for (const std::vector<Placement>& placements :
       {std::vector<Placement>{shard(0), shard(1)}, {strided_shard(0, 2), shard(0)}, {replicate(), replicate()}}) {
    const ShardedLayout a = layout_of({6, 4}, placements);
    const Binary rule = elementwise("add", a, a, Keeps::nothing);
    EXPECT_EQ(rule.a, a);
    EXPECT_EQ(rule.b, a);
    EXPECT_EQ(rule.result, a);
    EXPECT_EQ(rule.a_grad, a);
  }
}

TEST(ShardingRules, BroadcastOneElementToShards) {
  // (6, 1) replicated with (6, 4) sharded along the columns: the gradient of the first is partial.
  const Binary rule = elementwise("mul", layout_of({6, 1}, {shard(0), replicate()}),
                                  layout_of({6, 4}, {shard(0), shard(1)}), Keeps::nothing);
  EXPECT_THAT(rule.result.placements, ElementsAre(shard(0), shard(1)));
  EXPECT_EQ(rule.result.sizes, (Dims{6, 4}));
  EXPECT_THAT(rule.a_grad.placements, ElementsAre(shard(0), partial()));
  EXPECT_EQ(rule.b_grad, rule.b);
  // Operands with fewer dims are aligned at the last dim.
  const Binary row = elementwise("mul", layout_of({5, 6, 4}, {shard(1), shard(2)}),
                                 layout_of({4}, {replicate(), shard(0)}), Keeps::nothing);
  EXPECT_THAT(row.result.placements, ElementsAre(shard(1), shard(2)));
  EXPECT_THAT(row.b_grad.placements, ElementsAre(partial(), shard(0)));
  const Binary scalar = elementwise("div", layout_of({4}, {shard(0), replicate()}),
                                    layout_of({}, {replicate(), partial()}), Keeps::nothing);
  EXPECT_THAT(scalar.b.placements, ElementsAre(replicate(), replicate()));
  EXPECT_THAT(scalar.b_grad.placements, ElementsAre(partial(), replicate()));
}

TEST(ShardingRules, RefuseShardsThatDoNotMatch) {
  const auto text = [](const ShardedLayout& a, const ShardedLayout& b) {
    return error_of([&] { elementwise("add", a, b, Keeps::nothing); });
  };
  const char* remedy = "redistribute one of them to the layout of the other";
  EXPECT_THAT(text(layout_of({6, 4}, {shard(0), replicate()}), layout_of({6, 4}, {shard(1), replicate()})),
              HasSubstr(remedy));
  EXPECT_THAT(text(layout_of({6, 4}, {shard(0), replicate()}), layout_of({6, 4}, {replicate(), replicate()})),
              HasSubstr(remedy));
  EXPECT_THAT(text(layout_of({6, 4}, {strided_shard(0, 2), shard(0)}), layout_of({6, 4}, {shard(0), shard(0)})),
              HasSubstr(remedy));
  EXPECT_THAT(text(layout_of({1, 4}, {shard(0), replicate()}), layout_of({6, 4}, {shard(0), replicate()})),
              HasSubstr(remedy));
  EXPECT_THAT(text(layout_of({6}, {shard(0), replicate()}), {MeshShape({4}, {"dp"}), {shard(0)}, {6}}),
              HasSubstr(remedy));
  EXPECT_THAT(text(layout_of({6}, {shard(0), replicate()}), layout_of({5}, {shard(0), replicate()})), HasSubstr("add"));
}

TEST(ShardingRules, KeepPartialPlacementsInLinearOperations) {
  const ShardedLayout sum = layout_of({4}, {partial(), replicate()}),
                      mean = layout_of({4}, {partial(PartialOp::mean), replicate()});
  const ShardedLayout largest = layout_of({4}, {partial(PartialOp::max), replicate()});
  const ShardedLayout replicated = layout_of({4}, {replicate(), replicate()});
  EXPECT_EQ(reduced(sum, Keeps::sums), sum);
  EXPECT_EQ(reduced(mean, Keeps::sums), mean);
  EXPECT_EQ(reduced(largest, Keeps::sums), replicated);
  EXPECT_EQ(reduced(largest, Keeps::all), largest);
  EXPECT_EQ(reduced(sum, Keeps::nothing), replicated);
  EXPECT_EQ(elementwise("add", sum, sum, Keeps::sums).result, sum);
  EXPECT_EQ(elementwise("add", sum, sum, Keeps::sums).a_grad, replicated);
  EXPECT_EQ(elementwise("mul", sum, sum, Keeps::nothing).result, replicated);
  // A sum with a mean, or partial with replicated: both are reduced first.
  EXPECT_EQ(elementwise("add", sum, mean, Keeps::sums).result, replicated);
  const Binary mixed = elementwise("add", sum, replicated, Keeps::sums);
  EXPECT_EQ(mixed.a, replicated);
  EXPECT_EQ(mixed.result, replicated);
}

TEST(ShardingRules, SumsOverShardedDimsArePartial) {
  const ShardedLayout a = layout_of({6, 4, 2}, {shard(0), shard(2)});
  const Unary rows = sum(a, {0}, false);
  EXPECT_EQ(rows.operand, a);
  EXPECT_EQ(rows.result, layout_of({4, 2}, {partial(), shard(1)}));
  EXPECT_EQ(sum(a, {0}, true).result, layout_of({1, 4, 2}, {partial(), shard(2)}));
  EXPECT_EQ(sum(a, {1}, false).result, layout_of({6, 2}, {shard(0), shard(1)}));
  EXPECT_EQ(sum(a, {-1, 0}, false).result, layout_of({4}, {partial(), partial()}));
  EXPECT_EQ(sum(layout_of({6}, {partial(), shard(0)}), {0}, false).result, layout_of({}, {partial(), partial()}));
  EXPECT_EQ(sum(layout_of({6}, {partial(PartialOp::max), shard(0)}), {0}, false).operand,
            layout_of({6}, {replicate(), shard(0)}));
  EXPECT_THAT(error_of([&] { sum(a, {3}, false); }), HasSubstr("sum"));
}

TEST(ShardingRules, PlacementsFollowTheirDims) {
  const ShardedLayout a = layout_of({6, 4, 2}, {shard(0), strided_shard(2, 2)});
  EXPECT_EQ(permute(a, {2, 0, 1}).result, layout_of({2, 6, 4}, {shard(1), strided_shard(0, 2)}));
  EXPECT_EQ(permute(a, {-1, 1, 0}).result, layout_of({2, 4, 6}, {shard(2), strided_shard(0, 2)}));
  EXPECT_EQ(unsqueeze(a, 1).result, layout_of({6, 1, 4, 2}, {shard(0), strided_shard(3, 2)}));
  EXPECT_EQ(unsqueeze(a, -1).result, layout_of({6, 4, 2, 1}, {shard(0), strided_shard(2, 2)}));
  EXPECT_EQ(along("max", a, 1, Dim::removed).result, layout_of({6, 2}, {shard(0), strided_shard(1, 2)}));
  EXPECT_EQ(along("max", a, 1, Dim::kept_as_one).result, layout_of({6, 1, 2}, {shard(0), strided_shard(2, 2)}));
  EXPECT_EQ(along("softmax", a, -2, Dim::unchanged).result, a);
  EXPECT_THAT(error_of([&] { along("softmax", a, -1, Dim::unchanged); }),
              HasSubstr("softmax: along dim 2 of (6, 4, 2)"));
}

TEST(ShardingRules, ProductsFollowTheirOperands) {
  const ShardedLayout a = layout_of({5, 4}, {shard(0), shard(1)}), b = layout_of({4, 6}, {replicate(), shard(0)});
  const Binary rule = matmul(a, b);
  EXPECT_EQ(rule.result, layout_of({5, 6}, {shard(0), partial()}));
  EXPECT_EQ(rule.a_grad, a);
  EXPECT_EQ(rule.b_grad, layout_of({4, 6}, {partial(), shard(0)}));
  EXPECT_THAT(error_of([&] {
                matmul(a, layout_of({5, 6}, {replicate(), shard(0)}));
              }),
              HasSubstr("give equal inner sizes"));
  EXPECT_THAT(error_of([&] {
                matmul(layout_of({5, 4}, {shard(1), replicate()}), layout_of({4, 6}, {replicate(), replicate()}));
              }),
              HasSubstr("shard both along the inner dim"));
  EXPECT_THAT(error_of([&] {
                matmul(layout_of({4}, {replicate(), replicate()}), b);
              }),
              HasSubstr("unsqueeze the vector"));

  const ShardedLayout bias = layout_of({6}, {replicate(), replicate()});
  const Linear rowwise = linear(a, layout_of({6, 4}, {replicate(), shard(1)}), &bias);
  EXPECT_EQ(rowwise.result, layout_of({5, 6}, {shard(0), partial()}));
  EXPECT_EQ(rowwise.bias, layout_of({6}, {replicate(), partial()}));  // added once
  EXPECT_EQ(rowwise.bias_grad, layout_of({6}, {partial(), replicate()}));
  EXPECT_EQ(rowwise.weight_grad, layout_of({6, 4}, {partial(), shard(1)}));
  const ShardedLayout sharded = layout_of({6}, {shard(0), replicate()});
  EXPECT_THAT(error_of([&] {
                linear(a, layout_of({6, 4}, {replicate(), shard(1)}), &sharded);
              }),
              HasSubstr("replicate the bias"));
  EXPECT_EQ(embedding(layout_of({8, 4}, {shard(0), shard(1)}), layout_of({3}, {replicate(), replicate()})).result,
            layout_of({3, 4}, {partial(), shard(1)}));
  EXPECT_THAT(error_of([&] {
                embedding(layout_of({8, 4}, {shard(0), replicate()}), layout_of({3}, {shard(0), replicate()}));
              }),
              HasSubstr("shard the weight or the indices"));
}

}  // namespace
}  // namespace lockstep::sharding
