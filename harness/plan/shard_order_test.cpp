// The order of the planned collectives of sharded groups, compared with sequences written in the tests.
#include <gtest/gtest.h>

#include "harness/plan/testing.hpp"

namespace lockstep::plan {
namespace {

using testing::Chain;
using testing::Model;
using testing::sequence_of;
using testing::shard_over;
using Kind = Reshard::Kind;
using Sequence = std::vector<std::string>;

// Sets the prefetch list of a group in forward or backward.
void set_prefetch(Chain& chain, bool in_forward, char of, const std::string& others) {
  std::vector<ModuleId> list;
  for (const char other : others) list.push_back(chain.block(other));
  if (in_forward)
    chain.planner.shards().set_forward_prefetch(chain.block(of), list);
  else
    chain.planner.shards().set_backward_prefetch(chain.block(of), list);
}

// ---- sharded groups ----
TEST(ShardOrder, BackwardPrefetchesOneGroup) {
  Chain chain(3, shard_over(2));
  chain.forward();
  EXPECT_EQ(sequence_of(chain.planner, "forward"), (Sequence{"gather root", "gather a", "gather b", "gather c"}));
  chain.backward(true);
  EXPECT_EQ(sequence_of(chain.planner, "backward"),
            (Sequence{"gather c", "gather b", "scatter c", "gather a", "scatter b", "scatter a", "scatter root"}));
}

TEST(ShardOrder, AFirstGroupWithoutInputGradientIsReducedLast) {
  Chain chain(3, shard_over(2, {Kind::no, 0}));
  chain.forward();
  chain.backward();
  EXPECT_EQ(sequence_of(chain.planner, "backward"), (Sequence{"scatter c", "scatter b", "scatter root", "scatter a"}));
}

TEST(ShardOrder, AllReducesAfterEachReduceScatterOverTwoAxes) {
  ShardChoices choices = shard_over(2);
  choices.replicate = Axis{"replicate", 2};
  Chain chain(2, choices);
  chain.forward();
  chain.backward(true);
  EXPECT_EQ(sequence_of(chain.planner, "backward"),
            (Sequence{"gather b", "gather a", "scatter b", "sum b", "scatter a", "sum a", "scatter root", "sum root"}));
}

TEST(ShardOrder, ForwardPrefetchFollowsTheGroupsOwnAllGather) {
  for (const int num_ahead : {1, 2}) {
    Chain chain(4, shard_over(2));
    for (int i = 0; i < 4; ++i) {
      std::string next;
      for (int k = i + 1; k < std::min(4, i + 1 + num_ahead); ++k) next += static_cast<char>('a' + k);
      set_prefetch(chain, true, static_cast<char>('a' + i), next);
    }
    chain.forward();
    // Each group is gathered once; with two prefetched, the third before the second is entered.
    EXPECT_EQ(sequence_of(chain.planner, "forward"),
              (Sequence{"gather root", "gather a", "gather b", "gather c", "gather d"}));
    const std::size_t after_a = num_ahead == 1 ? 3 : 4;
    Chain stopped(4, shard_over(2));
    set_prefetch(stopped, true, 'a', num_ahead == 1 ? "b" : "bc");
    stopped.planner.enter(stopped.root, {});
    stopped.planner.enter(stopped.block('a'), {});
    EXPECT_EQ(stopped.planner.collectives().size(), after_a);
  }
}

TEST(ShardOrder, ABackwardPrefetchListReplacesTheGroupBefore) {
  Chain chain(4, shard_over(2));
  set_prefetch(chain, false, 'd', "cb");
  set_prefetch(chain, false, 'c', "ba");
  set_prefetch(chain, false, 'b', "a");
  chain.forward();
  chain.backward(true);
  EXPECT_EQ(sequence_of(chain.planner, "backward"),
            (Sequence{"gather d", "gather c", "gather b", "scatter d", "gather a", "scatter c", "scatter b",
                      "scatter a", "scatter root"}));
}

TEST(ShardOrder, ABackwardOfTwoForwardsReducesEachGroupOnceAtItsLastUse) {
  for (const bool keep : {false, true}) {
    Chain chain(2, shard_over(2, {keep ? Kind::no : Kind::yes, 0}));
    chain.forward();
    chain.forward();
    Planner& planner = chain.planner;
    planner.at({"backward", 2, 0});
    planner.begin_backward({0, 1, 2, 3, 4});
    planner.backward_reaches(chain.root);
    for (const bool last : {false, true})
      for (const char name : {'b', 'a'}) {
        planner.backward_reaches(chain.block(name));
        if (last) chain.model.report_gradients(chain.block(name));
        planner.backward_leaves(chain.block(name));
      }
    chain.model.report_gradient(4);
    planner.end_backward();
    EXPECT_EQ(sequence_of(planner, "forward"),
              keep ? (Sequence{"gather root", "gather a", "gather b"})
                   : (Sequence{"gather root", "gather a", "gather b", "gather a", "gather b"}));
    // The root is between the two forwards in the order. The group before it is not prefetched: it is unsharded.
    EXPECT_EQ(
        sequence_of(planner, "backward"),
        keep ? (Sequence{"gather b", "gather a", "scatter b", "scatter a", "scatter root"})
             : (Sequence{"gather b", "gather a", "gather b", "gather a", "scatter b", "scatter a", "scatter root"}));
  }
}

TEST(ShardOrder, AGradientThatALaterUseAddsToIsReducedAfterIt) {
  Planner planner;
  Model model(planner);
  const ModuleId group = model.module(), root = model.module({group});
  const TensorId early = model.parameter(group, {4}), late = model.parameter(group, {6});
  ShardChoices choices = shard_over(2);
  planner.fully_shard({group}, choices);
  planner.fully_shard({root}, choices);
  model.forward(root, {group, group});
  planner.at({"backward", 2, 0});
  planner.begin_backward({early, late});
  planner.backward_reaches(group);
  planner.gradient(early);
  planner.backward_leaves(group);  // its last call in forward
  planner.backward_reaches(group);
  planner.gradient(late);
  planner.backward_leaves(group);
  planner.end_backward();
  std::vector<std::int64_t> bytes;
  for (const Collective& collective : planner.collectives())
    if (collective.operation == "reduce_scatter") bytes.push_back(collective.bytes);
  EXPECT_EQ(bytes, (std::vector<std::int64_t>{16, 24}));
}

TEST(ShardOrder, AnUnreducedGradientWaitsIfThisBackwardReachesItsParameter) {
  for (const bool reaches_it : {false, true}) {
    Planner planner;
    Model model(planner);
    const ModuleId group = model.module(), root = model.module({group});
    const TensorId kept = model.parameter(group, {4}), other = model.parameter(group, {6});
    ShardChoices choices = shard_over(2);
    planner.fully_shard({group}, choices);
    planner.fully_shard({root}, choices);
    FlagChange flags;
    for (const bool sync : {false, true}) {
      flags.requires_gradient_sync = sync;
      planner.set_flags(root, flags);
      model.forward(root, {group});
      planner.at({"backward", 2, 0});
      planner.begin_backward(!sync ? std::set{kept} : reaches_it ? std::set{kept, other} : std::set{other});
      planner.backward_reaches(group);
      planner.gradient(sync ? other : kept);
      planner.backward_leaves(group);
      if (sync && reaches_it) planner.gradient(kept);
      planner.end_backward();
    }
    std::vector<std::int64_t> bytes;
    for (const Collective& collective : planner.collectives())
      if (collective.operation == "reduce_scatter") bytes.push_back(collective.bytes);
    EXPECT_EQ(bytes, reaches_it ? (std::vector<std::int64_t>{24, 16}) : (std::vector<std::int64_t>{40}));
  }
}

TEST(ShardOrder, ARecomputationIsNotInTheForwardOrder) {
  // Two checkpointed regions of two groups each.
  Chain chain(4, shard_over(2));
  chain.forward();
  Planner& planner = chain.planner;
  const std::size_t forward = planner.collectives().size();
  planner.at({"backward", 2, 0});
  planner.begin_backward({});
  planner.backward_reaches(chain.root);
  const auto recompute = [&](char first, char second) {
    for (const char name : {first, second}) {
      planner.enter(chain.block(name), {.in_backward = true, .recomputing = true});
      planner.leave(chain.block(name), {.in_backward = true, .recomputing = true});
    }
  };
  planner.backward_reaches(chain.block('d'));
  recompute('c', 'd');
  planner.backward_leaves(chain.block('d'));
  planner.backward_reaches(chain.block('c'));
  planner.backward_leaves(chain.block('c'));
  planner.backward_reaches(chain.block('b'));
  EXPECT_EQ(sequence_of(planner, "backward", forward), (Sequence{"gather d", "gather c", "gather b", "gather a"}));
}

TEST(ShardOrder, AGroupOfSeveralModulesIsReachedThroughAnyOutput) {
  Planner planner;
  Model model(planner);
  const ModuleId a = model.linear(4, 4), b = model.linear(4, 4), c = model.linear(4, 4), root = model.module({a, b, c});
  ShardChoices choices = shard_over(2);
  choices.owner = "a+b";
  planner.fully_shard({a, b}, choices);
  choices.owner = "c";
  planner.fully_shard({c}, choices);
  choices.owner = "root";
  planner.fully_shard({root}, choices);
  planner.at({"forward", 1, 0});
  planner.enter(root, {});
  EXPECT_TRUE(planner.enter(a, {}));
  EXPECT_TRUE(planner.leave(a, {}));
  EXPECT_FALSE(planner.enter(b, {}));  // only the inputs of the first module are watched
  EXPECT_TRUE(planner.leave(b, {}));
  planner.enter(c, {});
  planner.leave(c, {});
  planner.leave(root, {});
  planner.at({"backward", 2, 0});
  planner.backward_reaches(c);
  planner.backward_leaves(c);
  planner.backward_reaches(a);  // the outputs of b are not used yet
  planner.backward_reaches(b);
  model.report_gradients(a);
  planner.backward_leaves(a);
  planner.end_backward();
  EXPECT_EQ(sequence_of(planner, "forward"), (Sequence{"gather a+b", "gather c"}));
  EXPECT_EQ(sequence_of(planner, "backward"), (Sequence{"gather c", "gather a+b", "scatter a+b"}));
}

TEST(ShardOrder, AGroupWithAnUnusedModuleStaysUnsharded) {
  Planner planner;
  Model model(planner);
  const ModuleId a = model.linear(4, 4), unused = model.linear(4, 4), root = model.module({a, unused});
  ShardChoices choices = shard_over(2);
  choices.owner = "a+unused";
  planner.fully_shard({a, unused}, choices);
  planner.fully_shard({root}, choices);
  model.forward(root, {a}, false);
  EXPECT_EQ(sequence_of(planner, "forward"), (Sequence{"gather a+unused"}));
  model.forward(root, {a}, false);
  EXPECT_EQ(sequence_of(planner, "forward").size(), 1u);
  model.step();  // the full parameters are outdated
  model.forward(root, {a}, false);
  EXPECT_EQ(sequence_of(planner, "forward").size(), 2u);
}

// ---- a step with `raises` ----
TEST(ShardOrder, AForwardThatFailsAsExpectedLeavesItsGroupsUnsharded) {
  for (const bool as_expected : {true, false}) {
    Chain chain(3, shard_over(2, {Kind::no, 0}));
    chain.planner.begin_attempt();
    chain.planner.enter(chain.root, {});
    chain.planner.enter(chain.block('a'), {});
    chain.planner.end_attempt(as_expected);
    EXPECT_TRUE(chain.planner.collectives().empty());
    chain.forward();
    EXPECT_EQ(sequence_of(chain.planner, "forward"),
              as_expected ? (Sequence{"gather b", "gather c"})
                          : (Sequence{"gather root", "gather a", "gather b", "gather c"}));
  }
}

// A hook of a forward that must fail may have a step that must fail.
TEST(ShardOrder, AStepThatMustFailMayBeWithinAnother) {
  for (const bool as_expected : {true, false}) {
    Chain chain(3, shard_over(2, {Kind::no, 0}));
    chain.planner.begin_attempt();
    chain.planner.enter(chain.root, {});
    chain.planner.begin_attempt();
    chain.planner.enter(chain.block('a'), {});
    chain.planner.end_attempt(true);
    chain.planner.enter(chain.block('b'), {});
    chain.planner.end_attempt(as_expected);
    EXPECT_TRUE(chain.planner.collectives().empty());
    chain.forward();
    EXPECT_EQ(sequence_of(chain.planner, "forward"),
              as_expected ? (Sequence{"gather c"}) : (Sequence{"gather root", "gather a", "gather b", "gather c"}));
  }
}

TEST(ShardOrder, AGroupAloneAfterAFailedForwardBeginsANewForwardOrder) {
  Chain chain(2, shard_over(2));
  chain.planner.begin_attempt();
  chain.planner.enter(chain.root, {.outermost = 1});
  chain.planner.enter(chain.block('a'), {.outermost = 1});
  chain.planner.leave(chain.block('a'), {});
  chain.planner.end_attempt(true);
  chain.planner.enter(chain.block('b'), {.outermost = 2});
  chain.planner.leave(chain.block('b'), {});
  chain.planner.at({"backward", 1, 0});
  chain.planner.backward_reaches(chain.block('b'));
  EXPECT_EQ(sequence_of(chain.planner, "backward"), (Sequence{"gather b"}));  // and not group a, of the failed forward
}

TEST(ShardOrder, AFailedForwardIsNotInTheForwardOrder) {
  Chain chain(2, shard_over(2));
  chain.planner.begin_attempt();
  chain.planner.at({"forward", 1, 0});
  chain.planner.enter(chain.root, {});
  for (const char name : {'b', 'a'}) {  // in reverse
    chain.planner.enter(chain.block(name), {});
    chain.planner.leave(chain.block(name), {});
  }
  chain.planner.end_attempt(true);
  chain.forward();
  chain.backward(true);
  EXPECT_EQ(sequence_of(chain.planner, "backward"),
            (Sequence{"gather b", "gather a", "scatter b", "scatter a", "scatter root"}));
}

}  // namespace
}  // namespace lockstep::plan
