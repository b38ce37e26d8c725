#include <gtest/gtest.h>

#include "harness/plan/testing.hpp"

namespace lockstep::plan {
namespace {

using testing::bytes;
using testing::count;
using testing::Model;
using Kind = Reshard::Kind;

ShardChoices over(int ranks, Reshard reshard = {}) {
  ShardChoices choices;
  choices.shard = {"dp", ranks};
  choices.reshard_after_forward = reshard;
  return choices;
}

// A chain of `num_blocks` linears, each a group, and the root with a parameter of its own.
struct Chain {
  Planner planner;
  Model model{planner};
  std::vector<ModuleId> blocks;
  ModuleId root = 0;
  explicit Chain(int num_blocks, const ShardChoices& choices) {
    for (int i = 0; i < num_blocks; ++i) blocks.push_back(model.linear(8, 8));
    root = model.module(blocks);
    model.parameter(root, {8});
    for (const ModuleId block : blocks) planner.fully_shard({block}, choices);
    planner.fully_shard({root}, choices);
  }
  void forward(bool recording = true) { model.forward(root, blocks, recording); }
  void backward() { model.backward(root, blocks); }
};

// ---- documents: gradient accumulation, all of its 42 cases ----
enum class Mode { all, root_only, some_mlps };
struct Accumulation {
  bool two_axes, reshard_after_backward, offload, reduce_scatter_only;
  Reshard reshard;
  Mode mode;
};

std::vector<Accumulation> accumulations() {
  std::vector<Accumulation> cases;
  for (const bool two_axes : {false, true})
    for (const Reshard reshard : {Reshard{Kind::yes, 0}, Reshard{Kind::no, 0}, Reshard{Kind::among, 2}})
      for (const Mode mode : {Mode::all, Mode::root_only, Mode::some_mlps})
        for (const bool after_backward : {true, false})
          for (const bool offload : {false, true})
            for (const bool scatter_only : {false, true}) {
              if (!after_backward && (reshard.kind != Kind::no || mode == Mode::some_mlps)) continue;
              if (offload && reshard.kind != Kind::yes) continue;
              if (scatter_only && !two_axes) continue;
              cases.push_back({two_axes, after_backward, offload, scatter_only, reshard, mode});
            }
  return cases;
}

TEST(ShardPlan, GradientAccumulationHasAsManyCasesAsTheDocument) { EXPECT_EQ(accumulations().size(), 42u); }

TEST(ShardPlan, GradientAccumulationFollowsTheClosedForms) {
  constexpr int n = 3, m = 3;
  for (const Accumulation& of : accumulations()) {
    Planner planner;
    Model model(planner);
    std::vector<ModuleId> chain = {model.linear(32, 32)};
    for (int i = 0; i < n; ++i) chain.push_back(model.mlp(32));
    const ModuleId root = model.module(chain);
    ShardChoices choices = over(of.two_axes ? 2 : 4, of.reshard);
    if (of.two_axes) choices.replicate = Axis{"replicate", 2};
    for (int i = 1; i <= n; ++i) planner.fully_shard({chain[static_cast<std::size_t>(i)]}, choices);
    planner.fully_shard({root}, choices);
    for (int microbatch = 0; microbatch < m; ++microbatch) {
      const bool last = microbatch == m - 1;
      FlagChange flags;
      (of.reduce_scatter_only ? flags.requires_all_reduce : flags.requires_gradient_sync) = last;
      if (!of.reshard_after_backward) flags.reshard_after_backward = last;
      if (of.mode == Mode::some_mlps) {
        planner.set_flags(chain[1], flags);
        planner.set_flags(chain[2], flags);
      } else {
        planner.set_flags(root, flags, of.mode == Mode::all);
      }
      model.forward(root, chain);
      model.backward(root, chain);
    }
    int reduced = n + 1;
    if (of.mode == Mode::some_mlps) reduced += (n - 2 + 1) * (m - 1);
    if (of.mode == Mode::root_only) reduced += n * (m - 1);
    int gathered = n + 1;
    if (of.reshard.kind != Kind::no)
      gathered = (n + 1 + n) * m;
    else if (of.reshard_after_backward)
      gathered = (n + 1) * m;
    else if (of.mode == Mode::root_only)
      gathered = n + 1 + n * (m - 1);
    const std::string which = str("two_axes=", of.two_axes, " reshard=", static_cast<int>(of.reshard.kind),
                                  " mode=", static_cast<int>(of.mode), " after_backward=", of.reshard_after_backward,
                                  " only=", of.reduce_scatter_only);
    EXPECT_EQ(count(planner, "all_gather"), gathered) << which;
    EXPECT_EQ(count(planner, "reduce_scatter"), of.reduce_scatter_only ? (n + 1) * m : reduced) << which;
    EXPECT_EQ(count(planner, "all_reduce"), of.two_axes ? reduced : 0) << which;
  }
}

// ---- counts of a step ----
TEST(ShardPlan, AStepGathersInForwardAndWhatWasPutBackInBackward) {
  for (const int layers : {1, 3})
    for (const Reshard reshard : {Reshard{Kind::yes, 0}, Reshard{Kind::no, 0}, Reshard{Kind::among, 2}}) {
      Chain chain(layers, over(4, reshard));
      chain.forward();
      EXPECT_EQ(count(chain.planner, "all_gather", "forward"), layers + 1);
      EXPECT_EQ(chain.planner.collectives().size(), static_cast<std::size_t>(layers + 1));
      chain.backward();
      EXPECT_EQ(count(chain.planner, "all_gather", "backward"), reshard.kind == Kind::no ? 0 : layers);
      EXPECT_EQ(count(chain.planner, "reduce_scatter", "backward"), layers + 1);
      EXPECT_EQ(count(chain.planner, "all_reduce"), 0);
    }
}

TEST(ShardPlan, WhatIsPutBackByHandIsGatheredAgainInBackwardTheRootToo) {
  Chain chain(3, over(4, {Kind::no, 0}));
  chain.forward();
  for (const ModuleId block : chain.blocks) chain.planner.shards().reshard(block);
  chain.planner.shards().reshard(chain.root);
  chain.backward();
  EXPECT_EQ(count(chain.planner, "all_gather", "forward"), 4);
  EXPECT_EQ(count(chain.planner, "all_gather", "backward"), 4);
  EXPECT_EQ(count(chain.planner, "reduce_scatter"), 4);
}

TEST(ShardPlan, BytesAreThoseOfThePaddedWhole) {
  Planner planner;
  Model model(planner);
  const ModuleId root = model.module();
  model.parameter(root, {5, 3});  // 5 rows among 4 ranks: 2 each, 8 in all
  model.parameter(root, {2});     // 1 each, 4 in all
  planner.fully_shard({root}, over(4));
  model.forward(root, {});
  model.backward(root, {});
  EXPECT_EQ(bytes(planner, "all_gather"), (8 * 3 + 4) * 4);
  EXPECT_EQ(bytes(planner, "reduce_scatter"), (8 * 3 + 4) * 4);
}

TEST(ShardPlan, TypesOfThePolicyDecideTheBytes) {
  Planner planner;
  Model model(planner);
  const ModuleId root = model.module();
  model.parameter(root, {8, 4});
  ShardChoices choices = over(4);
  choices.param = DType::bfloat16;
  choices.reduce = DType::float32;
  planner.fully_shard({root}, choices);
  model.forward(root, {});
  model.backward(root, {});
  EXPECT_EQ(bytes(planner, "all_gather"), 8 * 4 * 2);
  EXPECT_EQ(bytes(planner, "reduce_scatter"), 8 * 4 * 4);
}

TEST(ShardPlan, AnotherDimIsPaddedInsteadOfTheRows) {
  Planner planner;
  Model model(planner);
  const ModuleId root = model.module();
  const TensorId weight = model.parameter(root, {3, 6});
  ShardChoices choices = over(4);
  choices.dims[weight] = 1;
  planner.fully_shard({root}, choices);
  model.forward(root, {});
  EXPECT_EQ(bytes(planner, "all_gather"), 3 * 8 * 4);
}

TEST(ShardPlan, WhatAnOwnerSendsTravelsInPlaceOfItsPart) {
  for (const bool two_types : {false, true}) {
    Planner planner;
    Model model(planner);
    const ModuleId root = model.module();
    const TensorId extended = model.parameter(root, {5, 3});
    model.parameter(root, {3});  // 1 each of 4 ranks
    planner.fully_shard({root}, over(4));
    EXPECT_EQ(planner.shards().part_sizes(extended), (Dims{2, 3}));
    if (two_types)
      planner.shards().set_sent(extended, {{12, DType::bfloat16}, {5, DType::boolean}});
    else
      planner.shards().set_sent(extended, {{12, DType::float32}});
    model.forward(root, {});
    model.backward(root, {});
    // Of several types each begins at a multiple of eight: 16, 8 and 8 bytes.
    EXPECT_EQ(bytes(planner, "all_gather"), 4 * (two_types ? 16 + 8 + 8 : 12 + 4));
    EXPECT_EQ(bytes(planner, "reduce_scatter"), 4 * (2 * 3 + 1) * 4);
  }
}

TEST(ShardPlan, PartsKeptByFewRanksAreGatheredAmongThese) {
  Chain chain(2, over(4, {Kind::among, 2}));
  chain.forward();
  chain.backward();
  for (const Collective& one : chain.planner.collectives()) {
    if (one.operation != "all_gather") continue;
    EXPECT_EQ(one.group_size, one.phase == "forward" ? 4 : 2);
    EXPECT_EQ(one.axis, "dp");
  }
  EXPECT_EQ(bytes(chain.planner, "all_gather", "backward"), 2 * (64 + 8) * 4);
}

TEST(ShardPlan, FrozenParametersAreGatheredAndNotReduced) {
  Planner planner;
  Model model(planner);
  const ModuleId root = model.module();
  model.parameter(root, {8, 8}, DType::float32, false);
  model.parameter(root, {8});
  planner.fully_shard({root}, over(2));
  model.forward(root, {});
  model.backward(root, {});
  EXPECT_EQ(bytes(planner, "all_gather"), (64 + 8) * 4);
  EXPECT_EQ(bytes(planner, "reduce_scatter"), 8 * 4);
}

TEST(ShardPlan, AGroupThatGotNoGradientReducesNothing) {
  Chain chain(2, over(2));
  chain.model.forward(chain.root, chain.blocks);
  chain.model.backward(chain.root, {chain.blocks[1]});
  EXPECT_EQ(count(chain.planner, "reduce_scatter"), 2);
}

TEST(ShardPlan, ASharedParameterIsOneAndOfTheOutermostThatClaimsIt) {
  Planner planner;
  Model model(planner);
  const ModuleId first = model.module(), last = model.module();
  const TensorId weight = model.parameter(first, {8, 4});
  model.share(last, weight);
  const ModuleId root = model.module({first, last});
  planner.fully_shard({root}, over(2));
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
      planner.fully_shard({inner}, over(2, {keep ? Kind::no : Kind::yes, 0}));
      planner.fully_shard({root}, over(2, {keep ? Kind::no : Kind::yes, 0}));
      model.forward(root, {inner, inner});
      planner.at({"backward", 2, 0});
      planner.backward_reaches(root);
      model.give_gradients(outer);
      for (int use = 0; use < 2; ++use) {
        planner.backward_reaches(inner);
        if (needs_gradient) planner.backward_leaves(inner);
      }
      model.give_gradients(inner);
      planner.end_backward();
      EXPECT_EQ(count(planner, "all_gather", "forward"), keep ? 2 : 3);
      EXPECT_EQ(count(planner, "all_gather", "backward"), (keep ? 0 : 1) + (needs_gradient ? 1 : 0));
      EXPECT_EQ(count(planner, "reduce_scatter"), 2);
    }
}

// Two forwards of a(b(a(x))) and one backward. Each call that backward reaches takes its own place in the order of
// forwards, though its group may still be whole from a later call, and gathers the one before it ahead.
struct CalledTwice {
  Planner planner;
  Model model{planner};
  ModuleId a = model.linear(4, 4), b = model.linear(4, 4), root = model.module({a, b});
  std::map<ModuleId, std::int64_t> run(bool a_is_frozen) {
    for (auto& [id, tensor] : model.facts().tensors)
      if (id < 2) tensor.requires_grad = !a_is_frozen;
    model.tell();
    ShardChoices choices = over(2);
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
      if (a_is_frozen) continue;  // what comes before b needs no gradient
      planner.backward_leaves(b);
      planner.backward_reaches(a);
    }
    planner.end_backward();
    std::map<ModuleId, std::int64_t> gathers;
    for (const Collective& one : planner.collectives())
      for (const auto& [id, name] : names)
        if (one.phase == "backward" && one.owner == name) gathers[id] += one.operation == "all_gather";
    return gathers;
  }
};

