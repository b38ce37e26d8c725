#include "harness/plan/layout_rules.hpp"

#include <string>

#include <gtest/gtest.h>

namespace lockstep::plan {
namespace {

using layout::partial;
using layout::Placement;
using layout::replicate;
using layout::shard;
using layout::ShardedLayout;

const layout::MeshShape two({2}, {"tp"});

Operand operand(const Placement& placement, const Dims& sizes) {
  return {sizes, ShardedLayout{two, {placement}, sizes}};
}
Operand plain(const Dims& sizes) { return {sizes, {}}; }
// The placement after an operation; empty: unknown.
std::optional<Placement> after(const char* operation, const std::vector<Operand>& operands, const Dims& sizes) {
  const std::optional<ShardedLayout> result = layout_after(operation, operands, sizes);
  if (!result) return {};
  EXPECT_EQ(result->sizes, sizes);
  return result->placements[0];
}

TEST(LayoutRules, ElementWiseOperationsKeepAShardAndNeedASumReduced) {
  for (const char* operation : {"relu", "gelu", "dropout", "cast", "pow"}) {
    EXPECT_EQ(after(operation, {operand(shard(1), {4, 6})}, {4, 6}), shard(1));
    EXPECT_EQ(after(operation, {operand(replicate(), {4, 6})}, {4, 6}), replicate());
    EXPECT_FALSE(after(operation, {operand(partial(), {4, 6})}, {4, 6}));
  }
  EXPECT_EQ(after("neg", {operand(partial(), {4, 6})}, {4, 6}), partial());
}

TEST(LayoutRules, TwoOperandsNeedOneLayout) {
  EXPECT_EQ(after("add", {operand(shard(1), {4, 6}), operand(shard(1), {4, 6})}, {4, 6}), shard(1));
  EXPECT_FALSE(after("add", {operand(shard(1), {4, 6}), operand(shard(0), {4, 6})}, {4, 6}));
  EXPECT_FALSE(after("add", {operand(shard(1), {4, 6}), plain({4, 6})}, {4, 6}));
  EXPECT_FALSE(after("mul", {operand(shard(1), {4, 6}), operand(shard(1), {1, 6})}, {4, 6}));
  EXPECT_EQ(after("mul", {operand(shard(1), {4, 6}), plain({})}, {4, 6}), shard(1));
  EXPECT_EQ(after("add", {operand(partial(), {4}), operand(partial(), {4})}, {4}), partial());
  EXPECT_FALSE(after("mul", {operand(partial(), {4}), operand(partial(), {4})}, {4}));
  EXPECT_EQ(after("div", {operand(partial(), {4}), plain({})}, {4}), partial());
  EXPECT_FALSE(after("add", {operand(partial(), {4}), plain({})}, {4}));
}

TEST(LayoutRules, ReductionsOfAShardedDimArePartial) {
  EXPECT_EQ(after("sum", {operand(shard(1), {4, 6})}, {}), partial());
  EXPECT_EQ(after("mean", {operand(shard(1), {4, 6})}, {4, 1}), partial());
  EXPECT_EQ(after("mean", {operand(shard(0), {4, 6})}, {4, 1}), shard(0));
  EXPECT_EQ(after("sum", {operand(replicate(), {4, 6})}, {}), replicate());
  EXPECT_FALSE(after("sum", {operand(shard(0), {4, 4})}, {4}));  // which dim is summed is unknown
  EXPECT_EQ(after("sum", {operand(shard(1), {4, 6})}, {4}), partial());
  EXPECT_EQ(after("sum", {operand(shard(1), {4, 6})}, {6}), shard(0));
  EXPECT_EQ(after("mean", {operand(shard(2), {3, 4, 6})}, {3, 6}), shard(1));
  EXPECT_EQ(after("mean", {operand(shard(1), {3, 4, 6})}, {6}), partial());
}

TEST(LayoutRules, ExtremesOfAShardedDimArePartial) {
  EXPECT_EQ(after("max", {operand(shard(1), {4, 6})}, {4}), partial(layout::PartialOp::max));
  EXPECT_EQ(after("min", {operand(shard(1), {4, 6})}, {4, 1}), partial(layout::PartialOp::min));
  for (const char* operation : {"max", "min", "argmax"}) {
    EXPECT_EQ(after(operation, {operand(shard(1), {4, 6})}, {6}), shard(0));
    EXPECT_EQ(after(operation, {operand(shard(1), {4, 6})}, {1, 6}), shard(1));
    EXPECT_EQ(after(operation, {operand(replicate(), {4, 6})}, {4}), replicate());
    EXPECT_FALSE(after(operation, {operand(partial(), {4, 6})}, {4}));
    EXPECT_FALSE(
        after(operation, {operand(shard(0), {1, 6})}, {1, 6}));  // the dim that is kept may be that of the shard
  }
  EXPECT_FALSE(after("argmax", {operand(shard(1), {4, 6})}, {4}));
}

TEST(LayoutRules, ConditionsNeedOneLayoutAndNoSum) {
  for (const char* operation : {"eq", "ne", "lt", "le", "gt", "ge", "where"}) {
    EXPECT_EQ(after(operation, {operand(shard(1), {4, 6}), operand(shard(1), {4, 6})}, {4, 6}), shard(1));
    EXPECT_EQ(after(operation, {operand(shard(0), {4, 6}), plain({})}, {4, 6}), shard(0));
    EXPECT_FALSE(after(operation, {operand(partial(), {4, 6}), plain({})}, {4, 6}));
    EXPECT_FALSE(after(operation, {operand(partial(), {4, 6}), operand(partial(), {4, 6})}, {4, 6}));
    EXPECT_FALSE(after(operation, {operand(shard(1), {4, 6}), operand(replicate(), {4, 6})}, {4, 6}));
  }
  const Operand x = operand(shard(1), {4, 6});
  EXPECT_EQ(after("where", {x, plain({}), plain({})}, {4, 6}), shard(1));
  EXPECT_FALSE(after("where", {x, plain({4, 6}), x}, {4, 6}));
}

TEST(LayoutRules, SoftmaxKeepsAShard) {
  for (const char* operation : {"softmax", "log_softmax"}) {
    EXPECT_EQ(after(operation, {operand(shard(0), {4, 6})}, {4, 6}), shard(0));
    EXPECT_FALSE(after(operation, {operand(partial(), {4, 6})}, {4, 6}));
  }
}

TEST(LayoutRules, ViewsOfOtherDimsKeepAShard) {
  EXPECT_EQ(after("transpose", {operand(shard(0), {4, 6})}, {6, 4}), shard(1));
  EXPECT_EQ(after("permute", {operand(shard(2), {3, 4, 6})}, {4, 6, 3}), shard(1));
  EXPECT_FALSE(after("permute", {operand(shard(2), {3, 4, 4})}, {4, 4, 3}));
  EXPECT_EQ(after("permute", {operand(partial(), {3, 4, 4})}, {4, 4, 3}), partial());
  EXPECT_EQ(after("slice", {operand(shard(1), {5, 4})}, {2, 4}), shard(1));
  EXPECT_FALSE(after("slice", {operand(shard(0), {5, 4})}, {2, 4}));
  EXPECT_EQ(after("split", {operand(shard(0), {4, 6})}, {4, 2}), shard(0));
  EXPECT_EQ(after("select", {operand(shard(1), {5, 4})}, {4}), shard(0));
  EXPECT_EQ(after("select", {operand(shard(0), {5, 4})}, {5}), shard(0));
  EXPECT_FALSE(after("select", {operand(shard(1), {4, 4, 4})}, {4, 4}));
  EXPECT_EQ(after("expand", {operand(shard(0), {4, 1})}, {2, 4, 3}), shard(1));
  EXPECT_EQ(after("expand", {operand(partial(), {4, 1})}, {4, 3}), partial());
}

TEST(LayoutRules, JoinsNeedOneLayout) {
  const Operand rows = operand(shard(0), {4, 6}), columns = operand(shard(1), {4, 6}), sum = operand(partial(), {4, 6});
  EXPECT_EQ(after("cat", {columns, columns}, {8, 6}), shard(1));
  EXPECT_FALSE(after("cat", {rows, rows}, {8, 6}));
  EXPECT_FALSE(after("cat", {rows, columns}, {8, 6}));
  EXPECT_FALSE(after("cat", {columns, plain({4, 6})}, {8, 6}));
  EXPECT_EQ(after("cat", {sum, sum}, {8, 6}), partial());
  EXPECT_EQ(after("stack", {columns, columns}, {2, 4, 6}), shard(2));
  EXPECT_EQ(after("stack", {rows, rows}, {4, 6, 2}), shard(0));
  EXPECT_FALSE(after("stack", {operand(shard(0), {2, 2}), operand(shard(0), {2, 2})}, {2, 2, 2}));  // the new dim
}

TEST(LayoutRules, AttentionKeepsHeads) {
  const Operand heads = operand(shard(1), {2, 4, 6, 3}), rows = operand(shard(2), {2, 4, 6, 3});
  EXPECT_EQ(after("attention", {heads, heads, heads}, {2, 4, 6, 3}), shard(1));
  EXPECT_FALSE(after("attention", {rows, rows, rows}, {2, 4, 6, 3}));
  EXPECT_FALSE(after("attention", {heads, heads, operand(replicate(), {2, 4, 6, 3})}, {2, 4, 6, 3}));
}

TEST(LayoutRules, LookupsOfRowsArePartial) {
  const Dims weight = {9, 4}, indices = {2, 3}, result = {2, 3, 4};
  EXPECT_EQ(after("embedding", {operand(shard(0), weight), operand(replicate(), indices)}, result), partial());
  EXPECT_EQ(after("embedding", {operand(shard(1), weight), operand(replicate(), indices)}, result), shard(2));
  EXPECT_EQ(after("embedding", {operand(replicate(), weight), operand(shard(1), indices)}, result), shard(1));
  EXPECT_FALSE(after("embedding", {operand(shard(0), weight), operand(shard(0), indices)}, result));
  EXPECT_FALSE(after("embedding", {operand(partial(), weight), operand(replicate(), indices)}, result));
}

TEST(LayoutRules, SelectedPositionsOfAShardedDimArePartial) {
  const Operand rows = operand(shard(0), {9, 4}), columns = operand(shard(1), {9, 4}),
                whole = operand(replicate(), {9, 4});
  const Operand index = operand(replicate(), {3}), parts = operand(shard(0), {3});
  EXPECT_EQ(after("index_select", {rows, index}, {3, 4}), partial());
  EXPECT_EQ(after("index_select", {columns, index}, {3, 4}), shard(1));
  EXPECT_EQ(after("index_select", {whole, parts}, {9, 3}), shard(1));
  EXPECT_EQ(after("index_select", {whole, index}, {3, 4}), replicate());
  EXPECT_FALSE(after("index_select", {rows, parts}, {3, 4}));
  EXPECT_FALSE(after("index_select", {operand(shard(0), {3, 4}), index}, {3, 4}));  // which dim is selected is unknown
  EXPECT_FALSE(after("index_select", {columns, plain({3})}, {3, 4}));
}

TEST(LayoutRules, ReshapesKeepADimThatStays) {
  EXPECT_EQ(after("flatten", {operand(shard(2), {3, 4, 8})}, {12, 8}), shard(1));
  EXPECT_EQ(after("view", {operand(shard(0), {3, 4, 8})}, {3, 32}), shard(0));
  EXPECT_FALSE(after("reshape", {operand(shard(1), {3, 4, 8})}, {12, 8}));
  EXPECT_FALSE(after("transpose", {operand(shard(0), {4, 4})}, {4, 4}));  // the dims have the same size
  EXPECT_EQ(after("transpose", {operand(replicate(), {4, 5})}, {5, 4}), replicate());
}

TEST(LayoutRules, CrossEntropyExchangesThreeNumbersPerRow) {
  const ShardedLayout logits{two, {shard(1)}, {12, 9}};
  EXPECT_EQ(cross_entropy_movements(logits, {}, 0), (std::vector<Movement>(3, {"all_reduce", 0, 12})));
  EXPECT_EQ(after("cross_entropy", {operand(shard(1), {12, 9})}, {}), replicate());
  EXPECT_EQ(after("cross_entropy", {operand(shard(0), {12, 9})}, {}), partial());
  EXPECT_TRUE(cross_entropy_movements({two, {shard(0)}, {12, 9}}, {}, 0).empty());
}

TEST(LayoutRules, CrossEntropyOfEachRowKeepsTheRows) {
  EXPECT_EQ(after("cross_entropy", {operand(shard(1), {12, 9})}, {12}), replicate());
  EXPECT_EQ(after("cross_entropy", {operand(shard(0), {12, 9})}, {12}), shard(0));
  EXPECT_EQ(after("cross_entropy", {operand(shard(2), {3, 4, 9})}, {3, 4}), replicate());
  EXPECT_EQ(after("cross_entropy", {operand(shard(1), {3, 4, 9})}, {3, 4}), shard(1));
  EXPECT_EQ(after("cross_entropy", {operand(shard(1), {3, 4, 9})}, {}), partial());
}

TEST(LayoutRules, CrossEntropyExchangesWeightsThatNoRankHas) {
  const ShardedLayout logits{two, {shard(2)}, {3, 4, 9}};
  const Movement one = {"all_reduce", 0, 12}, pair = {"all_reduce", 0, 24};
  EXPECT_EQ(cross_entropy_movements(logits, {.shards_weight = true}, 0), (std::vector<Movement>{one, one, pair}));
  EXPECT_EQ(cross_entropy_movements(logits, {.divides_by_weights = true}, 0), (std::vector<Movement>{one, one, one}));
  // Over rows, a weighted mean sums its divisor.
  const ShardedLayout by_rows{two, {shard(1)}, {3, 4, 9}};
  EXPECT_EQ(cross_entropy_movements(by_rows, {.divides_by_weights = true}, 0),
            (std::vector<Movement>{{"all_reduce", 0, 1}}));
  EXPECT_TRUE(cross_entropy_movements(by_rows, {}, 0).empty());
  // One axis of each: 5 rows over 2 ranks, so that rank 0 exchanges 3 rows and rank 1 exchanges 2.
  const ShardedLayout both{layout::MeshShape({2, 2}, {"dp", "tp"}), {shard(0), shard(1)}, {5, 9}};
  const auto moves = cross_entropy_movements(both, {.divides_by_weights = true}, 3);
  EXPECT_EQ(moves, (std::vector<Movement>{
                       {"all_reduce", 1, 2}, {"all_reduce", 1, 2}, {"all_reduce", 1, 2}, {"all_reduce", 0, 1}}));
}

using Layouts = std::vector<ShardedLayout>;

// x (3, 5, 4), weight (6, 4), bias (6): by columns, by rows, and on replicas.
TEST(LayoutRules, LinearByColumnsAndByRowsNeedsNoCollective) {
  const auto reading = [](const Placement& x, const Placement& weight, const std::optional<Placement>& bias) {
    Layouts operands = {{two, {x}, {3, 5, 4}}, {two, {weight}, {6, 4}}};
    if (bias) operands.push_back({two, {*bias}, {6}});
    return weighted_reading("linear", operands);
  };
  const auto by_columns = reading(replicate(), shard(0), shard(0));
  ASSERT_TRUE(by_columns);
  EXPECT_EQ(by_columns->result, (ShardedLayout{two, {shard(2)}, {3, 5, 6}}));
  EXPECT_TRUE(by_columns->input_gradient_is_partial);  // each rank has the summand of its columns
  EXPECT_TRUE(by_columns->partial_axes.empty());
  const auto by_rows = reading(shard(2), shard(1), replicate());
  ASSERT_TRUE(by_rows);
  EXPECT_EQ(by_rows->result, (ShardedLayout{two, {partial()}, {3, 5, 6}}));
  EXPECT_FALSE(by_rows->input_gradient_is_partial);
  EXPECT_EQ(reading(replicate(), replicate(), {})->result.placements[0], replicate());
  EXPECT_EQ(reading(replicate(), shard(0), {})->result.placements[0], shard(2));
  EXPECT_FALSE(reading(replicate(), shard(0), replicate()));  // the gradient of the bias would be gathered
  EXPECT_FALSE(reading(partial(), shard(0), shard(0)));       // the input would be reduced first
  EXPECT_FALSE(reading(shard(1), shard(1), replicate()));
}

TEST(LayoutRules, RepeatedOperandsGetPartialGradients) {
  const layout::MeshShape mesh({2, 3}, {"a", "b"});
  const Layouts operands = {{mesh, {shard(0), replicate()}, {4, 6}}, {mesh, {replicate(), replicate()}, {6}}};
  for (const char* operation : {"add", "sub", "mul", "div", "where"}) {
    EXPECT_TRUE(axes_of_partial_gradient(operation, operands, 0).empty());
    EXPECT_EQ(axes_of_partial_gradient(operation, operands, 1), std::vector<int>{0});
  }
  EXPECT_TRUE(axes_of_partial_gradient("cat", operands, 1).empty());
}

// Each rank has the summand of its rows in the gradients of the weights.
TEST(LayoutRules, WeightsOnPartsOfASequenceGetPartialGradients) {
  for (const char* operation : {"linear", "layer_norm", "rms_norm"}) {
    const Dims weight = operation == std::string("linear") ? Dims{4, 4} : Dims{4};
    Layouts operands = {{two, {shard(1)}, {3, 5, 4}}, {two, {replicate()}, weight}, {two, {replicate()}, {4}}};
    const auto reading = weighted_reading(operation, operands);
    ASSERT_TRUE(reading) << operation;
    EXPECT_EQ(reading->result, operands[0]);
    EXPECT_FALSE(reading->input_gradient_is_partial);
    EXPECT_EQ(reading->partial_axes, std::vector<int>{0});
    operands[0].placements[0] = shard(2);  // a norm over a sharded dim
    EXPECT_FALSE(weighted_reading(operation, operands));
    operands[0].placements[0] = replicate();
    EXPECT_TRUE(weighted_reading(operation, operands)->partial_axes.empty());
    EXPECT_FALSE(weighted_reading("conv2d", operands));
  }
}

// Axis 0 computes by rows, axis 1 by columns.
TEST(LayoutRules, EachAxisOfALinearFollowsItsOwnRule) {
  const layout::MeshShape mesh({2, 3}, {"a", "b"});
  const auto reading =
      weighted_reading("linear", {{mesh, {shard(1), replicate()}, {5, 4}}, {mesh, {shard(1), shard(0)}, {6, 4}}});
  ASSERT_TRUE(reading);
  EXPECT_EQ(reading->result, (ShardedLayout{mesh, {partial(), shard(1)}, {5, 6}}));
  EXPECT_TRUE(reading->input_gradient_is_partial);
}

}  // namespace
}  // namespace lockstep::plan
