#include "engine/autograd/checkpoint.hpp"

#include <map>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/autograd/checkpoint_testing.hpp"
#include "engine/comm/process_group.hpp"
#include "engine/core/defects.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep {
namespace {

using checkpoint_testing::Checkpoint;
using checkpoint_testing::error_of;
using checkpoint_testing::Layer;
using checkpoint_testing::Tensors;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(Checkpoint, MatchesPlainForwardBitForBit) {
  const Tensor x = drawn({6, 8}), first = drawn({8, 8}), second = drawn({8, 4});
  int runs = 0;
  const Layer one{first, &runs}, two{second, &runs};
  const auto region = [one, two](const Tensors& in) { return two(one(in[0])); };
  const auto gradients = [&](bool checkpointed) {
    seed(5);
    const Tensor y = checkpointed ? checkpoint(region, {x}) : region({x});
    const Tensor after = rand({2}, DType::float32, cpu);  // drawn before the recomputation
    backward({ops::sum(ops::mul(y, y))});
    const Tensor later = rand({2}, DType::float32, cpu);
    return std::make_tuple(to_doubles(y), take_grad(x), take_grad(first), take_grad(second), to_doubles(after),
                           to_doubles(later));
  };
  const auto plain = gradients(false);
  EXPECT_EQ(runs, 2);
  const auto checkpointed = gradients(true);
  EXPECT_EQ(runs, 6);
  EXPECT_EQ(plain, checkpointed);
  EXPECT_NE(std::get<1>(plain), std::vector<double>(48, 0.0));
}

TEST_F(Checkpoint, DrawsOtherNumbersWithoutPreservedRandomState) {
  const Tensor x = drawn({6, 8}), w = drawn({8, 8});
  const auto region = [layer = Layer{w}](const Tensors& in) { return ops::tanh(layer(in[0])); };
  const auto gradient = [&](bool preserve) {
    seed(5);
    backward({ops::sum(checkpoint(region, {x}, {.preserve_random_state = preserve}))});
    set_grad(x, Tensor());
    return take_grad(w);
  };
  EXPECT_NE(gradient(true), gradient(false));
}

TEST_F(Checkpoint, KeepsNoActivationAfterForward) {
  const Tensor x = drawn({64, 64}), w = drawn({64, 64});
  const auto region = [w](const Tensors& in) {
    Tensor h = in[0];
    for (int i = 0; i < 8; ++i) h = ops::tanh(ops::matmul(h, w));
    return ops::sum(h);
  };
  const std::int64_t matrix = 64 * 64 * 4;
  const std::int64_t before = activation_bytes();
  {
    const Tensor y = region({x});
    EXPECT_GE(activation_bytes() - before, 8 * matrix);
  }
  EXPECT_EQ(activation_bytes(), before);
  {
    const Tensor y = checkpoint(region, {x});
    EXPECT_LT(activation_bytes() - before, matrix);
    backward({y}, {}, true);
    EXPECT_LT(activation_bytes() - before, matrix) << "backward frees the recomputed tensors";
  }
  set_grad(x, Tensor());
  set_grad(w, Tensor());
  arm_defect(Defect::checkpoint_keeps_activations);
  {
    const Tensor y = checkpoint(region, {x});
    EXPECT_GE(activation_bytes() - before, 8 * matrix);
  }
  arm_defect(Defect::none);
}

TEST_F(Checkpoint, StopsAfterTheLastNeededTensor) {
  const Tensor x = drawn({4});
  int passed_last = 0;
  const auto region = [&](const Tensors& in) {
    const Tensor y = ops::mul(ops::tanh(in[0]), in[0]);
    ++passed_last;
    return ops::add(y, 1.0);  // saves nothing
  };
  backward({ops::sum(checkpoint(region, {x}))});
  EXPECT_EQ(passed_last, 1);
  EXPECT_FALSE(recomputing());
}

TEST_F(Checkpoint, RunsInnerOfNestedRegionsThreeTimes) {
  const Tensor x = drawn({5, 6}), w = drawn({6, 6}), v = drawn({6, 6}), u = drawn({6, 6});
  int outer_runs = 0, inner_runs = 0, depth_seen = 0;
  const Layer before{w}, inside{v, &inner_runs}, after{u};
  const auto region = [&](const Tensors& in, bool checkpointed) {
    ++outer_runs;
    const auto inner = [&](const Tensors& of) {
      depth_seen = std::max(depth_seen, recomputation_depth());
      return inside(of[0]);
    };
    const Tensor h = before(in[0]);
    return after(checkpointed ? checkpoint(inner, {h}) : inner({h}));
  };
  const auto gradients = [&](bool checkpointed) {
    seed(9);
    const Tensor y =
        checkpointed ? checkpoint([&](const Tensors& in) { return region(in, true); }, {x}) : region({x}, false);
    backward({ops::sum(ops::mul(y, y))});
    return std::make_tuple(take_grad(x), take_grad(w), take_grad(v), take_grad(u));
  };
  const auto plain = gradients(false);
  outer_runs = inner_runs = 0;
  EXPECT_EQ(gradients(true), plain);
  EXPECT_EQ(outer_runs, 2);
  EXPECT_EQ(inner_runs, 3);
  EXPECT_EQ(depth_seen, 1) << "the outer recomputation ends before the inner one begins";
}

TEST_F(Checkpoint, KeepsNothingInNestedRegions) {
  const Tensor x = drawn({64, 64}), w = drawn({64, 64});
  const auto step = [w](const Tensors& in) { return ops::tanh(ops::matmul(ops::tanh(in[0]), w)); };
  const auto two = [step](const Tensors& in) { return checkpoint(step, {checkpoint(step, in)}); };
  const auto four = [two](const Tensors& in) { return ops::sum(checkpoint(two, {checkpoint(two, in)})); };
  const std::int64_t before = activation_bytes();
  const Tensor y = checkpoint(four, {x});
  EXPECT_LT(activation_bytes() - before, 64 * 64 * 4);
  backward({y});
  const std::vector<double> nested = take_grad(w);
  const std::vector<double> nested_x = take_grad(x);
  backward({ops::sum(step({step({step({step({x})})})}))});
  EXPECT_EQ(nested, take_grad(w));
  EXPECT_EQ(nested_x, take_grad(x));
}

TEST_F(Checkpoint, SupportsTwoForwardsBeforeOneBackward) {
  const Tensor a = drawn({3, 4}), b = drawn({3, 4}), w = drawn({4, 4});
  int runs = 0;
  const auto region = [layer = Layer{w, &runs}](const Tensors& in) { return ops::tanh(layer(in[0])); };
  const auto gradient = [&](bool checkpointed) {
    seed(2);
    const Tensor first = checkpointed ? checkpoint(region, {a}) : region({a});
    const Tensor second = checkpointed ? checkpoint(region, {b}) : region({b});
    backward({ops::sum(ops::add(first, second))});
    return std::make_tuple(take_grad(a), take_grad(b), take_grad(w));
  };
  EXPECT_EQ(gradient(false), gradient(true));
  EXPECT_EQ(runs, 6);
}

TEST_F(Checkpoint, RecomputesInEachBackwardOfARetainedGraph) {
  const Tensor x = drawn({3, 4}), w = drawn({4, 4});
  int runs = 0;
  const auto region = [layer = Layer{w, &runs}](const Tensors& in) { return ops::tanh(layer(in[0])); };
  seed(2);
  const Tensor y = ops::sum(checkpoint(region, {x}));
  backward({y}, {}, true);
  const auto first = take_grad(w);
  backward({y}, {}, true);
  EXPECT_EQ(take_grad(w), first);
  EXPECT_EQ(runs, 3);
  backward({y});
  EXPECT_EQ(take_grad(w), first);
  EXPECT_THAT(error_of([&] { backward({y}); }), HasSubstr("the graph was freed by an earlier backward"));
}

TEST_F(Checkpoint, RecomputesOnlyStillNeededTensorsForASecondOutput) {
  const Tensor x = drawn({3, 4}), w = drawn({4, 4});
  int steps = 0;
  const auto region = [&](const Tensors& in) {
    const Tensor first = ops::tanh(in[0]);
    ++steps;
    return std::make_pair(first, ops::tanh(ops::matmul(in[0], w)));
  };
  const auto [first, second] = checkpoint(region, {x});
  backward({ops::sum(second)});
  EXPECT_EQ(steps, 2);
  backward({ops::sum(first)});  // the tensors of `second` are freed: the recomputation ends after the first tanh
  EXPECT_EQ(steps, 2);
  const std::vector<double> separate = take_grad(x);
  const auto [again, other] = region({x});
  backward({ops::sum(other)});
  backward({ops::sum(again)});
  EXPECT_EQ(separate, take_grad(x));
}

TEST_F(Checkpoint, AcceptsInputsWithoutGradientsAndAnyResult) {
  const Tensor tokens = from_values(std::vector<std::int64_t>{1, 0, 2}, {3}, DType::int64, cpu);
  const Tensor mask = drawn({3, 4}, false), table = drawn({3, 4});
  const auto region = [table](const Tensors& in) {
    EXPECT_FALSE(in[2].defined());
    const Tensor h = ops::mul(ops::embedding(table, in[0]), in[1]);
    EXPECT_FALSE(requires_grad(in[1]));
    return std::map<std::string, Tensors>{{"tensors", {ops::tanh(h), h}}, {"none", {}}};
  };
  const auto gradient = [&](bool checkpointed) {
    const Tensors inputs = {tokens, mask, Tensor()};
    const auto result = checkpointed ? checkpoint(region, inputs) : region(inputs);
    backward({ops::sum(ops::mul(result.at("tensors")[0], result.at("tensors")[1]))});
    return take_grad(table);
  };
  EXPECT_EQ(gradient(true), gradient(false));
}

TEST_F(Checkpoint, RecomputesInBackwardWithGradientsOn) {
  const Tensor x = drawn({4});
  std::vector<comm::Phase> phases;
  std::vector<bool> flags;
  int announced = 0;
  const auto region = [&](const Tensors& in) {
    phases.push_back(comm::current_phase());
    flags.insert(flags.end(), {grad_enabled(), recomputing(), in_backward()});
    return ops::tanh(in[0]);
  };
  const Tensor y = checkpoint(region, {x}, {.before_recomputing = [&] { announced += recomputation_depth(); }});
  backward({ops::sum(y)});
  EXPECT_THAT(phases, ElementsAre(comm::Phase::other, comm::Phase::backward));
  EXPECT_THAT(flags, ElementsAre(true, false, false, true, true, true));
  EXPECT_EQ(announced, 1);
}

TEST_F(Checkpoint, RecordsNothingWithoutGradients) {
  const Tensor x = drawn({4});
  const NoGrad no_grad;
  EXPECT_FALSE(requires_grad(checkpoint([](const Tensors& in) { return ops::tanh(in[0]); }, {x})));
}

TEST_F(Checkpoint, ReadsTensorsThatAreNotInputsAgain) {
  const Tensor x = drawn({2, 3});
  Tensor slot = drawn({3, 3});
  const Tensor first = slot;
  const auto region = [&slot](const Tensors& in) { return ops::tanh(ops::matmul(in[0], slot)); };
  const Tensor y = checkpoint(region, {x});
  // The recomputation finds another tensor with the same values in the slot, as after an unshard.
  slot = raw::clone(detach(first));
  set_requires_grad(slot, true);
  backward({ops::sum(y)});
  EXPECT_FALSE(grad(slot).defined());
  const auto first_gradient = take_grad(first);
  set_grad(x, Tensor());
  backward({ops::sum(region({x}))});
  EXPECT_EQ(first_gradient, take_grad(slot));
}

TEST_F(Checkpoint, ReadsAReleasedParameterOnlyAfterReattachment) {
  const Tensor x = drawn({2, 3}), w = drawn({3, 3});
  const auto region = [&w](const Tensors& in) { return ops::tanh(ops::matmul(in[0], w)); };
  backward({ops::sum(region({x}))});
  const auto expected = take_grad(w);
  const Tensor y = checkpoint(region, {x});
  const device::MemoryPtr memory = w.storage()->memory_ptr();
  w.storage()->release();
  w.storage()->attach(memory);
  backward({ops::sum(y)});
  EXPECT_EQ(take_grad(w), expected);
}

TEST_F(Checkpoint, RunsUserHooksOfTheFirstForwardOnly) {
  const Tensor x = drawn({4});
  int seen = 0;
  const auto region = [&](const Tensors& in) {
    const Tensor h = ops::tanh(in[0]);
    add_hook(h, [&seen](const Tensor&) {
      ++seen;
      return Tensor();
    });
    return ops::tanh(h);
  };
  backward({ops::sum(checkpoint(region, {x}))});
  EXPECT_EQ(seen, 1);
}

TEST_F(Checkpoint, ShowsSeededDefects) {
  const Tensor x = drawn({6, 8}), w = drawn({8, 8});
  int runs = 0;
  const auto region = [layer = Layer{w, &runs}](const Tensors& in) { return ops::tanh(layer(in[0])); };
  const auto gradient = [&](Defect defect) {
    arm_defect(defect);
    seed(5);
    runs = 0;
    backward({ops::sum(checkpoint(region, {x}))});
    arm_defect(Defect::none);
    set_grad(x, Tensor());
    return take_grad(w);
  };
  const auto right = gradient(Defect::none);
  EXPECT_EQ(runs, 2);
  EXPECT_NE(gradient(Defect::checkpoint_random_state_not_restored), right);
  EXPECT_EQ(gradient(Defect::checkpoint_recomputes_twice), right);
  EXPECT_EQ(runs, 3);
}

}  // namespace
}  // namespace lockstep
