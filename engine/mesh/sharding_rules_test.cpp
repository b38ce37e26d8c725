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

ShardedLayout lay(const Dims& sizes, std::vector<Placement> placements) { return {mesh, std::move(placements), sizes}; }

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(ShardingRules, LikeLayoutsStay) {
  for (const std::vector<Placement>& placements :
       {std::vector<Placement>{shard(0), shard(1)}, {strided_shard(0, 2), shard(0)}, {replicate(), replicate()}}) {
    const ShardedLayout a = lay({6, 4}, placements);
    const Binary rule = elementwise("add", a, a, Keeps::nothing);
    EXPECT_EQ(rule.a, a);
    EXPECT_EQ(rule.b, a);
    EXPECT_EQ(rule.result, a);
    EXPECT_EQ(rule.a_grad, a);
  }
}

TEST(ShardingRules, BroadcastingAgainstOneElement) {
  // (6, 1) whole against (6, 4) cut along the columns: many parts met the one.
  const Binary rule =
      elementwise("mul", lay({6, 1}, {shard(0), replicate()}), lay({6, 4}, {shard(0), shard(1)}), Keeps::nothing);
  EXPECT_THAT(rule.result.placements, ElementsAre(shard(0), shard(1)));
  EXPECT_EQ(rule.result.sizes, (Dims{6, 4}));
  EXPECT_THAT(rule.a_grad.placements, ElementsAre(shard(0), partial()));
  EXPECT_EQ(rule.b_grad, rule.b);
  // Fewer dims: they are aligned at the last.
  const Binary row =
      elementwise("mul", lay({5, 6, 4}, {shard(1), shard(2)}), lay({4}, {replicate(), shard(0)}), Keeps::nothing);
  EXPECT_THAT(row.result.placements, ElementsAre(shard(1), shard(2)));
  EXPECT_THAT(row.b_grad.placements, ElementsAre(partial(), shard(0)));
  const Binary scalar =
      elementwise("div", lay({4}, {shard(0), replicate()}), lay({}, {replicate(), partial()}), Keeps::nothing);
  EXPECT_THAT(scalar.b.placements, ElementsAre(replicate(), replicate()));
  EXPECT_THAT(scalar.b_grad.placements, ElementsAre(partial(), replicate()));
}

TEST(ShardingRules, PartsThatDoNotMeetAreRefused) {
  const auto text = [](const ShardedLayout& a, const ShardedLayout& b) {
    return error_of([&] { elementwise("add", a, b, Keeps::nothing); });
  };
  const char* remedy = "redistribute one of them to the layout of the other";
  EXPECT_THAT(text(lay({6, 4}, {shard(0), replicate()}), lay({6, 4}, {shard(1), replicate()})), HasSubstr(remedy));
  EXPECT_THAT(text(lay({6, 4}, {shard(0), replicate()}), lay({6, 4}, {replicate(), replicate()})), HasSubstr(remedy));
  EXPECT_THAT(text(lay({6, 4}, {strided_shard(0, 2), shard(0)}), lay({6, 4}, {shard(0), shard(0)})), HasSubstr(remedy));
  EXPECT_THAT(text(lay({1, 4}, {shard(0), replicate()}), lay({6, 4}, {shard(0), replicate()})), HasSubstr(remedy));
  EXPECT_THAT(text(lay({6}, {shard(0), replicate()}), {MeshShape({4}, {"dp"}), {shard(0)}, {6}}), HasSubstr(remedy));
  EXPECT_THAT(text(lay({6}, {shard(0), replicate()}), lay({5}, {shard(0), replicate()})), HasSubstr("add"));
}

TEST(ShardingRules, PartialValuesGoThroughWhatIsLinear) {
  const ShardedLayout sum = lay({4}, {partial(), replicate()}),
                      mean = lay({4}, {partial(PartialOp::mean), replicate()});
  const ShardedLayout largest = lay({4}, {partial(PartialOp::max), replicate()});
  const ShardedLayout whole = lay({4}, {replicate(), replicate()});
  EXPECT_EQ(reduced(sum, Keeps::sums), sum);
  EXPECT_EQ(reduced(mean, Keeps::sums), mean);
  EXPECT_EQ(reduced(largest, Keeps::sums), whole);
  EXPECT_EQ(reduced(largest, Keeps::all), largest);
  EXPECT_EQ(reduced(sum, Keeps::nothing), whole);
  EXPECT_EQ(elementwise("add", sum, sum, Keeps::sums).result, sum);
  EXPECT_EQ(elementwise("add", sum, sum, Keeps::sums).a_grad, whole);
  EXPECT_EQ(elementwise("mul", sum, sum, Keeps::nothing).result, whole);
  // A sum and a mean, a partial and a whole one: both as values.
  EXPECT_EQ(elementwise("add", sum, mean, Keeps::sums).result, whole);
  const Binary mixed = elementwise("add", sum, whole, Keeps::sums);
  EXPECT_EQ(mixed.a, whole);
  EXPECT_EQ(mixed.result, whole);
}

