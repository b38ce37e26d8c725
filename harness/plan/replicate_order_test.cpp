// The order of the planned collectives of replicated modules, and of both APIs together.
#include <gtest/gtest.h>

#include "harness/plan/testing.hpp"

namespace lockstep::plan {
namespace {

using testing::Model;
using testing::sequence_of;
using testing::shard_over;
using Sequence = std::vector<std::string>;

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

TEST(ReplicateOrder, BucketsAreReducedInSequenceWhenComplete) {
  Replicas replicas;
  std::vector<ModuleId> children = {replicas.model.module(), replicas.model.module(), replicas.model.module()};
  std::vector<TensorId> ids;
  for (std::size_t i = 0; i < 3; ++i)
    ids.push_back(replicas.model.parameter(children[i], {static_cast<std::int64_t>(4 + i)}));
  const ModuleId root = replicas.replicate("model", children, 1, false);
  replicas.model.forward(root, children);
  replicas.model.backward(root, children);  // last module first: the order of the buckets from now on
  replicas.model.forward(root, children);
  replicas.planner.at({"backward", 2, 0});
  replicas.planner.begin_backward({ids[0], ids[1], ids[2]});
  replicas.planner.backward_reaches(root);
  const std::size_t from = replicas.planner.collectives().size();
  replicas.planner.gradient(ids[1]);
  EXPECT_EQ(replicas.sums(from), (std::vector<std::int64_t>{}));
  replicas.planner.gradient(ids[2]);
  EXPECT_EQ(replicas.sums(from), (std::vector<std::int64_t>{24, 20}));
  replicas.planner.gradient(ids[0]);
  EXPECT_EQ(replicas.sums(from), (std::vector<std::int64_t>{24, 20, 16}));
  replicas.planner.end_backward();
  EXPECT_EQ(replicas.sums(from).size(), 3u);
}

TEST(ReplicateOrder, UnreachedParametersDelayNoBucketWithFindUnusedParameters) {
  Replicas replicas;
  std::vector<ModuleId> children = {replicas.model.module(), replicas.model.module()};
  const TensorId first = replicas.model.parameter(children[0], {4}),
                 second = replicas.model.parameter(children[1], {5});
  const ModuleId root = replicas.replicate("model", children, 1, true);
  replicas.model.forward(root, children);
  replicas.planner.at({"backward", 2, 0});
  replicas.planner.begin_backward({first});
  replicas.planner.backward_reaches(root);
  EXPECT_EQ(replicas.sums(), (std::vector<std::int64_t>{20}));  // the bucket of the second parameter, immediately
  replicas.planner.gradient(first);
  EXPECT_EQ(replicas.sums(), (std::vector<std::int64_t>{20, 16}));
  replicas.planner.end_backward();
  EXPECT_EQ(replicas.sums(), (std::vector<std::int64_t>{20, 16, 8}));  // and the map of used parameters
  EXPECT_NE(first, second);
}

TEST(ReplicateOrder, TwoReplicatedModulesReduceInGradientOrder) {
  Replicas replicas;
  const ModuleId a = replicas.model.linear(2, 2), b = replicas.model.linear(2, 2);
  const ModuleId left = replicas.replicate("left", {a}, 1 << 20, false),
                 right = replicas.replicate("right", {b}, 1 << 20, false);
  replicas.model.forward(left, {a});
  replicas.model.forward(right, {b});
  replicas.planner.at({"backward", 2, 0});
  replicas.planner.backward_reaches(right);
  replicas.model.report_gradients(b);
  replicas.planner.backward_reaches(left);
  replicas.model.report_gradients(a);
  replicas.planner.end_backward();
  EXPECT_EQ(sequence_of(replicas.planner, "backward"), (Sequence{"sum right", "sum left"}));
}

TEST(ReplicateOrder, FreezingParametersResetsTheBuckets) {
  Replicas replicas;
  const ModuleId a = replicas.model.linear(4, 4), b = replicas.model.linear(4, 4);
  const ModuleId root = replicas.replicate("model", {a, b}, 80, false);  // a linear is 64 + 16 bytes
  const auto step = [&] {
    const std::size_t from = replicas.planner.collectives().size();
    replicas.model.forward(root, {a, b});
    replicas.model.backward(root, {a, b});
    return replicas.sums(from);
  };
  const auto freeze = [&](bool frozen) {
    for (const NamedTensor& parameter : replicas.model.facts().module(a).parameters)
      replicas.model.facts().tensors[parameter.id].requires_grad = !frozen;
    replicas.model.update();
  };
  EXPECT_EQ(step(), (std::vector<std::int64_t>{160}));
  EXPECT_EQ(step(), (std::vector<std::int64_t>{80, 80}));
  freeze(true);
  EXPECT_EQ(step(), (std::vector<std::int64_t>{80}));
  EXPECT_EQ(step(), (std::vector<std::int64_t>{80}));
  freeze(false);
  EXPECT_EQ(step(), (std::vector<std::int64_t>{160}));
  EXPECT_EQ(step(), (std::vector<std::int64_t>{80, 80}));
  EXPECT_EQ(testing::count(replicas.planner, "all_gather"), 1);  // no new comparison of the parameters
}

TEST(ReplicateOrder, ReducesNothingWhileAllIsFrozen) {
  Replicas replicas;
  const ModuleId a = replicas.model.linear(4, 4);
  const ModuleId root = replicas.replicate("model", {a}, 80, false);
  const auto freeze = [&](bool frozen) {
    for (auto& [id, tensor] : replicas.model.facts().tensors) tensor.requires_grad = !frozen;
    replicas.model.update();
  };
  for (int i = 0; i < 4; ++i) {
    freeze(i % 2 == 1);
    replicas.model.forward(root, {a});
    replicas.model.backward(root, {a});
  }
  EXPECT_EQ(replicas.sums().size(), 2u);
}

TEST(ReplicateOrder, KeptBackGradientsHaveAPlaceInTheOrder) {
  Replicas replicas;
  const ModuleId a = replicas.model.linear(4, 4), b = replicas.model.linear(4, 4);
  const ModuleId root = replicas.replicate("model", {a, b}, 80, false);  // a linear is 64 + 16 bytes
  FlagChange flags;
  flags.requires_gradient_sync = false;
  replicas.planner.set_flags(root, flags);
  replicas.model.forward(root, {a, b});
  replicas.model.backward(root, {a, b});
  flags.requires_gradient_sync = true;
  replicas.planner.set_flags(root, flags);
  replicas.model.forward(root, {a, b});
  replicas.planner.at({"backward", 2, 0});
  std::set<TensorId> reached;
  for (const NamedTensor& parameter : replicas.model.facts().module(a).parameters) reached.insert(parameter.id);
  replicas.planner.begin_backward(reached);
  replicas.planner.backward_reaches(root);
  replicas.model.report_gradients(a);
  replicas.planner.end_backward();
  EXPECT_EQ(replicas.sums(), (std::vector<std::int64_t>{160}));
  replicas.model.forward(root, {a, b});
  replicas.model.forward(root, {a, b}, false);
  replicas.model.backward(root, {a, b});
  EXPECT_EQ(replicas.sums(), (std::vector<std::int64_t>{160, 80, 80}));
}

// ---- replicated modules and sharded groups ----
TEST(ReplicateOrder, TheEndOfABackwardKeepsTheOrderInWhichItReachedModules) {
  for (const bool sharded_first : {true, false}) {
    Replicas replicas;
    const ModuleId a = replicas.model.linear(2, 2), b = replicas.model.linear(2, 2);
    const ModuleId replicated = replicas.replicate("replicated", {a}, 1 << 20, false);
    ShardChoices choices = shard_over(2);
    choices.owner = "sharded";
    replicas.planner.fully_shard({b}, choices);
    replicas.model.forward(replicated, {a});
    replicas.model.forward(b, {});
    replicas.planner.at({"backward", 2, 0});
    replicas.planner.begin_backward({0, 1, 2, 3});
    const auto weight = [&](ModuleId module) { return replicas.model.facts().module(module).parameters[0].id; };
    // Both reduce at the end of backward: one parameter receives no gradient, and the inputs of b need none.
    const auto shard = [&] {
      replicas.planner.backward_reaches(b);
      replicas.planner.gradient(weight(b));
    };
    if (sharded_first) shard();
    replicas.planner.backward_reaches(replicated);
    replicas.planner.gradient(weight(a));
    if (!sharded_first) shard();
    replicas.planner.end_backward();
    EXPECT_EQ(sequence_of(replicas.planner, "backward"), sharded_first
                                                             ? (Sequence{"scatter sharded", "sum replicated"})
                                                             : (Sequence{"sum replicated", "scatter sharded"}));
  }
}

}  // namespace
}  // namespace lockstep::plan
