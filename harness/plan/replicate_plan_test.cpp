#include <gtest/gtest.h>

#include "harness/plan/testing.hpp"

namespace lockstep::plan {
namespace {

using testing::bytes;
using testing::count;
using testing::Model;

struct Replicated {
  Planner planner;
  Model model{planner};
  std::vector<ModuleId> chain;
  ModuleId root = 0;
  explicit Replicated(ReplicateChoices choices, int num_linears = 3) {
    for (int i = 0; i < num_linears; ++i) chain.push_back(model.linear(4, 4));
    root = model.module(chain);
    planner.replicate(root, std::move(choices));
  }
  void step() {
    model.forward(root, chain);
    model.backward(root, chain);
  }
};

ReplicateChoices over(std::vector<Axis> axes) {
  ReplicateChoices choices;
  choices.owner = "model";
  choices.axes = std::move(axes);
  return choices;
}

TEST(ReplicatePlan, StartsUpAtTheFirstForwardAndReducesOneBucketAType) {
  Replicated of(over({{"dp", 4}}));
  EXPECT_TRUE(of.planner.collectives().empty());
  of.step();
  const std::vector<Row> rows = tally(of.planner.collectives(), {.lines = false, .owners = false});
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0].operation, "all_gather");
  EXPECT_EQ(rows[0].family, "start_up");
  EXPECT_EQ(rows[0].bytes, 4 * 8);
  EXPECT_EQ(rows[1].operation, "broadcast");
  EXPECT_EQ(rows[1].count, 2);
  EXPECT_TRUE(rows[1].bytes_are_least);
  EXPECT_EQ(rows[1].bytes, 3 * 20 * 4);
  EXPECT_EQ(rows[2].operation, "all_reduce");
  EXPECT_EQ(rows[2].family, "data_parallel");
  EXPECT_EQ(rows[2].phase, "backward");
  EXPECT_EQ(rows[2].count, 1);
  EXPECT_EQ(rows[2].bytes, 3 * 20 * 4);
}

TEST(ReplicatePlan, TheSecondForwardCutsBucketsInTheOrderOfGradients) {
  ReplicateChoices choices = over({{"dp", 2}});
  choices.bucket_cap_bytes = 80;  // a linear is 64 + 16 bytes: one a bucket
  Replicated of(choices);
  of.step();
  EXPECT_EQ(count(of.planner, "all_reduce"), 1);
  of.step();
  EXPECT_EQ(count(of.planner, "all_reduce"), 1 + 3);
  EXPECT_EQ(count(of.planner, "broadcast"), 2 + 2);
  of.step();
  EXPECT_EQ(count(of.planner, "all_reduce"), 1 + 3 + 3);
  EXPECT_EQ(count(of.planner, "broadcast"), 2 + 2);
  EXPECT_EQ(bytes(of.planner, "all_reduce"), 3 * 240);
}

TEST(ReplicatePlan, WithUnusedParametersBucketsAreFixedAndUsersCounted) {
  ReplicateChoices choices = over({{"dp", 2}});
  choices.find_unused_parameters = true;
  choices.bucket_cap_bytes = 80;
  Replicated of(choices);
  of.step();
  of.step();
  EXPECT_EQ(count(of.planner, "all_reduce"), 2 * (3 + 1));
  EXPECT_EQ(bytes(of.planner, "all_reduce"), 2 * (240 + 6 * 4));
  EXPECT_EQ(count(of.planner, "broadcast"), 2);
}

TEST(ReplicatePlan, OverTwoAxesEachBucketIsSummedAxisByAxis) {
  Replicated of(over({{"outer", 2}, {"inner", 3}}));
  of.step();
  std::vector<std::string> axes;
  for (const Collective& one : of.planner.collectives())
    if (one.operation == "all_reduce") axes.push_back(str(one.axis, one.group_size));
  EXPECT_EQ(axes, (std::vector<std::string>{"inner3", "outer2"}));
  EXPECT_EQ(of.planner.collectives()[0].group_size, 6);
  EXPECT_EQ(of.planner.collectives()[0].axis, "");
}

TEST(ReplicatePlan, TheFlagIsReadAtTheForward) {
  Replicated of(over({{"dp", 2}}));
  FlagChange flags;
  flags.requires_gradient_sync = false;
  of.planner.set_flags(of.root, flags);
  of.model.forward(of.root, of.chain);
  flags.requires_gradient_sync = true;
  of.planner.set_flags(of.root, flags);
  of.model.backward(of.root, of.chain);
  EXPECT_EQ(count(of.planner, "all_reduce"), 0);
  of.step();
  EXPECT_EQ(count(of.planner, "all_reduce"), 1);
}

TEST(ReplicatePlan, FrozenParametersAreBroadcastAndNotReduced) {
  Planner planner;
  Model model(planner);
  const ModuleId root = model.module();
  model.parameter(root, {6});
  model.parameter(root, {10}, DType::float32, false);
  planner.replicate(root, over({{"dp", 2}}));
  model.forward(root, {});
  model.backward(root, {});
  EXPECT_EQ(bytes(planner, "broadcast"), 16 * 4);
  EXPECT_EQ(bytes(planner, "all_reduce"), 6 * 4);
}

TEST(ReplicatePlan, LeavesOutWhatIsIgnoredShardedOrReplicatedBelow) {
  Planner planner;
  Model model(planner);
  const ModuleId ignored = model.linear(2, 2), sharded = model.linear(4, 4), replicated = model.linear(8, 8);
  const ModuleId root = model.module({ignored, sharded, replicated});
  model.parameter(root, {3});
  ShardChoices cut;
  cut.shard = {"dp", 2};
  planner.fully_shard({sharded}, cut);
  planner.replicate(replicated, over({{"dp", 2}}));
  ReplicateChoices choices = over({{"dp", 2}});
  choices.ignored = {ignored};
  planner.replicate(root, choices);
  planner.at({"forward", 1, 0});
  planner.enter(root, {});
  EXPECT_EQ(bytes(planner, "broadcast"), 3 * 4);
}

TEST(ReplicatePlan, BuffersAreBroadcastBeforeEachForwardWhenAsked) {
  ReplicateChoices choices = over({{"dp", 2}});
  choices.broadcast_buffers = true;
  Replicated of(choices);
  of.model.buffer(of.chain[0], {5});
  of.step();
  of.model.forward(of.root, of.chain, false);
  std::int64_t num = 0;
  for (const Collective& one : of.planner.collectives())
    if (one.family == "data_parallel" && one.operation == "broadcast") {
      EXPECT_EQ(one.bytes, 20);
      ++num;
    }
  EXPECT_EQ(num, 2);
}

TEST(ReplicatePlan, ACastCutsTheBucketsAnew) {
  Replicated of(over({{"dp", 2}}));
  of.step();
  of.step();
  for (auto& [id, tensor] : of.model.facts().tensors) tensor.dtype = DType::float64;
  of.model.tell();
  of.step();
  EXPECT_EQ(of.planner.collectives().back().bytes, 3 * 20 * 8);
}

}  // namespace
}  // namespace lockstep::plan
