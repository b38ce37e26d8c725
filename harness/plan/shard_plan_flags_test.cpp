// The collectives of sharded groups over several steps: gradient accumulation, flags, evaluation, prefetch.
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

// ---- gradient accumulation: the 42 cases of the document ----
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

TEST(ShardPlanFlags, GradientAccumulationHas42Cases) { EXPECT_EQ(accumulations().size(), 42u); }

TEST(ShardPlanFlags, GradientAccumulationFollowsTheClosedForms) {
  constexpr int n = 3, m = 3;
  for (const Accumulation& config : accumulations()) {
    Planner planner;
    Model model(planner);
    std::vector<ModuleId> chain = {model.linear(32, 32)};
    for (int i = 0; i < n; ++i) chain.push_back(model.mlp(32));
    const ModuleId root = model.module(chain);
    ShardChoices choices = shard_over(config.two_axes ? 2 : 4, config.reshard);
    if (config.two_axes) choices.replicate = Axis{"replicate", 2};
    for (int i = 1; i <= n; ++i) planner.fully_shard({chain[static_cast<std::size_t>(i)]}, choices);
    planner.fully_shard({root}, choices);
    for (int microbatch = 0; microbatch < m; ++microbatch) {
      const bool last = microbatch == m - 1;
      FlagChange flags;
      (config.reduce_scatter_only ? flags.requires_all_reduce : flags.requires_gradient_sync) = last;
      if (!config.reshard_after_backward) flags.reshard_after_backward = last;
      if (config.mode == Mode::some_mlps) {
        planner.set_flags(chain[1], flags);
        planner.set_flags(chain[2], flags);
      } else {
        planner.set_flags(root, flags, config.mode == Mode::all);
      }
      model.forward(root, chain);
      model.backward(root, chain);
    }
    int reduced = n + 1;
    if (config.mode == Mode::some_mlps) reduced += (n - 2 + 1) * (m - 1);
    if (config.mode == Mode::root_only) reduced += n * (m - 1);
    int gathered = n + 1;
    if (config.reshard.kind != Kind::no)
      gathered = (n + 1 + n) * m;
    else if (config.reshard_after_backward)
      gathered = (n + 1) * m;
    else if (config.mode == Mode::root_only)
      gathered = n + 1 + n * (m - 1);
    const std::string which =
        str("two_axes=", config.two_axes, " reshard=", static_cast<int>(config.reshard.kind),
            " mode=", static_cast<int>(config.mode), " after_backward=", config.reshard_after_backward,
            " only=", config.reduce_scatter_only);
    EXPECT_EQ(count(planner, "all_gather"), gathered) << which;
    EXPECT_EQ(count(planner, "reduce_scatter"), config.reduce_scatter_only ? (n + 1) * m : reduced) << which;
    EXPECT_EQ(count(planner, "all_reduce"), config.two_axes ? reduced : 0) << which;
  }
}

// ---- evaluation, flags, prefetch ----
TEST(ShardPlanFlags, AnUnshardedGroupIsReusedUntilItsShardsChange) {
  Chain chain(2, shard_over(2, {Kind::no, 0}));
  chain.forward(false);
  chain.forward(false);
  EXPECT_EQ(count(chain.planner, "all_gather"), 3);
  chain.model.step();
  chain.forward(false);
  EXPECT_EQ(count(chain.planner, "all_gather"), 6);
}

TEST(ShardPlanFlags, AGroupReshardedByAStateDictIsGatheredInBackward) {
  Chain chain(2, shard_over(2, {Kind::no, 0}));
  chain.forward();
  for (const ModuleId module : chain.planner.facts().pre_order(chain.root)) chain.planner.shards().reshard(module);
  chain.backward();
  EXPECT_EQ(count(chain.planner, "all_gather", "backward"), 3);
}

TEST(ShardPlanFlags, PartialSumsOfSeveralBackwardsAreAllReducedOnce) {
  ShardChoices choices = shard_over(2);
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
  for (const Collective& collective : chain.planner.collectives())
    if (collective.operation == "all_reduce") {
      EXPECT_EQ(collective.group_size, 3);
    }
}