TEST(ShardPlan, EveryCallThatBackwardReachesTakesItsOwnPlaceInTheOrder) {
  CalledTwice trained;
  std::map<ModuleId, std::int64_t> gathers = trained.run(false);
  EXPECT_EQ(gathers[trained.a], 3);
  EXPECT_EQ(gathers[trained.b], 2);
  CalledTwice frozen;
  gathers = frozen.run(true);
  EXPECT_EQ(gathers[frozen.a], 3);
  EXPECT_EQ(gathers[frozen.b], 1);
}

// ---- evaluation, flags, prefetch ----
TEST(ShardPlan, WhatAnEvaluationLeftGatheredIsUsedUntilItsPartsChange) {
  Chain chain(2, over(2, {Kind::no, 0}));
  chain.forward(false);
  chain.forward(false);
  EXPECT_EQ(count(chain.planner, "all_gather"), 3);
  chain.model.step();
  chain.forward(false);
  EXPECT_EQ(count(chain.planner, "all_gather"), 6);
}

TEST(ShardPlan, AStateDictPutsTheGroupsBelowBack) {
  Chain chain(2, over(2, {Kind::no, 0}));
  chain.forward();
  for (const ModuleId module : chain.planner.facts().pre_order(chain.root)) chain.planner.shards().reshard(module);
  chain.backward();
  EXPECT_EQ(count(chain.planner, "all_gather", "backward"), 3);
}

