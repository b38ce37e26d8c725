#include <gtest/gtest.h>

#include "harness/plan/testing.hpp"

namespace lockstep::plan {
namespace {

using testing::bytes;
using testing::count;
using testing::Model;

struct ReplicatedChain {
  Planner planner;
  Model model{planner};
  std::vector<ModuleId> chain;
  ModuleId root = 0;
  explicit ReplicatedChain(ReplicateChoices choices, int num_linears = 3) {
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

TEST(ReplicatePlan, ComparesParametersOnceAndReducesOneBucketPerType) {
  ReplicatedChain replicated(over({{"dp", 4}}));
  EXPECT_TRUE(replicated.planner.collectives().empty());
  replicated.step();
  const std::vector<Row> rows = tally(replicated.planner.collectives(), {.lines = false, .owners = false});
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

TEST(ReplicatePlan, TheSecondForwardRebuildsTheBuckets) {
  ReplicateChoices choices = over({{"dp", 2}});
  choices.bucket_cap_bytes = 80;  // a linear is 64 + 16 bytes: one per bucket
  ReplicatedChain replicated(choices);
  replicated.step();
  EXPECT_EQ(count(replicated.planner, "all_reduce"), 1);
  replicated.step();
  EXPECT_EQ(count(replicated.planner, "all_reduce"), 1 + 3);
  EXPECT_EQ(count(replicated.planner, "broadcast"), 2 + 2);
  replicated.step();
  EXPECT_EQ(count(replicated.planner, "all_reduce"), 1 + 3 + 3);
  EXPECT_EQ(count(replicated.planner, "broadcast"), 2 + 2);
  EXPECT_EQ(bytes(replicated.planner, "all_reduce"), 3 * 240);
}

TEST(ReplicatePlan, FindUnusedParametersKeepsBucketsAndReducesTheMap) {
  ReplicateChoices choices = over({{"dp", 2}});
  choices.find_unused_parameters = true;
  choices.bucket_cap_bytes = 80;
  ReplicatedChain replicated(choices);
  replicated.step();
  replicated.step();
  EXPECT_EQ(count(replicated.planner, "all_reduce"), 2 * (3 + 1));
  EXPECT_EQ(bytes(replicated.planner, "all_reduce"), 2 * (240 + 6 * 4));
  EXPECT_EQ(count(replicated.planner, "broadcast"), 2);
}

TEST(ReplicatePlan, OverTwoAxesEachBucketIsReducedPerAxis) {
  ReplicatedChain replicated(over({{"outer", 2}, {"inner", 3}}));
  replicated.step();
  std::vector<std::string> axes;
  for (const Collective& collective : replicated.planner.collectives())
    if (collective.operation == "all_reduce") axes.push_back(str(collective.axis, collective.group_size));
  EXPECT_EQ(axes, (std::vector<std::string>{"inner3", "outer2"}));
  EXPECT_EQ(replicated.planner.collectives()[0].group_size, 6);
  EXPECT_EQ(replicated.planner.collectives()[0].axis, "");
}

TEST(ReplicatePlan, ReadsTheSynchronizationFlagInForward) {
  ReplicatedChain replicated(over({{"dp", 2}}));
  FlagChange flags;
  flags.requires_gradient_sync = false;
  replicated.planner.set_flags(replicated.root, flags);
  replicated.model.forward(replicated.root, replicated.chain);
  flags.requires_gradient_sync = true;
  replicated.planner.set_flags(replicated.root, flags);
  replicated.model.backward(replicated.root, replicated.chain);
  EXPECT_EQ(count(replicated.planner, "all_reduce"), 0);
  replicated.step();
  EXPECT_EQ(count(replicated.planner, "all_reduce"), 1);
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

TEST(ReplicatePlan, ExcludesIgnoredShardedAndReplicatedModulesBelow) {
  Planner planner;
  Model model(planner);
  const ModuleId ignored = model.linear(2, 2), sharded = model.linear(4, 4), replicated = model.linear(8, 8);
  const ModuleId root = model.module({ignored, sharded, replicated});
  model.parameter(root, {3});
  planner.fully_shard({sharded}, testing::shard_over(2));
  planner.replicate(replicated, over({{"dp", 2}}));
  ReplicateChoices choices = over({{"dp", 2}});
  choices.ignored = {ignored};
  planner.replicate(root, choices);
  planner.at({"forward", 1, 0});
  planner.enter(root, {});
  EXPECT_EQ(bytes(planner, "broadcast"), 3 * 4);
}

TEST(ReplicatePlan, BroadcastsBuffersBeforeEachForwardIfSet) {
  ReplicateChoices choices = over({{"dp", 2}});
  choices.broadcast_buffers = true;
  ReplicatedChain replicated(choices);
  replicated.model.buffer(replicated.chain[0], {5});
  replicated.step();
  replicated.model.forward(replicated.root, replicated.chain, false);
  std::int64_t num = 0;
  for (const Collective& collective : replicated.planner.collectives())
    if (collective.family == "data_parallel" && collective.operation == "broadcast") {
      EXPECT_EQ(collective.bytes, 20);
      ++num;
    }
  EXPECT_EQ(num, 2);
}

TEST(ReplicatePlan, ACastResetsTheBuckets) {
  ReplicatedChain replicated(over({{"dp", 2}}));
  replicated.step();
  replicated.step();
  for (auto& [id, tensor] : replicated.model.facts().tensors) tensor.dtype = DType::float64;
  replicated.model.update();
  replicated.step();
  EXPECT_EQ(replicated.planner.collectives().back().bytes, 3 * 20 * 8);
}

TEST(ReplicatePlan, AMoveResetsTheBuckets) {
  ReplicatedChain replicated(over({{"dp", 2}}));
  const auto num_broadcasts = [&replicated] {
    const auto& all = replicated.planner.collectives();
    return std::count_if(all.begin(), all.end(), [](const auto& one) { return one.operation == "broadcast"; });
  };
  replicated.step();
  const auto at_first = num_broadcasts();
  for (auto& [id, tensor] : replicated.model.facts().tensors) tensor.device = 1;
  replicated.model.update();
  replicated.step();
  EXPECT_EQ(num_broadcasts(), at_first);
  replicated.step();
  EXPECT_EQ(num_broadcasts(), at_first + 2);
}

}  // namespace
}  // namespace lockstep::plan
