// The collectives of a step with sharded groups: counts and bytes.
#include <gtest/gtest.h>

#include "harness/plan/testing.hpp"

namespace lockstep::plan {
namespace {

using testing::bytes;
using testing::Chain;
using testing::count;
using testing::Model;
using testing::shard_over;
using Kind = Reshard::Kind;

TEST(ShardPlan, AStepGathersInForwardAndAgainInBackwardIfResharded) {
  for (const int layers : {1, 3})
    for (const Reshard reshard : {Reshard{Kind::yes, 0}, Reshard{Kind::no, 0}, Reshard{Kind::among, 2}}) {
      Chain chain(layers, shard_over(4, reshard));
      chain.forward();
      EXPECT_EQ(count(chain.planner, "all_gather", "forward"), layers + 1);
      EXPECT_EQ(chain.planner.collectives().size(), static_cast<std::size_t>(layers + 1));
      chain.backward();
      EXPECT_EQ(count(chain.planner, "all_gather", "backward"), reshard.kind == Kind::no ? 0 : layers);
      EXPECT_EQ(count(chain.planner, "reduce_scatter", "backward"), layers + 1);
      EXPECT_EQ(count(chain.planner, "all_reduce"), 0);
    }
}

TEST(ShardPlan, AGroupReshardedByTheUserIsGatheredInBackward) {
  Chain chain(3, shard_over(4, {Kind::no, 0}));
  chain.forward();
  for (const ModuleId block : chain.blocks) chain.planner.shards().reshard(block);
  chain.planner.shards().reshard(chain.root);
  chain.backward();
  EXPECT_EQ(count(chain.planner, "all_gather", "forward"), 4);
  EXPECT_EQ(count(chain.planner, "all_gather", "backward"), 4);
  EXPECT_EQ(count(chain.planner, "reduce_scatter"), 4);
}

TEST(ShardPlan, BytesIncludePadding) {
  Planner planner;
  Model model(planner);
  const ModuleId root = model.module();
  model.parameter(root, {5, 3});  // 5 rows over 4 ranks: 2 each, 8 together
  model.parameter(root, {2});     // 1 each, 4 together
  planner.fully_shard({root}, shard_over(4));
  model.forward(root, {});
  model.backward(root, {});
  EXPECT_EQ(bytes(planner, "all_gather"), (8 * 3 + 4) * 4);
  EXPECT_EQ(bytes(planner, "reduce_scatter"), (8 * 3 + 4) * 4);
}

// A parameter that tensor parallelism has replicated and used for a part of the sequence on each rank.
TEST(ShardPlan, ReducesPartialGradientsBeforeTheGroup) {
  Planner planner;
  Model model(planner);
  const ModuleId root = model.module();
  const TensorId norm = model.parameter(root, {6});
  model.parameter(root, {4, 4});
  ShardChoices choices = shard_over(2);
  choices.owner = "net";
  choices.reduce = DType::float64;
  choices.partial_gradients[norm] = {"tp", 4};
  planner.fully_shard({root}, choices);
  FlagChange flags;
  flags.requires_gradient_sync = false;
  planner.set_flags(root, flags);
  model.forward(root, {});
  model.backward(root, {});
  EXPECT_EQ(count(planner, "all_reduce"), 0);
  flags.requires_gradient_sync = true;
  planner.set_flags(root, flags);
  model.forward(root, {});
  model.backward(root, {});
  const std::vector<Collective>& all = planner.collectives();
  ASSERT_GE(all.size(), 2u);
  const Collective& partial = all[all.size() - 2];
  EXPECT_EQ(partial.operation, "all_reduce");
  EXPECT_EQ(partial.family, "tensor_parallel");
  EXPECT_EQ(partial.axis, "tp");
  EXPECT_EQ(partial.group_size, 4);
  EXPECT_EQ(partial.owner, "net");
  EXPECT_EQ(partial.bytes, 6 * 8);
  EXPECT_EQ(all.back().operation, "reduce_scatter");
}

TEST(ShardPlan, UsesTheTypesOfThePolicy) {
  Planner planner;
  Model model(planner);
  const ModuleId root = model.module();
  model.parameter(root, {8, 4});
  ShardChoices choices = shard_over(4);
  choices.param = DType::bfloat16;
  choices.reduce = DType::float32;
  planner.fully_shard({root}, choices);
  model.forward(root, {});
  model.backward(root, {});
  EXPECT_EQ(bytes(planner, "all_gather"), 8 * 4 * 2);
  EXPECT_EQ(bytes(planner, "reduce_scatter"), 8 * 4 * 4);
}

TEST(ShardPlan, PadsTheShardedDim) {
  Planner planner;
  Model model(planner);
  const ModuleId root = model.module();
  const TensorId weight = model.parameter(root, {3, 6});
  ShardChoices choices = shard_over(4);
  choices.dims[weight] = 1;
  planner.fully_shard({root}, choices);
  model.forward(root, {});
  EXPECT_EQ(bytes(planner, "all_gather"), 3 * 8 * 4);
}

TEST(ShardPlan, AnExtensionReplacesTheShardInTheAllGather) {
  for (const bool two_types : {false, true}) {
    Planner planner;
    Model model(planner);
    const ModuleId root = model.module();
    const TensorId extended = model.parameter(root, {5, 3});
    model.parameter(root, {3});  // 1 per rank
    planner.fully_shard({root}, shard_over(4));
    EXPECT_EQ(planner.shards().padded_shard_sizes(extended), (Dims{2, 3}));
    if (two_types)
      planner.shards().set_gather_inputs(extended, {{12, DType::bfloat16}, {5, DType::boolean}});
    else
      planner.shards().set_gather_inputs(extended, {{12, DType::float32}});
    model.forward(root, {});
    model.backward(root, {});
    // With several types each tensor starts at a multiple of eight bytes: 16, 8 and 8 bytes.
    EXPECT_EQ(bytes(planner, "all_gather"), 4 * (two_types ? 16 + 8 + 8 : 12 + 4));
    EXPECT_EQ(bytes(planner, "reduce_scatter"), 4 * (2 * 3 + 1) * 4);
  }
}

TEST(ShardPlan, PostForwardShardsAreGatheredOverFewerRanks) {
  Chain chain(2, shard_over(4, {Kind::among, 2}));
  chain.forward();
  chain.backward();
  for (const Collective& collective : chain.planner.collectives()) {
    if (collective.operation != "all_gather") continue;
    EXPECT_EQ(collective.group_size, collective.phase == "forward" ? 4 : 2);
    EXPECT_EQ(collective.axis, "shard");
  }
  EXPECT_EQ(bytes(chain.planner, "all_gather", "backward"), 2 * (64 + 8) * 4);
}

TEST(ShardPlan, FrozenParametersAreGatheredButNotReduced) {
  Planner planner;
  Model model(planner);
  const ModuleId root = model.module();
  model.parameter(root, {8, 8}, DType::float32, false);
  model.parameter(root, {8});
  planner.fully_shard({root}, shard_over(2));
  model.forward(root, {});
  model.backward(root, {});
  EXPECT_EQ(bytes(planner, "all_gather"), (64 + 8) * 4);
  EXPECT_EQ(bytes(planner, "reduce_scatter"), 8 * 4);
}

TEST(ShardPlan, AGroupWithoutGradientReducesNothing) {
  Chain chain(2, shard_over(2));
  chain.model.forward(chain.root, chain.blocks);
  chain.model.backward(chain.root, {chain.blocks[1]});
  EXPECT_EQ(count(chain.planner, "reduce_scatter"), 2);
}

TEST(ShardPlan, ASharedParameterIsGatheredOnce) {
  Planner planner;
  Model model(planner);
  const ModuleId first = model.module(), last = model.module();
  const TensorId weight = model.parameter(first, {8, 4});
  model.share(last, weight);
  const ModuleId root = model.module({first, last});
  planner.fully_shard({root}, shard_over(2));
  model.forward(root, {});
  EXPECT_EQ(bytes(planner, "all_gather"), 8 * 4 * 4);
}

TEST(ShardPlan, AModuleCalledTwiceIsGatheredTwiceAndReducedOnce) {
  for (const bool needs_gradient : {false, true})
    for (const bool keep : {false, true}) {
      Planner planner;
      Model model(planner);
      const ModuleId inner = model.linear(4, 4), outer = model.linear(4, 5);
      const ModuleId root = model.module({inner, outer});
      planner.fully_shard({inner}, shard_over(2, {keep ? Kind::no : Kind::yes, 0}));
      planner.fully_shard({root}, shard_over(2, {keep ? Kind::no : Kind::yes, 0}));
      model.forward(root, {inner, inner});
      planner.at({"backward", 2, 0});
      planner.backward_reaches(root);
      model.report_gradients(outer);
      for (int use = 0; use < 2; ++use) {
        planner.backward_reaches(inner);
        if (needs_gradient) planner.backward_leaves(inner);
      }
      model.report_gradients(inner);
      planner.end_backward();
      EXPECT_EQ(count(planner, "all_gather", "forward"), keep ? 2 : 3);
      EXPECT_EQ(count(planner, "all_gather", "backward"), (keep ? 0 : 1) + (needs_gradient ? 1 : 0));
      EXPECT_EQ(count(planner, "reduce_scatter"), 2);
    }
}

// Two forwards of a(b(a(x))) and one backward. Each call that backward reaches uses its own position in the order of
// forwards, even if its group is still unsharded from a later call, and prefetches the group before it.
struct CalledTwice {
  Planner planner;
  Model model{planner};
  ModuleId a = model.linear(4, 4), b = model.linear(4, 4), root = model.module({a, b});
  std::map<ModuleId, std::int64_t> run(bool a_is_frozen) {
    for (auto& [id, tensor] : model.facts().tensors)
      if (id < 2) tensor.requires_grad = !a_is_frozen;
    model.update();
    ShardChoices choices = shard_over(2);
    const std::map<ModuleId, std::string> names = {{a, "a"}, {b, "b"}, {root, "root"}};
    for (const auto& [id, name] : names) {
      choices.owner = name;
      planner.fully_shard({id}, choices);
    }
    for (int i = 0; i < 2; ++i) model.forward(root, {a, b, a});
    planner.at({"backward", 2, 0});
    for (int i = 0; i < 2; ++i) {
      planner.backward_reaches(root);
      planner.backward_reaches(a);
      planner.backward_leaves(a);
      planner.backward_reaches(b);
      if (a_is_frozen) continue;  // the inputs of b need no gradient
      planner.backward_leaves(b);
      planner.backward_reaches(a);
    }
    planner.end_backward();
    std::map<ModuleId, std::int64_t> gathers;
    for (const Collective& collective : planner.collectives())
      for (const auto& [id, name] : names)
        if (collective.phase == "backward" && collective.owner == name)
          gathers[id] += collective.operation == "all_gather";
    return gathers;
  }
};

TEST(ShardPlan, EachCallReachedByBackwardUsesItsOwnPositionInTheForwardOrder) {
  CalledTwice trained;
  std::map<ModuleId, std::int64_t> gathers = trained.run(false);
  EXPECT_EQ(gathers[trained.a], 3);
  EXPECT_EQ(gathers[trained.b], 2);
  CalledTwice frozen;
  gathers = frozen.run(true);
  EXPECT_EQ(gathers[frozen.a], 3);
  EXPECT_EQ(gathers[frozen.b], 1);
}

TEST(ShardPlan, AGroupOfSeveralModulesIsGatheredOnce) {
  Planner planner;
  Model model(planner);
  const ModuleId a = model.linear(4, 4), b = model.linear(4, 4);
  const ModuleId root = model.module({a, b});
  planner.fully_shard({a, b}, shard_over(2));
  planner.fully_shard({root}, shard_over(2));
  model.forward(root, {a, b});
  EXPECT_EQ(count(planner, "all_gather"), 1);  // the root has no parameters left
  model.backward(root, {a, b});
  EXPECT_EQ(count(planner, "all_gather", "backward"), 1);
  EXPECT_EQ(count(planner, "reduce_scatter"), 1);
}

TEST(ShardPlan, AReplicatedModuleBelowKeepsItsParameters) {
  Planner planner;
  Model model(planner);
  const ModuleId below = model.linear(4, 4), own = model.linear(4, 4);
  const ModuleId root = model.module({below, own});
  ReplicateChoices choices;
  choices.axes = {{"dp", 2}};
  planner.replicate(below, choices);
  planner.fully_shard({root}, shard_over(2));
  model.forward(root, {});
  EXPECT_EQ(bytes(planner, "all_gather", "forward"), (16 + 4) * 4);
}

}  // namespace
}  // namespace lockstep::plan
