#include "harness/plan/layout_rules.hpp"

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
}

TEST(LayoutRules, ReshapesKeepADimThatStays) {
  EXPECT_EQ(after("flatten", {operand(shard(2), {3, 4, 8})}, {12, 8}), shard(1));
  EXPECT_EQ(after("view", {operand(shard(0), {3, 4, 8})}, {3, 32}), shard(0));
  EXPECT_FALSE(after("reshape", {operand(shard(1), {3, 4, 8})}, {12, 8}));
  EXPECT_FALSE(after("transpose", {operand(shard(0), {4, 4})}, {4, 4}));
  EXPECT_EQ(after("transpose", {operand(replicate(), {4, 5})}, {5, 4}), replicate());
}

TEST(LayoutRules, CrossEntropyExchangesThreeNumbersPerRow) {
  const ShardedLayout logits{two, {shard(1)}, {12, 9}};
  EXPECT_EQ(cross_entropy_movements(logits, 0), (std::vector<Movement>(3, {"all_reduce", 0, 12})));
  EXPECT_EQ(after("cross_entropy", {operand(shard(1), {12, 9})}, {}), replicate());
  EXPECT_EQ(after("cross_entropy", {operand(shard(0), {12, 9})}, {}), partial());
  EXPECT_TRUE(cross_entropy_movements({two, {shard(0)}, {12, 9}}, 0).empty());
}

// x (3, 5, 4), weight (6, 4), bias (6): by columns, by rows, and on replicas.
TEST(LayoutRules, LinearByColumnsAndByRowsNeedsNoCollective) {
  const auto reading = [](const Placement& x, const Placement& weight, const std::optional<Placement>& bias) {
    const ShardedLayout of_bias{two, {bias.value_or(replicate())}, {6}};
    return linear_reading({two, {x}, {3, 5, 4}}, {two, {weight}, {6, 4}}, bias ? &of_bias : nullptr);
  };
  const auto by_columns = reading(replicate(), shard(0), shard(0));
  ASSERT_TRUE(by_columns);
  EXPECT_EQ(by_columns->result, (ShardedLayout{two, {shard(2)}, {3, 5, 6}}));
  EXPECT_TRUE(by_columns->input_gradient_is_partial);  // each rank has the summand of its columns
  const auto by_rows = reading(shard(2), shard(1), replicate());
  ASSERT_TRUE(by_rows);
  EXPECT_EQ(by_rows->result, (ShardedLayout{two, {partial()}, {3, 5, 6}}));
  EXPECT_FALSE(by_rows->input_gradient_is_partial);
  EXPECT_EQ(reading(replicate(), replicate(), {})->result.placements[0], replicate());
  EXPECT_EQ(reading(replicate(), shard(0), {})->result.placements[0], shard(2));
  EXPECT_FALSE(reading(replicate(), shard(0), replicate()));  // the gradient of the bias would be gathered
  EXPECT_FALSE(reading(shard(0), replicate(), replicate()));  // those of weight and bias would be partial
  EXPECT_FALSE(reading(partial(), shard(0), shard(0)));       // the input would be reduced first
  EXPECT_FALSE(reading(shard(1), shard(1), replicate()));
}

// Axis 0 computes by rows, axis 1 by columns.
TEST(LayoutRules, EachAxisOfALinearFollowsItsOwnRule) {
  const layout::MeshShape mesh({2, 3}, {"a", "b"});
  const auto reading =
      linear_reading({mesh, {shard(1), replicate()}, {5, 4}}, {mesh, {shard(1), shard(0)}, {6, 4}}, nullptr);
  ASSERT_TRUE(reading);
  EXPECT_EQ(reading->result, (ShardedLayout{mesh, {partial(), shard(1)}, {5, 6}}));
  EXPECT_TRUE(reading->input_gradient_is_partial);
}

}  // namespace
}  // namespace lockstep::plan