TEST(ShardingRules, SumsOverCutDimsArePartial) {
  const ShardedLayout a = lay({6, 4, 2}, {shard(0), shard(2)});
  const Unary rows = sum(a, {0}, false);
  EXPECT_EQ(rows.operand, a);
  EXPECT_EQ(rows.result, lay({4, 2}, {partial(), shard(1)}));
  EXPECT_EQ(sum(a, {0}, true).result, lay({1, 4, 2}, {partial(), shard(2)}));
  EXPECT_EQ(sum(a, {1}, false).result, lay({6, 2}, {shard(0), shard(1)}));
  EXPECT_EQ(sum(a, {-1, 0}, false).result, lay({4}, {partial(), partial()}));
  EXPECT_EQ(sum(lay({6}, {partial(), shard(0)}), {0}, false).result, lay({}, {partial(), partial()}));
  EXPECT_EQ(sum(lay({6}, {partial(PartialOp::max), shard(0)}), {0}, false).operand, lay({6}, {replicate(), shard(0)}));
  EXPECT_THAT(error_of([&] { sum(a, {3}, false); }), HasSubstr("sum"));
}

TEST(ShardingRules, DimsThatMoveTakeTheirShardsAlong) {
  const ShardedLayout a = lay({6, 4, 2}, {shard(0), strided_shard(2, 2)});
  EXPECT_EQ(permute(a, {2, 0, 1}).result, lay({2, 6, 4}, {shard(1), strided_shard(0, 2)}));
  EXPECT_EQ(permute(a, {-1, 1, 0}).result, lay({2, 4, 6}, {shard(2), strided_shard(0, 2)}));
  EXPECT_EQ(unsqueeze(a, 1).result, lay({6, 1, 4, 2}, {shard(0), strided_shard(3, 2)}));
  EXPECT_EQ(unsqueeze(a, -1).result, lay({6, 4, 2, 1}, {shard(0), strided_shard(2, 2)}));
  EXPECT_EQ(along("max", a, 1, Dim::goes).result, lay({6, 2}, {shard(0), strided_shard(1, 2)}));
  EXPECT_EQ(along("max", a, 1, Dim::becomes_one).result, lay({6, 1, 2}, {shard(0), strided_shard(2, 2)}));
  EXPECT_EQ(along("softmax", a, -2, Dim::stays).result, a);
  EXPECT_THAT(error_of([&] { along("softmax", a, -1, Dim::stays); }), HasSubstr("softmax: along dim 2 of (6, 4, 2)"));
}

TEST(ShardingRules, ProductsAreCutAsTheirOperandsAre) {
  const ShardedLayout a = lay({5, 4}, {shard(0), shard(1)}), b = lay({4, 6}, {replicate(), shard(0)});
  const Binary rule = matmul(a, b);
  EXPECT_EQ(rule.result, lay({5, 6}, {shard(0), partial()}));
  EXPECT_EQ(rule.a_grad, a);
  EXPECT_EQ(rule.b_grad, lay({4, 6}, {partial(), shard(0)}));
  EXPECT_THAT(error_of([&] {
                matmul(a, lay({5, 6}, {replicate(), shard(0)}));
              }),
              HasSubstr("let the inner sizes agree"));
  EXPECT_THAT(error_of([&] {
                matmul(lay({5, 4}, {shard(1), replicate()}), lay({4, 6}, {replicate(), replicate()}));
              }),
              HasSubstr("both be cut along the inner dim"));
  EXPECT_THAT(error_of([&] { matmul(lay({4}, {replicate(), replicate()}), b); }), HasSubstr("unsqueeze the vector"));

  const ShardedLayout bias = lay({6}, {replicate(), replicate()});
  const Linear rowwise = linear(a, lay({6, 4}, {replicate(), shard(1)}), &bias);
  EXPECT_EQ(rowwise.result, lay({5, 6}, {shard(0), partial()}));
  EXPECT_EQ(rowwise.bias, lay({6}, {replicate(), partial()}));  // added once
  EXPECT_EQ(rowwise.bias_grad, lay({6}, {partial(), replicate()}));
  EXPECT_EQ(rowwise.weight_grad, lay({6, 4}, {partial(), shard(1)}));
  const ShardedLayout cut = lay({6}, {shard(0), replicate()});
  EXPECT_THAT(error_of([&] {
                linear(a, lay({6, 4}, {replicate(), shard(1)}), &cut);
              }),
              HasSubstr("let the bias be whole"));
  EXPECT_EQ(embedding(lay({8, 4}, {shard(0), shard(1)}), lay({3}, {replicate(), replicate()})).result,
            lay({3, 4}, {partial(), shard(1)}));
  EXPECT_THAT(error_of([&] {
                embedding(lay({8, 4}, {shard(0), replicate()}), lay({3}, {shard(0), replicate()}));
              }),
              HasSubstr("or cut and the indices whole"));
}

}  // namespace
}  // namespace lockstep::sharding
