// The collectives of state dicts of units of flat_shard, worked out by hand.
#include <gtest/gtest.h>

#include "harness/plan/flat_plan.hpp"
#include "harness/plan/testing.hpp"

namespace lockstep::plan {
namespace {

using testing::Model;

// One unit "a": 5 * 3 elements, one of padding, and 5: 21; on 4 ranks 24, chunks of 6.
struct Unit {
  Planner planner;
  Model model{planner};
  ModuleId root = 0;
  explicit Unit(FlatStrategy strategy, const std::vector<Axis>& axes = {{"dp", 4}}, int rank = 0) : planner(rank) {
    ShardChoices choices;
    apply_strategy(strategy, axes, choices);
    choices.owner = "a";
    root = model.linear(3, 5);
    for (const Planner::FlatUnit& unit : planner.flat_units(root, {}, {})) planner.flat_shard(unit, choices);
  }
};

// "data_parallel all_gather dp 4 a 96": family, operation, axis, size of the group, owner and bytes.
std::vector<std::string> texts_of(const Planner& planner) {
  std::vector<std::string> texts;
  for (const Collective& one : planner.collectives())
    texts.push_back(
        str(one.family, " ", one.operation, " ", one.axis, " ", one.group_size, " ", one.owner, " ", one.bytes));
  return texts;
}
using Texts = std::vector<std::string>;

TEST(FlatStatePlan, SavesGatherTheFlatParameterInTheTypeOfTheState) {
  for (const StateType type : {StateType::full, StateType::sharded}) {
    Unit unit(FlatStrategy::full_shard);
    unit.planner.save_flat_state({unit.root, DType::float32}, type);
    unit.planner.save_flat_state({unit.root, DType::float64}, type);
    EXPECT_EQ(texts_of(unit.planner), (Texts{"data_parallel all_gather dp 4 a 96",      // 24 * 4
                                             "data_parallel all_gather dp 4 a 192"}));  // 24 * 8
  }
}

TEST(FlatStatePlan, ChunksAndWholeParametersAreNotGathered) {
  Unit chunks(FlatStrategy::full_shard);
  chunks.planner.save_flat_state({chunks.root, DType::float32}, StateType::local);
  EXPECT_EQ(texts_of(chunks.planner), Texts{});
  for (const StateType type : {StateType::full, StateType::sharded, StateType::local}) {
    Unit whole(FlatStrategy::no_shard);
    whole.planner.save_flat_state({whole.root, DType::float32}, type);
    whole.planner.load_flat_state(whole.root, {5, 3}, DType::float32, type);
    EXPECT_EQ(texts_of(whole.planner), Texts{});
  }
}

TEST(FlatStatePlan, HybridUnitsAreGatheredOverTheirShardAxis) {
  Unit unit(FlatStrategy::hybrid_shard, {{"replicate", 2}, {"shard", 2}}, 3);
  unit.planner.save_flat_state({unit.root, DType::float32}, StateType::sharded);
  unit.planner.load_flat_state(unit.root, {5, 3}, DType::float32, StateType::sharded);
  EXPECT_EQ(texts_of(unit.planner), (Texts{"data_parallel all_gather shard 2 a 88",      // 22 * 4
                                           "tensor_parallel all_gather shard 2  72"}));  // 2 ranks * 3 rows * 3 * 4
}

// The rows of a piece by ceiling division: 5 rows on 4 ranks are 2, 2, 1 and none, and each counts as 2.
TEST(FlatStatePlan, OnlyPiecesAreGatheredByALoad) {
  Unit unit(FlatStrategy::full_shard);
  for (const StateType type : {StateType::full, StateType::local})
    unit.planner.load_flat_state(unit.root, {5, 3}, DType::float32, type);
  EXPECT_EQ(texts_of(unit.planner), Texts{});
  unit.planner.load_flat_state(unit.root, {5, 3}, DType::float32, StateType::sharded);
  unit.planner.load_flat_state(unit.root, {5}, DType::bfloat16, StateType::sharded);
  EXPECT_EQ(texts_of(unit.planner), (Texts{"tensor_parallel all_gather dp 4  96",     // 4 * 2 * 3 * 4
                                           "tensor_parallel all_gather dp 4  16"}));  // 4 * 2 * 2
}

// Parameters of tensor parallelism: (10, 3) by rows and (6, 3) whole on both ranks of tp.
TEST(FlatStatePlan, FullStateIsGatheredOverTensorParallelismToo) {
  const layout::MeshShape tp({2}, {"tp"});
  const layout::ShardedLayout by_rows{tp, {layout::shard(0)}, {10, 3}}, whole{tp, {layout::replicate()}, {6, 3}};
  for (const FlatStrategy strategy : {FlatStrategy::full_shard, FlatStrategy::no_shard})
    for (const StateType type : {StateType::full, StateType::sharded}) {
      Unit unit(strategy);
      unit.planner.save_flat_state({unit.root, DType::float32, {by_rows, whole}}, type);
      Texts expected;
      if (strategy == FlatStrategy::full_shard) expected.push_back("data_parallel all_gather dp 4 a 96");
      if (strategy == FlatStrategy::no_shard || type == StateType::full)
        expected.push_back("tensor_parallel all_gather tp 2  120");  // 10 * 3 * 4
      EXPECT_EQ(texts_of(unit.planner), expected);
    }
}

}  // namespace
}  // namespace lockstep::plan