TEST(ShardPlan, OverTwoAxesAllPartialSumsAreReducedTogetherOnce) {
  ShardChoices choices = over(2);
  choices.replicate = Axis{"replicate", 3};
  Chain chain(1, choices);
  FlagChange flags;
  flags.requires_all_reduce = false;
  chain.planner.set_flags(chain.root, flags);
  chain.forward();
  chain.backward();
  EXPECT_EQ(count(chain.planner, "all_reduce"), 0);
  flags.requires_all_reduce = true;
  chain.planner.set_flags(chain.root, flags);
  chain.forward();
  chain.backward();
  EXPECT_EQ(count(chain.planner, "reduce_scatter"), 4);
  EXPECT_EQ(count(chain.planner, "all_reduce"), 2);
  EXPECT_EQ(bytes(chain.planner, "all_reduce"), (64 + 8 + 8) / 2 * 4);
  for (const Collective& one : chain.planner.collectives())
    if (one.operation == "all_reduce") {
      EXPECT_EQ(one.group_size, 3);
    }
}

TEST(ShardPlan, GradientsKeptBackAreReducedWithTheNextSynchronisedBackwardEvenIfThatOneMissesTheGroup) {
  Chain chain(2, over(2));
  FlagChange flags;
  flags.requires_gradient_sync = false;
  chain.planner.set_flags(chain.root, flags);
  chain.forward();
  chain.backward();
  EXPECT_EQ(count(chain.planner, "reduce_scatter"), 0);
  flags.requires_gradient_sync = true;
  chain.planner.set_flags(chain.root, flags);
  chain.forward();
  chain.model.backward(chain.root, {chain.blocks[1]});
  EXPECT_EQ(count(chain.planner, "reduce_scatter"), 3);
}

