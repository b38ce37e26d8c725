// The collectives of units of flat_shard: counts, bytes and order, worked out by hand.
#include "harness/plan/flat_plan.hpp"

#include <gtest/gtest.h>

#include "harness/plan/testing.hpp"

namespace lockstep::plan {
namespace {

using testing::bytes;
using testing::count;
using testing::Model;
using testing::sequence_of;
using Sequence = std::vector<std::string>;
using Strategy = FlatStrategy;

ShardChoices choices_of(Strategy strategy, const std::vector<Axis>& axes = {{"dp", 4}}) {
  ShardChoices choices;
  apply_strategy(strategy, axes, choices);
  return choices;
}
const std::vector<Axis> two_axes = {{"replicate", 2}, {"shard", 4}};

// A chain of linears, each a unit a, b, c, ..., and the unit of the rest, with one parameter.
//   a linear: 5 * 3 elements, one of padding, and 5: 21; on 4 ranks 24, chunks of 6; on 2 ranks 22
//   the rest: 6 elements; on 4 ranks 8, chunks of 2
struct Units {
  Planner planner;
  Model model{planner};
  std::vector<ModuleId> blocks;
  ModuleId root = 0;
  Units(int num_blocks, ShardChoices choices) {
    for (int i = 0; i < num_blocks; ++i) blocks.push_back(model.linear(3, 5));
    root = model.module(blocks);
    model.parameter(root, {6});
    for (const Planner::FlatUnit& unit : planner.flat_units(root, {blocks.begin(), blocks.end()}, {})) {
      choices.owner = unit.module == root ? "root" : std::string(1, static_cast<char>('a' + unit.module));
      planner.flat_shard(unit, choices);
    }
  }
  TensorId weight(std::size_t block) const { return planner.facts().module(blocks[block]).parameters[0].id; }
  TensorId bias(std::size_t block) const { return planner.facts().module(blocks[block]).parameters[1].id; }
  void forward(bool recording = true) { model.forward(root, blocks, recording); }
  void backward(bool first_needs_gradient = false) { model.backward(root, blocks, first_needs_gradient); }
  void synchronize(bool value) {
    FlagChange flags;
    flags.requires_gradient_sync = value;
    planner.set_flags(root, flags);
  }
};

// ---- strategies ----
TEST(FlatPlan, FullShardGathersEachUnitAgainInBackwardExceptTheRoot) {
  Units units(2, choices_of(Strategy::full_shard));
  units.forward();
  EXPECT_EQ(sequence_of(units.planner, "forward"), (Sequence{"gather root", "gather a", "gather b"}));
  EXPECT_EQ(bytes(units.planner, "all_gather", "forward"), (24 + 24 + 8) * 4);
  units.backward();
  EXPECT_EQ(sequence_of(units.planner, "backward"),
            (Sequence{"gather b", "gather a", "scatter b", "scatter root", "scatter a"}));
  EXPECT_EQ(bytes(units.planner, "all_gather", "backward"), (24 + 24) * 4);
  EXPECT_EQ(bytes(units.planner, "reduce_scatter"), (24 + 24 + 8) * 4);
  for (const Collective& one : units.planner.collectives()) {
    EXPECT_EQ(one.axis, "dp");
    EXPECT_EQ(one.group_size, 4);
    EXPECT_EQ(one.family, "data_parallel");
  }
}

TEST(FlatPlan, ShardGradOpGathersOncePerStep) {
  Units units(2, choices_of(Strategy::shard_grad_op));
  for (int step = 1; step <= 2; ++step) {
    units.forward();
    units.backward();
    units.model.step();
    EXPECT_EQ(count(units.planner, "all_gather", "forward"), 3 * step);
    EXPECT_EQ(count(units.planner, "all_gather", "backward"), 0);
    EXPECT_EQ(count(units.planner, "reduce_scatter"), 3 * step);
  }
}

TEST(FlatPlan, NoShardReducesTheWholeGradientOverTheMesh) {
  Units units(2, choices_of(Strategy::no_shard));
  units.forward();
  EXPECT_TRUE(units.planner.collectives().empty());
  units.backward();
  EXPECT_EQ(sequence_of(units.planner, "backward"), (Sequence{"sum b", "sum root", "sum a"}));
  EXPECT_EQ(bytes(units.planner, "all_reduce"), (21 + 21 + 6) * 4);
  EXPECT_EQ(units.planner.collectives()[0].axis, "dp");
  EXPECT_EQ(units.planner.collectives()[0].group_size, 4);
}

TEST(FlatPlan, HybridStrategiesReduceTheChunkOverTheReplicas) {
  for (const Strategy strategy : {Strategy::hybrid_shard, Strategy::hybrid_shard_grad_op}) {
    Units units(1, choices_of(strategy, two_axes));
    units.forward();
    units.backward();
    EXPECT_EQ(sequence_of(units.planner, "forward"), (Sequence{"gather root", "gather a"}));
    Sequence backward = {"scatter root", "sum root", "scatter a", "sum a"};
    if (strategy == Strategy::hybrid_shard) backward.insert(backward.begin(), "gather a");
    EXPECT_EQ(sequence_of(units.planner, "backward"), backward);
    EXPECT_EQ(bytes(units.planner, "all_reduce"), (2 + 6) * 4);
    const Collective& last = units.planner.collectives().back();
    EXPECT_EQ(last.axis, "replicate");
    EXPECT_EQ(last.group_size, 2);
  }
}

TEST(FlatPlan, AnAxisOfOneRankDoesNotShard) {
  Units hybrid(1, choices_of(Strategy::hybrid_shard, {{"replicate", 4}, {"shard", 1}}));
  hybrid.forward();
  hybrid.backward();
  EXPECT_EQ(hybrid.planner.collectives().size(), 2u);
  EXPECT_EQ(sequence_of(hybrid.planner, "backward"), (Sequence{"sum root", "sum a"}));
  EXPECT_EQ(hybrid.planner.collectives()[0].axis, "replicate");
  EXPECT_EQ(bytes(hybrid.planner, "all_reduce"), (6 + 21) * 4);
  Units alone(1, choices_of(Strategy::full_shard, {{"dp", 1}}));
  alone.forward();
  alone.backward();
  EXPECT_EQ(sequence_of(alone.planner, "backward"), (Sequence{"sum root", "sum a"}));
}

TEST(FlatPlan, UsesTheTypesOfThePolicyAndPacksFlatParameters) {
  ShardChoices choices = choices_of(Strategy::full_shard);
  choices.param = DType::bfloat16;  // steps of 8 elements: 15, one of padding, 5: 21; 6 in the rest
  choices.reduce = DType::float32;
  Units units(1, choices);
  units.forward();
  units.backward();
  EXPECT_EQ(bytes(units.planner, "all_gather", "forward"), (24 + 8) * 2);
  EXPECT_EQ(bytes(units.planner, "reduce_scatter"), (24 + 8) * 4);
  choices.flat->aligned = false;  // 20 elements
  Units packed(1, choices);
  packed.forward();
  EXPECT_EQ(bytes(packed.planner, "all_gather"), (20 + 8) * 2);
}

// ---- accumulation ----
TEST(FlatPlan, WithoutSynchronizationOnlyShardGradOpStaysUnsharded) {
  for (const Strategy strategy : {Strategy::full_shard, Strategy::shard_grad_op}) {
    const bool reshards = strategy == Strategy::full_shard;
    Units units(2, choices_of(strategy));
    units.synchronize(false);
    for (int microbatch = 0; microbatch < 2; ++microbatch) {
      units.forward();
      units.backward();
    }
    EXPECT_EQ(count(units.planner, "all_gather", "forward"), reshards ? 6 : 3);
    EXPECT_EQ(count(units.planner, "reduce_scatter"), 0);
    units.synchronize(true);
    units.forward();
    units.backward();
    EXPECT_EQ(count(units.planner, "all_gather", "forward"), reshards ? 9 : 3);
    EXPECT_EQ(count(units.planner, "all_gather", "backward"), reshards ? 6 : 0);
    EXPECT_EQ(count(units.planner, "reduce_scatter"), 3);
    units.forward();
    EXPECT_EQ(count(units.planner, "all_gather", "forward"), reshards ? 12 : 6);
  }
}

TEST(FlatPlan, ReducesAWholeUnitWhenOneParameterGotAGradient) {
  Units units(2, choices_of(Strategy::full_shard));
  units.forward();
  units.planner.at({"backward", 2, 0});
  units.planner.begin_backward({units.weight(1)});
  units.planner.backward_reaches(units.root);
  units.planner.backward_reaches(units.blocks[1]);
  units.planner.gradient(units.weight(1));
  units.planner.backward_leaves(units.blocks[1]);
  EXPECT_EQ(bytes(units.planner, "reduce_scatter"), 24 * 4);
  units.planner.end_backward();
  EXPECT_EQ(count(units.planner, "reduce_scatter"), 1);
  EXPECT_EQ(units.planner.shards().take_reduced().size(), 2u);
}

// A unit that is called twice: backward enters it at the second call and leaves it at the first.
TEST(FlatPlan, WaitsForTheLastGradientOfAUnit) {
  Units units(1, choices_of(Strategy::full_shard));
  units.forward();
  units.planner.at({"backward", 2, 0});
  units.planner.begin_backward({units.weight(0), units.bias(0)});
  units.planner.backward_reaches(units.root);
  units.planner.backward_reaches(units.blocks[0]);
  units.planner.gradient(units.bias(0));
  units.planner.backward_leaves(units.blocks[0]);
  EXPECT_EQ(count(units.planner, "reduce_scatter"), 0);
  units.planner.backward_reaches(units.blocks[0]);
  units.planner.gradient(units.weight(0));
  units.planner.backward_leaves(units.blocks[0]);
  EXPECT_EQ(count(units.planner, "reduce_scatter"), 1);
  units.planner.end_backward();
  EXPECT_EQ(count(units.planner, "reduce_scatter"), 1);
  EXPECT_EQ(count(units.planner, "all_gather", "backward"), 1);
}

TEST(FlatPlan, AFrozenUnitIsGatheredAndNotReduced) {
  Units units(2, choices_of(Strategy::full_shard));
  for (const TensorId id : {units.weight(0), units.bias(0)}) units.model.facts().tensors[id].requires_grad = false;
  units.model.update();
  units.forward();
  units.backward();
  EXPECT_EQ(count(units.planner, "all_gather", "forward"), 3);
  EXPECT_EQ(sequence_of(units.planner, "backward"), (Sequence{"gather b", "gather a", "scatter b", "scatter root"}));
}

TEST(FlatPlan, GradientsThatAreKeptBackWaitForAFrozenUnitOrAreDropped) {
  for (const bool drops : {false, true}) {
    Units units(2, choices_of(Strategy::full_shard));
    ShardPlan& shards = units.planner.shards();
    units.synchronize(false);
    units.forward();
    units.backward();
    units.synchronize(true);
    for (const TensorId id : {units.weight(1), units.bias(1)}) {
      EXPECT_TRUE(shards.keeps_back(id));
      shards.note_frozen(id, true);
    }
    units.forward();
    units.backward();  // also reports gradients of b, as one whose forward was before the freeze
    EXPECT_EQ(count(units.planner, "reduce_scatter"), 2);
    for (const TensorId id : {units.weight(1), units.bias(1)}) {
      shards.note_frozen(id, false);
      EXPECT_TRUE(shards.keeps_back(id));
      if (drops) shards.forget_kept_back(id);
    }
    units.planner.backward_reaches(units.root);
    units.planner.end_backward();
    EXPECT_EQ(count(units.planner, "reduce_scatter"), drops ? 2 : 3);
  }
}

// ---- prefetch ----
// The sequence up to the moment when backward leaves c, and the rest.
std::pair<Sequence, Sequence> backward_of_three(BackwardPrefetch when) {
  ShardChoices choices = choices_of(Strategy::full_shard);
  choices.flat->backward_prefetch = when;
  Units units(3, choices);
  units.forward();
  units.planner.at({"backward", 2, 0});
  units.planner.backward_reaches(units.root);
  units.planner.backward_reaches(units.blocks[2]);
  units.model.report_gradients(units.blocks[2]);
  const Sequence before = sequence_of(units.planner, "backward");
  const std::size_t so_far = units.planner.collectives().size();
  units.planner.backward_leaves(units.blocks[2]);
  for (const std::size_t block : {1u, 0u}) {
    units.planner.backward_reaches(units.blocks[block]);
    units.model.report_gradients(units.blocks[block]);
    if (block > 0) units.planner.backward_leaves(units.blocks[block]);
  }
  units.planner.gradient(units.planner.facts().module(units.root).parameters[0].id);
  units.planner.end_backward();
  return {before, sequence_of(units.planner, "backward", so_far)};
}

TEST(FlatPlan, BackwardPrefetchComesBeforeTheComputationOrAfterTheReshard) {
  using Both = std::pair<Sequence, Sequence>;
  EXPECT_EQ(backward_of_three(BackwardPrefetch::before),
            (Both{{"gather c", "gather b"}, {"scatter c", "gather a", "scatter b", "scatter root", "scatter a"}}));
  // The root and `a` end with the backward, which prefetches nothing.
  EXPECT_EQ(backward_of_three(BackwardPrefetch::after),
            (Both{{"gather c"}, {"gather b", "scatter c", "gather a", "scatter b", "scatter root", "scatter a"}}));
  EXPECT_EQ(backward_of_three(BackwardPrefetch::none),
            (Both{{"gather c"}, {"scatter c", "gather b", "scatter b", "gather a", "scatter root", "scatter a"}}));
}

TEST(FlatPlan, ForwardPrefetchFollowsTheOrderOfTheFirstForward) {
  ShardChoices choices = choices_of(Strategy::full_shard);
  choices.flat->forward_prefetch = true;
  Units units(3, choices);
  units.planner.at({"forward", 1, 0});
  const auto enter = [&](std::size_t block) {
    units.planner.enter(units.blocks[block], {false, false});
    return sequence_of(units.planner, "forward");
  };
  const auto leave = [&](std::size_t block) { units.planner.leave(units.blocks[block], {false, false}); };
  const Sequence first = {"gather root", "gather a", "gather b", "gather c"};
  units.forward(false);
  EXPECT_EQ(sequence_of(units.planner, "forward"), first);
  units.planner.enter(units.root, {false, false});  // unsharded since the first forward
  Sequence expected = first;
  expected.push_back("gather a");
  EXPECT_EQ(sequence_of(units.planner, "forward"), expected);
  expected.push_back("gather b");
  EXPECT_EQ(enter(0), expected);
  leave(0);
  expected.push_back("gather c");
  EXPECT_EQ(enter(1), expected);
  leave(1);
  EXPECT_EQ(enter(2), expected);
  leave(2);
  expected.push_back("gather a");  // a second call: b has run in this forward and is not prefetched again
  EXPECT_EQ(enter(0), expected);
  leave(0);
  units.planner.leave(units.root, {false, false});
}

// ---- units and roots ----
TEST(FlatPlan, UnitsAreFoundBottomUpAndHoldTheRest) {
  Planner planner;
  Model model(planner);
  const ModuleId inner = model.linear(2, 2), left_out = model.linear(2, 2), managed = model.linear(2, 2);
  const ModuleId block = model.module({inner, left_out});
  const TensorId of_block = model.parameter(block, {3});
  const ModuleId empty = model.module();
  const ModuleId root = model.module({block, managed, empty});
  const TensorId of_root = model.parameter(root, {4}), ignored = model.parameter(root, {5});
  model.share(root, of_block);
  planner.replicate(managed, {});
  const auto units = planner.flat_units(root, {block, left_out, managed, empty}, {{left_out}, {ignored}});
  ASSERT_EQ(units.size(), 3u);
  EXPECT_EQ(units[0].module, block);
  const auto of_inner = planner.facts().module(inner).parameters;
  EXPECT_EQ(units[0].parameters, (std::vector<TensorId>{of_block, of_inner[0].id, of_inner[1].id}));
  EXPECT_EQ(units[0].modules, (std::vector<ModuleId>{block, inner}));
  EXPECT_EQ(units[1].module, empty);
  EXPECT_TRUE(units[1].parameters.empty());
  EXPECT_EQ(units[2].parameters, (std::vector<TensorId>{of_root}));
}

TEST(FlatPlan, AUnitWithoutParametersHasNoCollectives) {
  Planner planner;
  Model model(planner);
  const ModuleId inner = model.linear(2, 2);
  const ModuleId root = model.module({inner});
  for (const auto& unit : planner.flat_units(root, {inner}, {}))
    planner.flat_shard(unit, choices_of(Strategy::full_shard));
  model.forward(root, {inner});
  model.backward(root, {inner});
  EXPECT_EQ(count(planner, "all_gather", "forward"), 1);
  EXPECT_EQ(count(planner, "all_gather", "backward"), 1);  // the root is the unit without parameters
  EXPECT_EQ(count(planner, "reduce_scatter"), 1);
}

TEST(FlatPlan, UnitsBelowAReplicatedModuleHaveARootOfTheirOwn) {
  for (const bool replicated : {false, true}) {
    Planner planner;
    Model model(planner);
    const ModuleId inner = model.linear(2, 2), other = model.linear(2, 2);
    const ModuleId middle = model.module({inner});
    model.parameter(middle, {2});
    const ModuleId root = model.module({middle, other});
    ShardChoices choices = choices_of(Strategy::full_shard);
    choices.owner = "inner";
    for (const auto& unit : planner.flat_units(inner, {}, {})) planner.flat_shard(unit, choices);
    ReplicateChoices replicate;
    replicate.axes = {{"dp", 4}};
    if (replicated) planner.replicate(middle, replicate);
    choices.owner = "root";
    for (const auto& unit : planner.flat_units(root, {}, {})) planner.flat_shard(unit, choices);
    model.forward(root, {inner, other});
    model.backward(root, {inner, other});
    EXPECT_EQ(count(planner, "all_gather", "backward"), replicated ? 0 : 1);
    EXPECT_EQ(count(planner, "reduce_scatter"), 2);
  }
}

// ---- start-up and tensor parallelism ----
TEST(FlatPlan, BroadcastsStatesOncePerAxis) {
  Planner planner;
  Model model(planner);
  const ModuleId inner = model.linear(3, 5);
  model.buffer(inner, {7});
  const ModuleId root = model.module({inner});
  model.parameter(root, {6});
  planner.broadcast_states(planner.flat_units(root, {inner}, {}), {{"replicate", 2}, {"shard", 4}}, "net");
  ASSERT_EQ(planner.collectives().size(), 2u);
  for (const Collective& one : planner.collectives()) {
    EXPECT_EQ(one.family, "start_up");
    EXPECT_EQ(one.operation, "broadcast");
    EXPECT_EQ(one.owner, "net");
    EXPECT_EQ(one.bytes, (15 + 5 + 7 + 6) * 4);
    EXPECT_FALSE(one.bytes_are_least);
  }
  EXPECT_EQ(planner.collectives()[0].axis, "replicate");
  EXPECT_EQ(planner.collectives()[1].axis, "shard");
  Planner empty;
  Model nothing(empty);
  empty.broadcast_states(empty.flat_units(nothing.module(), {}, {}), {{"dp", 4}}, "net");
  EXPECT_TRUE(empty.collectives().empty());
}

TEST(FlatPlan, ReducesPartialGradientsInTheComputeTypeBeforeTheUnit) {
  Planner planner;
  Model model(planner);
  const ModuleId root = model.module();
  const TensorId norm = model.parameter(root, {6});
  model.parameter(root, {4, 4});
  ShardChoices choices = choices_of(Strategy::full_shard, {{"dp", 2}});
  choices.partial_gradients[norm] = {"tp", 4};
  choices.reduce = DType::float64;
  for (const auto& unit : planner.flat_units(root, {}, {})) planner.flat_shard(unit, choices);
  model.forward(root, {});
  model.backward(root, {});
  const std::vector<Collective>& all = planner.collectives();
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[1].operation, "all_reduce");
  EXPECT_EQ(all[1].family, "tensor_parallel");
  EXPECT_EQ(all[1].axis, "tp");
  EXPECT_EQ(all[1].bytes, 6 * 4);
  EXPECT_EQ(all[2].bytes, (6 + 2 + 16) * 8);
}

}  // namespace
}  // namespace lockstep::plan
