// The order that the plan gives to collectives, against sequences written down by hand.
#include <gtest/gtest.h>

#include "harness/plan/testing.hpp"

namespace lockstep::plan {
namespace {

using testing::Model;
using Kind = Reshard::Kind;
using Sequence = std::vector<std::string>;

// "gather b", "scatter b", "sum b" of the data-parallel layer in one phase, from a place on.
Sequence sequence_of(const Planner& planner, const std::string& phase, std::size_t from = 0) {
  Sequence all;
  for (std::size_t i = from; i < planner.collectives().size(); ++i) {
    const Collective& one = planner.collectives()[i];
    if (one.phase != phase || one.family != "data_parallel") continue;
    const char* word = one.operation == "all_gather" ? "gather" : one.operation == "all_reduce" ? "sum" : "scatter";
    all.push_back(str(word, " ", one.owner));
  }
  return all;
}

// A chain of groups a, b, c, ... below a root that has a parameter of its own.
struct Chain {
  Planner planner;
  Model model{planner};
  std::vector<ModuleId> blocks;
  ModuleId root = 0;
  explicit Chain(int num_blocks, Reshard reshard = {}, std::optional<Axis> replicate = {}) {
    for (int i = 0; i < num_blocks; ++i) blocks.push_back(model.linear(8, 8));
    root = model.module(blocks);
    model.parameter(root, {8});
    ShardChoices choices;
    choices.shard = {"shard", 2};
    choices.replicate = std::move(replicate);
    choices.reshard_after_forward = reshard;
    for (int i = 0; i < num_blocks; ++i) {
      choices.owner = std::string(1, static_cast<char>('a' + i));
      planner.fully_shard({blocks[static_cast<std::size_t>(i)]}, choices);
    }
    choices.owner = "root";
    planner.fully_shard({root}, choices);
  }
  ModuleId block(char name) const { return blocks[static_cast<std::size_t>(name - 'a')]; }
  void prefetch(bool in_forward, char of, const std::string& others) {
    std::vector<ModuleId> list;
    for (const char other : others) list.push_back(block(other));
    if (in_forward)
      planner.shards().set_forward_prefetch(block(of), list);
    else
      planner.shards().set_backward_prefetch(block(of), list);
  }
  void forward() { model.forward(root, blocks); }
  void backward(bool first_needs_gradient = true) { model.backward(root, blocks, first_needs_gradient); }
};

// ---- sharded groups ----
TEST(PlanOrder, ForwardGathersFromTheRootDownAndBackwardOneGroupAhead) {
  Chain chain(3);
  chain.forward();
  EXPECT_EQ(sequence_of(chain.planner, "forward"), (Sequence{"gather root", "gather a", "gather b", "gather c"}));
  chain.backward();
  EXPECT_EQ(sequence_of(chain.planner, "backward"),
            (Sequence{"gather c", "gather b", "scatter c", "gather a", "scatter b", "scatter a", "scatter root"}));
}

TEST(PlanOrder, OnDataTheFirstGroupIsReducedAtTheEndAfterTheRoot) {
  Chain chain(3, {Kind::no, 0});
  chain.forward();
  chain.backward(false);
  EXPECT_EQ(sequence_of(chain.planner, "backward"), (Sequence{"scatter c", "scatter b", "scatter root", "scatter a"}));
}

TEST(PlanOrder, OverTwoAxesEachReductionIsFollowedByItsSum) {
  Chain chain(2, {}, Axis{"replicate", 2});
  chain.forward();
  chain.backward();
  EXPECT_EQ(sequence_of(chain.planner, "backward"),
            (Sequence{"gather b", "gather a", "scatter b", "sum b", "scatter a", "sum a", "scatter root", "sum root"}));
}

TEST(PlanOrder, WhatAForwardIsToldToGatherAheadFollowsItsOwnGather) {
  for (const int num_ahead : {1, 2}) {
    Chain chain(4);
    for (int i = 0; i < 4; ++i) {
      std::string next;
      for (int k = i + 1; k < std::min(4, i + 1 + num_ahead); ++k) next += static_cast<char>('a' + k);
      chain.prefetch(true, static_cast<char>('a' + i), next);
    }
    chain.forward();
    // Each group once, and with two ahead the third before the second is entered.
    EXPECT_EQ(sequence_of(chain.planner, "forward"),
              (Sequence{"gather root", "gather a", "gather b", "gather c", "gather d"}));
    const std::size_t after_a = num_ahead == 1 ? 3 : 4;
    Chain stopped(4);
    stopped.prefetch(true, 'a', num_ahead == 1 ? "b" : "bc");
    stopped.planner.enter(stopped.root, {});
    stopped.planner.enter(stopped.block('a'), {});
    EXPECT_EQ(stopped.planner.collectives().size(), after_a);
  }
}

TEST(PlanOrder, WhatABackwardIsToldToGatherAheadTakesThePlaceOfTheGroupBefore) {
  Chain chain(4);
  chain.prefetch(false, 'd', "cb");
  chain.prefetch(false, 'c', "ba");
  chain.prefetch(false, 'b', "a");
  chain.forward();
  chain.backward();
  EXPECT_EQ(sequence_of(chain.planner, "backward"),
            (Sequence{"gather d", "gather c", "gather b", "scatter d", "gather a", "scatter c", "scatter b",
                      "scatter a", "scatter root"}));
}

TEST(PlanOrder, TwoForwardsAndOneBackwardReduceEachGroupOnceAtItsLastUse) {
  for (const bool keep : {false, true}) {
    Chain chain(2, {keep ? Kind::no : Kind::yes, 0});
    chain.forward();
    chain.forward();
    Planner& planner = chain.planner;
    planner.at({"backward", 2, 0});
    planner.begin_backward({0, 1, 2, 3, 4});
    planner.backward_reaches(chain.root);
    for (const bool last : {false, true})
      for (const char name : {'b', 'a'}) {
        planner.backward_reaches(chain.block(name));
        if (last) chain.model.give_gradients(chain.block(name));
        planner.backward_leaves(chain.block(name));
      }
    chain.model.give_gradient(4);
    planner.end_backward();
    EXPECT_EQ(sequence_of(planner, "forward"),
              keep ? (Sequence{"gather root", "gather a", "gather b"})
                   : (Sequence{"gather root", "gather a", "gather b", "gather a", "gather b"}));
    // The root's place lies between the two forwards: what comes before it there is not gathered ahead, it is whole.
    EXPECT_EQ(
        sequence_of(planner, "backward"),
        keep ? (Sequence{"gather b", "gather a", "scatter b", "scatter a", "scatter root"})
             : (Sequence{"gather b", "gather a", "gather b", "gather a", "scatter b", "scatter a", "scatter root"}));
  }
}

TEST(PlanOrder, WhatALaterUseStillAddsToWaitsForThat) {
  Planner planner;
  Model model(planner);
  const ModuleId group = model.module(), root = model.module({group});
  const TensorId early = model.parameter(group, {4}), late = model.parameter(group, {6});
  ShardChoices choices;
  choices.shard = {"shard", 2};
  planner.fully_shard({group}, choices);
  planner.fully_shard({root}, choices);
  model.forward(root, {group, group});
  planner.at({"backward", 2, 0});
  planner.begin_backward({early, late});
  planner.backward_reaches(group);
  planner.gradient(early);
  planner.backward_leaves(group);  // its first use, seen from the end
  planner.backward_reaches(group);
  planner.gradient(late);
  planner.backward_leaves(group);
  planner.end_backward();
  std::vector<std::int64_t> bytes;
  for (const Collective& one : planner.collectives())
    if (one.operation == "reduce_scatter") bytes.push_back(one.bytes);
  EXPECT_EQ(bytes, (std::vector<std::int64_t>{16, 24}));
}

TEST(PlanOrder, WhatWasKeptBackIsReducedWithTheNextReductionUnlessThisBackwardStillComesToIt) {
  for (const bool comes_to_it : {false, true}) {
    Planner planner;
    Model model(planner);
    const ModuleId group = model.module(), root = model.module({group});
    const TensorId kept = model.parameter(group, {4}), other = model.parameter(group, {6});
    ShardChoices choices;
    choices.shard = {"shard", 2};
    planner.fully_shard({group}, choices);
    planner.fully_shard({root}, choices);
    FlagChange flags;
    for (const bool sync : {false, true}) {
      flags.requires_gradient_sync = sync;
      planner.set_flags(root, flags);
      model.forward(root, {group});
      planner.at({"backward", 2, 0});
      planner.begin_backward(!sync ? std::set{kept} : comes_to_it ? std::set{kept, other} : std::set{other});
      planner.backward_reaches(group);
      planner.gradient(sync ? other : kept);
      planner.backward_leaves(group);
      if (sync && comes_to_it) planner.gradient(kept);
      planner.end_backward();
    }
    std::vector<std::int64_t> bytes;
    for (const Collective& one : planner.collectives())
      if (one.operation == "reduce_scatter") bytes.push_back(one.bytes);
    EXPECT_EQ(bytes, comes_to_it ? (std::vector<std::int64_t>{24, 16}) : (std::vector<std::int64_t>{40}));
  }
}

TEST(PlanOrder, ARecomputationGathersForTheBackwardThatFollowsAndTakesNoPlace) {
  // Two regions of two groups each, recomputed whole.
  Chain chain(4);
  chain.forward();
  Planner& planner = chain.planner;
  const std::size_t forward = planner.collectives().size();
  planner.at({"backward", 2, 0});
  planner.begin_backward({});
  planner.backward_reaches(chain.root);
  const auto recompute = [&](char first, char second) {
    for (const char name : {first, second}) {
      planner.enter(chain.block(name), {true, true});
      planner.leave(chain.block(name), {true, true});
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

TEST(PlanOrder, AGroupOfSeveralModulesIsReachedByTheFirstOfThemAndWatchesAll) {
  Planner planner;
  Model model(planner);
  const ModuleId a = model.linear(4, 4), b = model.linear(4, 4), c = model.linear(4, 4), root = model.module({a, b, c});
  ShardChoices choices;
  choices.shard = {"shard", 2};
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
  EXPECT_FALSE(planner.enter(b, {}));  // the inputs of the first are those of the group
  EXPECT_TRUE(planner.leave(b, {}));
  planner.enter(c, {});
  planner.leave(c, {});
  planner.leave(root, {});
  planner.at({"backward", 2, 0});
  planner.backward_reaches(c);
  planner.backward_leaves(c);
  planner.backward_reaches(a);  // alone: what b gave is not used
  planner.backward_reaches(b);
  model.give_gradients(a);
  planner.backward_leaves(a);
  planner.end_backward();
  EXPECT_EQ(sequence_of(planner, "forward"), (Sequence{"gather a+b", "gather c"}));
  EXPECT_EQ(sequence_of(planner, "backward"), (Sequence{"gather c", "gather a+b", "scatter a+b"}));
}

TEST(PlanOrder, AMemberThatNeverRanKeepsItsGroupWholeAndTheNextForwardBeginsAnew) {
  Planner planner;
  Model model(planner);
  const ModuleId a = model.linear(4, 4), unused = model.linear(4, 4), root = model.module({a, unused});
  ShardChoices choices;
  choices.shard = {"shard", 2};
  choices.owner = "a+unused";
  planner.fully_shard({a, unused}, choices);
  planner.fully_shard({root}, choices);
  model.forward(root, {a}, false);
  EXPECT_EQ(sequence_of(planner, "forward"), (Sequence{"gather a+unused"}));
  model.forward(root, {a}, false);
  EXPECT_EQ(sequence_of(planner, "forward").size(), 1u);
  model.step();  // what is whole is made of old parts
  model.forward(root, {a}, false);
  EXPECT_EQ(sequence_of(planner, "forward").size(), 2u);
}

// ---- a step that must fail ----
TEST(PlanOrder, AForwardThatFailedAsForeseenLeavesGatheredWhatItHadGathered) {
  for (const bool foreseen : {true, false}) {
    Chain chain(3, {Kind::no, 0});
    chain.planner.begin_attempt();
    chain.planner.enter(chain.root, {});
    chain.planner.enter(chain.block('a'), {});
    chain.planner.end_attempt(foreseen);
    EXPECT_TRUE(chain.planner.collectives().empty());
    chain.forward();
    EXPECT_EQ(
        sequence_of(chain.planner, "forward"),
        foreseen ? (Sequence{"gather b", "gather c"}) : (Sequence{"gather root", "gather a", "gather b", "gather c"}));
  }
}

TEST(PlanOrder, PlacesOfAForwardThatFailedAreForgotten) {
  Chain chain(2);
  chain.planner.begin_attempt();
  chain.planner.at({"forward", 1, 0});
  chain.planner.enter(chain.root, {});
  for (const char name : {'b', 'a'}) {  // the other way round
    chain.planner.enter(chain.block(name), {});
    chain.planner.leave(chain.block(name), {});
  }
  chain.planner.end_attempt(true);
  chain.forward();
  chain.backward();
  EXPECT_EQ(sequence_of(chain.planner, "backward"),
            (Sequence{"gather b", "gather a", "scatter b", "scatter a", "scatter root"}));
}

// ---- replicated modules ----
struct Replicas {
  Planner planner;
  Model model{planner};
  ModuleId replicate(const std::string& name, std::vector<ModuleId> below, std::int64_t cap_bytes, bool unused) {
    const ModuleId root = model.module(below);
    ReplicateChoices choices;
    choices.owner = name;
    choices.axes = {{"dp", 2}};
    choices.bucket_cap_bytes = cap_bytes;
    choices.find_unused_parameters = unused;
    planner.replicate(root, choices);
    return root;
  }
  std::vector<std::int64_t> sums(std::size_t from = 0) const {
    std::vector<std::int64_t> bytes;
    for (std::size_t i = from; i < planner.collectives().size(); ++i)
      if (planner.collectives()[i].operation == "all_reduce") bytes.push_back(planner.collectives()[i].bytes);
    return bytes;
  }
};

TEST(PlanOrder, BucketsStartInSequenceAsSoonAsNothingOfThemIsMissing) {
  Replicas of;
  std::vector<ModuleId> parts = {of.model.module(), of.model.module(), of.model.module()};
  std::vector<TensorId> ids;
  for (std::size_t i = 0; i < 3; ++i) ids.push_back(of.model.parameter(parts[i], {static_cast<std::int64_t>(4 + i)}));
  const ModuleId root = of.replicate("model", parts, 1, false);
  of.model.forward(root, parts);
  of.model.backward(root, parts);  // the last first: that is the order of the buckets from now on
  of.model.forward(root, parts);
  of.planner.at({"backward", 2, 0});
  of.planner.begin_backward({ids[0], ids[1], ids[2]});
  of.planner.backward_reaches(root);
  const std::size_t from = of.planner.collectives().size();
  of.planner.gradient(ids[1]);
  EXPECT_EQ(of.sums(from), (std::vector<std::int64_t>{}));
  of.planner.gradient(ids[2]);
  EXPECT_EQ(of.sums(from), (std::vector<std::int64_t>{24, 20}));
  of.planner.gradient(ids[0]);
  EXPECT_EQ(of.sums(from), (std::vector<std::int64_t>{24, 20, 16}));
  of.planner.end_backward();
  EXPECT_EQ(of.sums(from).size(), 3u);
}

TEST(PlanOrder, WhatABackwardDoesNotComeToIsNotWaitedForWhereUnusedParametersAreLookedFor) {
  Replicas of;
  std::vector<ModuleId> parts = {of.model.module(), of.model.module()};
  const TensorId first = of.model.parameter(parts[0], {4}), second = of.model.parameter(parts[1], {5});
  const ModuleId root = of.replicate("model", parts, 1, true);
  of.model.forward(root, parts);
  of.planner.at({"backward", 2, 0});
  of.planner.begin_backward({first});
  of.planner.backward_reaches(root);
  EXPECT_EQ(of.sums(), (std::vector<std::int64_t>{20}));  // of the second, at once
  of.planner.gradient(first);
  EXPECT_EQ(of.sums(), (std::vector<std::int64_t>{20, 16}));
  of.planner.end_backward();
  EXPECT_EQ(of.sums(), (std::vector<std::int64_t>{20, 16, 8}));  // and who used what
  EXPECT_NE(first, second);
}

TEST(PlanOrder, TwoReplicatedModulesTakeTurnsAsTheirGradientsCome) {
  Replicas of;
  const ModuleId a = of.model.linear(2, 2), b = of.model.linear(2, 2);
  const ModuleId left = of.replicate("left", {a}, 1 << 20, false), right = of.replicate("right", {b}, 1 << 20, false);
  of.model.forward(left, {a});
  of.model.forward(right, {b});
  of.planner.at({"backward", 2, 0});
  of.planner.backward_reaches(right);
  of.model.give_gradients(b);
  of.planner.backward_reaches(left);
  of.model.give_gradients(a);
  of.planner.end_backward();
  EXPECT_EQ(sequence_of(of.planner, "backward"), (Sequence{"sum right", "sum left"}));
}

TEST(PlanOrder, OtherParametersFrozenThanBeforeBeginWithOneBucketAnew) {
  Replicas of;
  const ModuleId a = of.model.linear(4, 4), b = of.model.linear(4, 4);
  const ModuleId root = of.replicate("model", {a, b}, 80, false);  // a linear is 64 + 16 bytes
  const auto step = [&] {
    const std::size_t from = of.planner.collectives().size();
    of.model.forward(root, {a, b});
    of.model.backward(root, {a, b});
    return of.sums(from);
  };
  const auto freeze = [&](bool frozen) {
    for (const NamedTensor& parameter : of.model.facts().module(a).parameters)
      of.model.facts().tensors[parameter.id].requires_grad = !frozen;
    of.model.tell();
  };
  EXPECT_EQ(step(), (std::vector<std::int64_t>{160}));
  EXPECT_EQ(step(), (std::vector<std::int64_t>{80, 80}));
  freeze(true);
  EXPECT_EQ(step(), (std::vector<std::int64_t>{80}));
  EXPECT_EQ(step(), (std::vector<std::int64_t>{80}));
  freeze(false);
  EXPECT_EQ(step(), (std::vector<std::int64_t>{160}));
  EXPECT_EQ(step(), (std::vector<std::int64_t>{80, 80}));
  EXPECT_EQ(testing::count(of.planner, "all_gather"), 1);  // no new agreement on the parameters
}

TEST(PlanOrder, NothingTrainsWhileAllIsFrozen) {
  Replicas of;
  const ModuleId a = of.model.linear(4, 4);
  const ModuleId root = of.replicate("model", {a}, 80, false);
  const auto freeze = [&](bool frozen) {
    for (auto& [id, tensor] : of.model.facts().tensors) tensor.requires_grad = !frozen;
    of.model.tell();
  };
  for (int i = 0; i < 4; ++i) {
    freeze(i % 2 == 1);
    of.model.forward(root, {a});
    of.model.backward(root, {a});
  }
  EXPECT_EQ(of.sums().size(), 2u);
}

// ---- of both ----
TEST(PlanOrder, TheEndsOfABackwardComeInTheOrderInWhichItCameBy) {
  for (const bool sharded_first : {true, false}) {
    Replicas of;
    const ModuleId a = of.model.linear(2, 2), b = of.model.linear(2, 2);
    const ModuleId replicated = of.replicate("replicated", {a}, 1 << 20, false);
    ShardChoices choices;
    choices.shard = {"shard", 2};
    choices.owner = "sharded";
    of.planner.fully_shard({b}, choices);
    of.model.forward(replicated, {a});
    of.model.forward(b, {});
    of.planner.at({"backward", 2, 0});
    of.planner.begin_backward({0, 1, 2, 3});
    const auto weight = [&](ModuleId module) { return of.model.facts().module(module).parameters[0].id; };
    // Each is left with something to do at the end: a gradient that does not come, inputs that need none.
    const auto shard = [&] {
      of.planner.backward_reaches(b);
      of.planner.gradient(weight(b));
    };
    if (sharded_first) shard();
    of.planner.backward_reaches(replicated);
    of.planner.gradient(weight(a));
    if (!sharded_first) shard();
    of.planner.end_backward();
    EXPECT_EQ(sequence_of(of.planner, "backward"), sharded_first ? (Sequence{"scatter sharded", "sum replicated"})
                                                                 : (Sequence{"sum replicated", "scatter sharded"}));
  }
}

}  // namespace
}  // namespace lockstep::plan