TEST(ShardPlan, AGatherAheadThatNobodyUsesIsCountedAndDroppedAtTheLastBackwardOnly) {
  for (const bool last : {true, false}) {
    // Two branches below one root; backward goes through the second alone, which gathers the first ahead.
    Chain chain(2, over(2));
    FlagChange flags;
    flags.is_last_backward = last;
    chain.planner.set_flags(chain.root, flags);
    chain.forward();
    Planner& planner = chain.planner;
    const auto through = [&](ModuleId branch) {
      planner.at({"backward", 2, 0});
      planner.backward_reaches(branch);
      chain.model.give_gradients(branch);
      planner.backward_leaves(branch);
      planner.end_backward();
    };
    through(chain.blocks[1]);
    EXPECT_EQ(count(planner, "all_gather", "backward"), 2);
    through(chain.blocks[0]);
    EXPECT_EQ(count(planner, "all_gather", "backward"), last ? 3 : 2);
  }
}

TEST(ShardPlan, ARootThatOwnsNothingGathersNothingAhead) {
  Planner planner;
  Model model(planner);
  const ModuleId trunk = model.linear(4, 4), left = model.linear(4, 4), right = model.linear(4, 4);
  const ModuleId root = model.module({trunk, left, right});
  for (const ModuleId module : {trunk, left, right, root}) planner.fully_shard({module}, over(2));
  model.forward(root, {trunk, left, right});
  model.backward(root, {trunk, left});  // the output of `right` is not used
  EXPECT_EQ(count(planner, "all_gather", "backward"), 2);
  EXPECT_EQ(count(planner, "reduce_scatter"), 2);
}