TEST(ShardPlanFlags, UnreducedGradientsAreReducedByABackwardThatDoesNotReachTheGroup) {
  Chain chain(2, shard_over(2));
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

TEST(ShardPlanFlags, AnUnusedPrefetchIsDroppedAtTheLastBackwardOnly) {
  for (const bool last : {true, false}) {
    // Two branches below one root. Backward goes through the second one only, which prefetches the first.
    Chain chain(2, shard_over(2));
    FlagChange flags;
    flags.is_last_backward = last;
    chain.planner.set_flags(chain.root, flags);
    chain.forward();
    Planner& planner = chain.planner;
    const auto through = [&](ModuleId branch) {
      planner.at({"backward", 2, 0});
      planner.backward_reaches(branch);
      chain.model.report_gradients(branch);
      planner.backward_leaves(branch);
      planner.end_backward();
    };
    through(chain.blocks[1]);
    EXPECT_EQ(count(planner, "all_gather", "backward"), 2);
    through(chain.blocks[0]);
    EXPECT_EQ(count(planner, "all_gather", "backward"), last ? 3 : 2);
  }
}

TEST(ShardPlanFlags, ARootWithoutParametersPrefetchesNothing) {
  Planner planner;
  Model model(planner);
  const ModuleId trunk = model.linear(4, 4), left = model.linear(4, 4), right = model.linear(4, 4);
  const ModuleId root = model.module({trunk, left, right});
  for (const ModuleId module : {trunk, left, right, root}) planner.fully_shard({module}, shard_over(2));
  model.forward(root, {trunk, left, right});
  model.backward(root, {trunk, left});  // the output of `right` is not used
  EXPECT_EQ(count(planner, "all_gather", "backward"), 2);
  EXPECT_EQ(count(planner, "reduce_scatter"), 2);
}

TEST(ShardPlanFlags, PrefetchListsDoNotChangeCounts) {
  Chain chain(4, shard_over(2));
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

TEST(ShardPlanFlags, AFlagSetAfterTheFirstForwardReshardsTheRoot) {
  for (const bool flagged : {false, true}) {
    Chain chain(1, shard_over(2));
    chain.forward();
    chain.backward();
    FlagChange flags;
    flags.reshard_after_forward = Reshard{Reshard::Kind::yes};
    if (flagged) chain.planner.shards().change(chain.root, flags);
    const std::size_t before = chain.planner.collectives().size();
    chain.forward();
    chain.backward();
    const auto& all = chain.planner.collectives();
    const auto gathers = std::count_if(
        all.begin() + static_cast<std::ptrdiff_t>(before), all.end(),
        [](const auto& collective) { return collective.operation == "all_gather" && collective.phase == "backward"; });
    EXPECT_EQ(gathers, flagged ? 2 : 1);
  }
}

TEST(ShardPlanFlags, ARecomputationAndItsBackwardShareOneAllGather) {
  Chain chain(2, shard_over(2));
  chain.forward();
  Planner& planner = chain.planner;
  const auto& [a, b] = std::tie(chain.blocks[0], chain.blocks[1]);
  planner.at({"backward", 2, 0});
  planner.backward_reaches(chain.root);
  planner.backward_reaches(b);
  for (const ModuleId recomputed : {a, b}) {
    planner.enter(recomputed, {.in_backward = true, .recomputing = true});
    planner.leave(recomputed, {.in_backward = true, .recomputing = true});
  }
  chain.model.report_gradients(b);
  planner.backward_leaves(b);
  planner.backward_reaches(a);
  chain.model.report_gradients(a);
  planner.end_backward();
  EXPECT_EQ(count(planner, "all_gather", "forward"), 3);
  EXPECT_EQ(count(planner, "all_gather", "backward"), 2);  // b, and a prefetched for the recomputation and its backward
}

}  // namespace
}  // namespace lockstep::plan
