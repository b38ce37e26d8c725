// Plans of reductions, worked by hand: of parameters that are sharded one by one, and of units of flat_shard.
#include "engine/parallel/reduction_plan.hpp"

#include <gtest/gtest.h>

#include "engine/parallel/flat_parameter_shards.hpp"
#include "engine/parallel/flat_shard.hpp"
#include "engine/parallel/flat_units.hpp"
#include "engine/parallel/test_support.hpp"

namespace lockstep::parallel {
namespace {

using namespace testing;

std::string text(const ReductionPlan& plan) {
  std::string members, pieces;
  for (const std::size_t i : plan.members) members += str(members.empty() ? "" : " ", i);
  for (const ReducedPiece& piece : plan.pieces)
    pieces +=
        str("; ", piece.shard, " at ", piece.offset, ": ", to_text(piece.sizes), " in ", to_text(piece.padded_sizes));
  return str(members, " (", plan.num_scattered, " scattered), ", plan.input_elements, " -> ", plan.scattered_elements,
             " of ", plan.output_elements, pieces);
}

// ---- one by one ----
// On the last of 2 ranks: 2 of 5 rows of 3, in 3 rows; 2 of 4 elements; 1 of 3 columns of 2, in 2 columns.
const std::vector<layout::ShardedParameter> cuts = {{{5, 3}, 0, 2}, {{4}, 0, 2}, {{2, 3}, 1, 2}};
const std::vector<Dims> local_sizes = {{2, 3}, {2}, {2, 1}};
constexpr ParameterState outside{};
constexpr ParameterState full_gradient{.takes_part = true, .has_full_gradient = true};
constexpr ParameterState partial_sum{.takes_part = true, .has_partial_sum = true};
constexpr ParameterState both{.takes_part = true, .has_full_gradient = true, .has_partial_sum = true};

std::string plan_of(const std::vector<ParameterState>& states) {
  return text(plan_reduction(cuts, states, local_sizes));
}

TEST(ReductionPlan, PutsPaddedShardsOneAfterTheOther) {
  EXPECT_EQ(plan_of({full_gradient, full_gradient, full_gradient}),
            "0 1 2 (3 scattered), 30 -> 15 of 15; 0 at 0: (2, 3) in (3, 3); 1 at 9: (2,) in (2,); "
            "2 at 11: (2, 1) in (2, 2)");
}

TEST(ReductionPlan, LeavesOutWhatTakesNoPart) {
  EXPECT_EQ(plan_of({outside, full_gradient, outside}), "1 (1 scattered), 4 -> 2 of 2; 1 at 0: (2,) in (2,)");
  EXPECT_EQ(plan_of({outside, outside, outside}), " (0 scattered), 0 -> 0 of 0");
}

// Partial sums of earlier microbatches need no reduce-scatter. Their place is after the scattered elements.
TEST(ReductionPlan, AddsPartialSumsBehindTheScatteredElements) {
  EXPECT_EQ(plan_of({partial_sum, full_gradient, both}),
            "1 2 0 (2 scattered), 12 -> 6 of 15; 1 at 0: (2,) in (2,); 2 at 2: (2, 1) in (2, 2); "
            "0 at 6: (2, 3) in (3, 3)");
  EXPECT_EQ(plan_of({outside, partial_sum, partial_sum}),
            "1 2 (0 scattered), 0 -> 0 of 6; 1 at 0: (2,) in (2,); 2 at 2: (2, 1) in (2, 2)");
}

// ---- a unit of flat_shard ----
// A Linear: weight (2, 3), which has a gradient, and bias (2), which has none.
struct Case {
  FlatShardOptions options{};
  DType type = DType::float32;
  bool bias_is_frozen = false;
  std::vector<bool> complete = {true, true};
  bool has_gradient = true;
};
std::string plan_of(const Case& given) {
  const nn::ModulePtr model = built("Linear", 1, {{3, 2}, {}});
  nn::cast_module(model, given.type);
  if (given.bias_is_frozen) set_requires_grad(model->parameters[1].tensor, false);
  flat_shard(model, given.options);
  FlatParameterShards& unit = *flat_units_below(model).front().shards;
  if (given.has_gradient) unit.parameter(0).accumulated = {zeros({2, 3}, given.type, {}), nullptr};
  return text(unit.plan_reduction(given.complete, true));
}

void expect_plans(int world_size, const std::function<Case()>& given, const std::vector<std::string>& by_rank) {
  EXPECT_EQ(run(world_size,
                [&](int rank) {
                  const std::string found = plan_of(given());
                  require(found == by_rank[static_cast<std::size_t>(rank)], str("rank ", rank, ": ", found));
                }),
            "");
}

// weight 0..6, padding, bias 8..10; chunks of 5. A missing gradient is part of the reduction, an empty stretch no
// piece.
TEST(FlatReductionPlan, ReducesTheUnitAsAWhole) {
  expect_plans(2, [] { return Case{}; },
               {"0 1 (2 scattered), 10 -> 5 of 5; 0 at 0: (5,) in (5,)",
                "0 1 (2 scattered), 10 -> 5 of 5; 0 at 0: (1,) in (1,); 1 at 3: (2,) in (2,)"});
}

TEST(FlatReductionPlan, WaitsForAllParametersAndForAGradient) {
  const std::string nothing = " (0 scattered), 0 -> 0 of 0";
  expect_plans(2, [] { return Case{.complete = {true, false}}; }, {nothing, nothing});
  expect_plans(2, [] { return Case{.has_gradient = false}; }, {nothing, nothing});
}

TEST(FlatReductionPlan, LeavesOutFrozenParametersEvenIfTheyAreNotComplete) {
  expect_plans(
      2,
      [] {
        return Case{.bias_is_frozen = true, .complete = {true, false}};
      },
      {"0 (1 scattered), 10 -> 5 of 5; 0 at 0: (5,) in (5,)", "0 (1 scattered), 10 -> 5 of 5; 0 at 0: (1,) in (1,)"});
}

// 16 bytes are 2 elements of float64, so nothing is padded: weight 0..6, bias 6..8.
TEST(FlatReductionPlan, AlignsByTheType) {
  expect_plans(2, [] { return Case{.type = DType::float64}; },
               {"0 1 (2 scattered), 8 -> 4 of 4; 0 at 0: (4,) in (4,)",
                "0 1 (2 scattered), 8 -> 4 of 4; 0 at 0: (2,) in (2,); 1 at 2: (2,) in (2,)"});
}

TEST(FlatReductionPlan, GivesTheWholeChunkWithoutOriginalParameters) {
  const std::string chunk = "0 1 (2 scattered), 9 -> 3 of 3; 0 at 0: (3,) in (3,)";
  expect_plans(3, [] { return Case{.options = {.original_parameters = false}}; }, {chunk, chunk, chunk});
}

TEST(FlatReductionPlan, KeepsTheSizesOfParametersWithoutShards) {
  const std::string whole = "0 1 (2 scattered), 10 -> 10 of 10; 0 at 0: (2, 3) in (2, 3); 1 at 8: (2,) in (2,)";
  expect_plans(2, [] { return Case{.options = {.strategy = FlatStrategy::no_shard}}; }, {whole, whole});
}

// Ranks 0 and 2, and 1 and 3, hold the same chunk. The mean counts all 4 ranks, half of it before the sum.
TEST(FlatReductionPlan, ShardsAHybridUnitOverTheSecondAxis) {
  const std::string first = "0 1 (2 scattered), 10 -> 5 of 5; 0 at 0: (5,) in (5,)";
  const std::string second = "0 1 (2 scattered), 10 -> 5 of 5; 0 at 0: (1,) in (1,); 1 at 3: (2,) in (2,)";
  const auto options = [] {
    return FlatShardOptions{.mesh = DeviceMesh({2, 2}, {"replicate", "shard"}), .strategy = FlatStrategy::hybrid_shard};
  };
  expect_plans(4, [&] { return Case{.options = options()}; }, {first, second, first, second});
  EXPECT_EQ(run(4,
                [&](int) {
                  const nn::ModulePtr model = built("Linear", 1, {{3, 2}, {}});
                  flat_shard(model, options());
                  const Division division =
                      flat_units_below(model).front().shards->division({.num_ranks = 4, .num_shards = 2});
                  require(division == Division{.before = 2.0, .after = 2.0}, "divided by 2 before and after");
                }),
            "");
}

}  // namespace
}  // namespace lockstep::parallel