TEST(ShardPlan, WhatIsToldToBeGatheredAheadChangesNoCount) {
  Chain chain(4, over(2));
  for (std::size_t i = 0; i < 4; ++i) {
    std::vector<ModuleId> next, previous;
    for (std::size_t k = 1; k <= 2; ++k) {
      if (i + k < 4) next.push_back(chain.blocks[i + k]);
      if (i >= k) previous.push_back(chain.blocks[i - k]);
    }
    chain.planner.shards().set_forward_prefetch(chain.blocks[i], next);
    chain.planner.shards().set_backward_prefetch(chain.blocks[i], previous);
  }
  chain.forward();
  chain.backward();
  EXPECT_EQ(count(chain.planner, "all_gather", "forward"), 5);
  EXPECT_EQ(count(chain.planner, "all_gather", "backward"), 4);
}

TEST(ShardPlan, AFlagSetAfterTheFirstForwardReshardsTheRoot) {
  for (const bool flagged : {false, true}) {
    Chain chain(1, over(2));
    chain.forward();
    chain.backward();
    FlagChange flags;
    flags.reshard_after_forward = Reshard{Reshard::Kind::yes};
    if (flagged) chain.planner.shards().change(chain.root, flags);
    const std::size_t before = chain.planner.collectives().size();
    chain.forward();
    chain.backward();
    const auto& all = chain.planner.collectives();
    const auto gathers =
        std::count_if(all.begin() + static_cast<std::ptrdiff_t>(before), all.end(),
                      [](const auto& one) { return one.operation == "all_gather" && one.phase == "backward"; });
    EXPECT_EQ(gathers, flagged ? 2 : 1);
  }
}

TEST(ShardPlan, ARecomputationAndTheBackwardThatFollowsShareAGather) {
  Chain chain(2, over(2));
  chain.forward();
  Planner& planner = chain.planner;
  const auto& [a, b] = std::tie(chain.blocks[0], chain.blocks[1]);
  planner.at({"backward", 2, 0});
  planner.backward_reaches(chain.root);
  planner.backward_reaches(b);
  for (const ModuleId again : {a, b}) {
    planner.enter(again, {true, true});
    planner.leave(again, {true, true});
  }
  chain.model.give_gradients(b);
  planner.backward_leaves(b);
  planner.backward_reaches(a);
  chain.model.give_gradients(a);
  planner.end_backward();
  EXPECT_EQ(count(planner, "all_gather", "forward"), 3);
  EXPECT_EQ(count(planner, "all_gather", "backward"), 2);  // b; a ahead, for the recomputation and for its backward
}

TEST(ShardPlan, SeveralModulesOfOneGroupAreGatheredOnce) {
  Planner planner;
  Model model(planner);
  const ModuleId a = model.linear(4, 4), b = model.linear(4, 4);
  const ModuleId root = model.module({a, b});
  planner.fully_shard({a, b}, over(2));
  planner.fully_shard({root}, over(2));
  model.forward(root, {a, b});
  EXPECT_EQ(count(planner, "all_gather"), 1);  // the root owns nothing
  model.backward(root, {a, b});
  EXPECT_EQ(count(planner, "all_gather", "backward"), 1);
  EXPECT_EQ(count(planner, "reduce_scatter"), 1);
}

TEST(ShardPlan, AModuleThatIsReplicatedBelowKeepsItsParameters) {
  Planner planner;
  Model model(planner);
  const ModuleId below = model.linear(4, 4), own = model.linear(4, 4);
  const ModuleId root = model.module({below, own});
  ReplicateChoices choices;
  choices.axes = {{"dp", 2}};
  planner.replicate(below, choices);
  planner.fully_shard({root}, over(2));
  model.forward(root, {});
  EXPECT_EQ(bytes(planner, "all_gather", "forward"), (16 + 4) * 4);
}

}  // namespace
}  // namespace lockstep::plan
