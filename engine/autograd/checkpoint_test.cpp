#include "engine/autograd/checkpoint.hpp"

#include <map>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/autograd/ops.hpp"
#include "engine/comm/process_group.hpp"
#include "engine/core/defects.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/device/device.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using Tensors = std::vector<Tensor>;

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

class Checkpoint : public ::testing::Test {
 protected:
  RankContext context{0, 1};
  RankScope scope{context};
  const device::Device cpu;

  Tensor drawn(const Dims& sizes, bool requires_grad = true) {
    Tensor tensor = randn(sizes, DType::float32, cpu);
    if (requires_grad) set_requires_grad(tensor, true);
    return tensor;
  }
  void seed(std::uint64_t value) { context.generator().seed(value); }
  static std::vector<double> taken_grad(const Tensor& leaf) {
    const std::vector<double> values = to_doubles(grad(leaf));
    set_grad(leaf, Tensor());
    return values;
  }
  static std::int64_t activation_bytes() {
    return device::memory_stats().current[static_cast<std::size_t>(device::Purpose::activation)];
  }
};

// tanh(x w) with dropout, counted.
struct Layer {
  Tensor weight;
  int* runs = nullptr;
  double drop = 0.3;
  Tensor operator()(const Tensor& x) const {
    if (runs) ++*runs;
    return ops::dropout(ops::tanh(ops::matmul(x, weight)), drop);
  }
};

TEST_F(Checkpoint, GivesTheBitsOfThePlainForwardDropoutIncluded) {
  const Tensor x = drawn({6, 8}), first = drawn({8, 8}), second = drawn({8, 4});
  int runs = 0;
  const Layer one{first, &runs}, two{second, &runs};
  const auto region = [one, two](const Tensors& in) { return two(one(in[0])); };
  const auto gradients = [&](bool checkpointed) {
    seed(5);
    const Tensor y = checkpointed ? checkpoint(region, {x}) : region({x});
    const Tensor after = rand({2}, DType::float32, cpu);  // the recomputation comes later than this draw
    backward({ops::sum(ops::mul(y, y))});
    const Tensor later = rand({2}, DType::float32, cpu);
    return std::make_tuple(to_doubles(y), taken_grad(x), taken_grad(first), taken_grad(second), to_doubles(after),
                           to_doubles(later));
  };
  const auto plain = gradients(false);
  EXPECT_EQ(runs, 2);
  const auto checkpointed = gradients(true);
  EXPECT_EQ(runs, 6);
  EXPECT_EQ(plain, checkpointed);
  EXPECT_NE(std::get<1>(plain), std::vector<double>(48, 0.0));
}

TEST_F(Checkpoint, DrawsOtherNumbersWhenTheRandomStateIsNotPreserved) {
  const Tensor x = drawn({6, 8}), w = drawn({8, 8});
  const auto region = [layer = Layer{w}](const Tensors& in) { return ops::tanh(layer(in[0])); };
  const auto gradient = [&](bool preserve) {
    seed(5);
    backward({ops::sum(checkpoint(region, {x}, {.preserve_random_state = preserve}))});
    set_grad(x, Tensor());
    return taken_grad(w);
  };
  EXPECT_NE(gradient(true), gradient(false));
}

TEST_F(Checkpoint, KeepsNoActivationAfterTheForward) {
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
    EXPECT_LT(activation_bytes() - before, matrix) << "what was recomputed went with the backward";
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

TEST_F(Checkpoint, StopsAfterTheLastTensorThatIsNeeded) {
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

TEST_F(Checkpoint, RunsNestedRegionsThreeTimesAndGivesTheSameBits) {
  const Tensor x = drawn({5, 6}), w = drawn({6, 6}), v = drawn({6, 6}), u = drawn({6, 6});
  int outer_runs = 0, inner_runs = 0, depth_seen = 0;
  const Layer before{w}, inside{v, &inner_runs}, behind{u};
  const auto region = [&](const Tensors& in, bool checkpointed) {
    ++outer_runs;
    const auto inner = [&](const Tensors& of) {
      depth_seen = std::max(depth_seen, recomputation_depth());
      return inside(of[0]);
    };
    const Tensor h = before(in[0]);
    return behind(checkpointed ? checkpoint(inner, {h}) : inner({h}));
  };
  const auto gradients = [&](bool checkpointed) {
    seed(9);
    const Tensor y =
        checkpointed ? checkpoint([&](const Tensors& in) { return region(in, true); }, {x}) : region({x}, false);
    backward({ops::sum(ops::mul(y, y))});
    return std::make_tuple(taken_grad(x), taken_grad(w), taken_grad(v), taken_grad(u));
  };
  const auto plain = gradients(false);
  outer_runs = inner_runs = 0;
  EXPECT_EQ(gradients(true), plain);
  EXPECT_EQ(outer_runs, 2);
  EXPECT_EQ(inner_runs, 3);
  EXPECT_EQ(depth_seen, 1) << "the outer one has ended before the inner one begins";
}

TEST_F(Checkpoint, NestedRegionsKeepNothingEither) {
  const Tensor x = drawn({64, 64}), w = drawn({64, 64});
  const auto step = [w](const Tensors& in) { return ops::tanh(ops::matmul(ops::tanh(in[0]), w)); };
  const auto two = [step](const Tensors& in) { return checkpoint(step, {checkpoint(step, in)}); };
  const auto four = [two](const Tensors& in) { return ops::sum(checkpoint(two, {checkpoint(two, in)})); };
  const std::int64_t before = activation_bytes();
  const Tensor y = checkpoint(four, {x});
  EXPECT_LT(activation_bytes() - before, 64 * 64 * 4);
  backward({y});
  const std::vector<double> nested = taken_grad(w);
  const std::vector<double> of_x = taken_grad(x);
  backward({ops::sum(step({step({step({step({x})})})}))});
  EXPECT_EQ(nested, taken_grad(w));
  EXPECT_EQ(of_x, taken_grad(x));
}

TEST_F(Checkpoint, TwoForwardsThenOneBackward) {
  const Tensor a = drawn({3, 4}), b = drawn({3, 4}), w = drawn({4, 4});
  int runs = 0;
  const auto region = [layer = Layer{w, &runs}](const Tensors& in) { return ops::tanh(layer(in[0])); };
  const auto gradient = [&](bool checkpointed) {
    seed(2);
    const Tensor first = checkpointed ? checkpoint(region, {a}) : region({a});
    const Tensor second = checkpointed ? checkpoint(region, {b}) : region({b});
    backward({ops::sum(ops::add(first, second))});
    return std::make_tuple(taken_grad(a), taken_grad(b), taken_grad(w));
  };
  EXPECT_EQ(gradient(false), gradient(true));
  EXPECT_EQ(runs, 6);
}

TEST_F(Checkpoint, ARetainedGraphIsRecomputedInEachBackward) {
  const Tensor x = drawn({3, 4}), w = drawn({4, 4});
  int runs = 0;
  const auto region = [layer = Layer{w, &runs}](const Tensors& in) { return ops::tanh(layer(in[0])); };
  seed(2);
  const Tensor y = ops::sum(checkpoint(region, {x}));
  backward({y}, {}, true);
  const auto first = taken_grad(w);
  backward({y}, {}, true);
  EXPECT_EQ(taken_grad(w), first);
  EXPECT_EQ(runs, 3);
  backward({y});
  EXPECT_EQ(taken_grad(w), first);
  EXPECT_THAT(error_of([&] { backward({y}); }), HasSubstr("the graph was freed by an earlier backward"));
}

TEST_F(Checkpoint, RecomputesWhatIsStillNeededWhenItsOutputsAreDifferentiatedApart) {
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
  backward({ops::sum(first)});  // the second one's tensors are gone: the recomputation ends with tanh of the first
  EXPECT_EQ(steps, 2);
  const std::vector<double> apart = taken_grad(x);
  const auto [again, other] = region({x});
  backward({ops::sum(other)});
  backward({ops::sum(again)});
  EXPECT_EQ(apart, taken_grad(x));
}

TEST_F(Checkpoint, TakesInputsThatNeedNoGradientAndGivesAnyStructure) {
  const Tensor tokens = from_values(std::vector<std::int64_t>{1, 0, 2}, {3}, DType::int64, cpu);
  const Tensor mask = drawn({3, 4}, false), table = drawn({3, 4});
  const auto region = [table](const Tensors& in) {
    EXPECT_FALSE(in[2].defined());
    const Tensor h = ops::mul(ops::embedding(table, in[0]), in[1]);
    EXPECT_FALSE(requires_grad(in[1]));
    return std::map<std::string, Tensors>{{"parts", {ops::tanh(h), h}}, {"none", {}}};
  };
  const auto gradient = [&](bool checkpointed) {
    const Tensors inputs = {tokens, mask, Tensor()};
    const auto result = checkpointed ? checkpoint(region, inputs) : region(inputs);
    backward({ops::sum(ops::mul(result.at("parts")[0], result.at("parts")[1]))});
    return taken_grad(table);
  };
  EXPECT_EQ(gradient(true), gradient(false));
}

TEST_F(Checkpoint, RecomputesInTheBackwardWithGradientsOn) {
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

TEST_F(Checkpoint, OnlyRunsTheFunctionWithoutGradients) {
  const Tensor x = drawn({4});
  const NoGrad no_grad;
  EXPECT_FALSE(requires_grad(checkpoint([](const Tensors& in) { return ops::tanh(in[0]); }, {x})));
}

TEST_F(Checkpoint, ReadsWhatIsNoInputAnew) {
  const Tensor x = drawn({2, 3});
  Tensor slot = drawn({3, 3});
  const Tensor gathered = slot;
  const auto region = [&slot](const Tensors& in) { return ops::tanh(ops::matmul(in[0], slot)); };
  const Tensor y = checkpoint(region, {x});
  // Another tensor of the same values lies in the slot by then, as after a gather.
  slot = raw::clone(detach(gathered));
  set_requires_grad(slot, true);
  backward({ops::sum(y)});
  EXPECT_FALSE(grad(slot).defined());
  const auto of_gathered = taken_grad(gathered);
  set_grad(x, Tensor());
  backward({ops::sum(region({x}))});
  EXPECT_EQ(of_gathered, taken_grad(slot));
}

TEST_F(Checkpoint, AReleasedParameterIsNotReadUntilItIsBack) {
  const Tensor x = drawn({2, 3}), w = drawn({3, 3});
  const auto region = [&w](const Tensors& in) { return ops::tanh(ops::matmul(in[0], w)); };
  backward({ops::sum(region({x}))});
  const auto expected = taken_grad(w);
  const Tensor y = checkpoint(region, {x});
  const device::MemoryPtr memory = w.storage()->memory_ptr();
  w.storage()->release();
  w.storage()->attach(memory);
  backward({ops::sum(y)});
  EXPECT_EQ(taken_grad(w), expected);
}

TEST_F(Checkpoint, IsClearedByExceptions) {
  const Tensor x = drawn({64, 64}), w = drawn({64, 64});
  bool fails = false;
  const auto region = [&](const Tensors& in) {
    const Tensor h = ops::tanh(ops::matmul(in[0], w));
    if (fails) throw Error("on purpose");
    return ops::tanh(ops::matmul(h, w));
  };
  const std::int64_t before = activation_bytes();
  fails = true;
  EXPECT_THAT(error_of([&] { checkpoint(region, {x}); }), HasSubstr("on purpose"));
  EXPECT_EQ(activation_bytes(), before);
  fails = false;
  seed(3);
  const auto state = context.generator().state().engine;
  Tensor y = ops::sum(checkpoint(region, {x}));
  const std::int64_t kept = activation_bytes();
  fails = true;
  EXPECT_THAT(error_of([&] { backward({y}, {}, true); }), HasSubstr("on purpose"));
  EXPECT_EQ(activation_bytes(), kept);
  EXPECT_FALSE(recomputing());
  EXPECT_EQ(context.generator().state().engine, state);
  // Nothing of it stays in the way: the same backward now works, and saved tensors are kept as ever.
  fails = false;
  backward({y});
  const auto gradient = taken_grad(w);
  set_grad(x, Tensor());
  backward({ops::sum(region({x}))});
  EXPECT_EQ(gradient, taken_grad(w));

  // A backward that ends between reading the first and the last of a region.
  y = ops::sum(checkpoint(region, {x}));
  const HookId hook = add_hook(w, [](const Tensor&) -> Tensor { throw Error("in a hook"); });
  const std::int64_t then = activation_bytes();
  EXPECT_THAT(error_of([&] { backward({y}, {}, true); }), HasSubstr("in a hook"));
  EXPECT_EQ(activation_bytes(), then);
  remove_hook(w, hook);
}

TEST_F(Checkpoint, ComplainsOfFewerSavedTensorsButNotOfMore) {
  const Tensor x = drawn({4});
  int num_steps = 3;
  const auto region = [&](const Tensors& in) {
    Tensor h = in[0];
    for (int i = 0; i < num_steps; ++i) h = ops::tanh(h);
    return h;
  };
  for (const DeterminismCheck check : {DeterminismCheck::metadata, DeterminismCheck::none}) {
    num_steps = 3;
    const Tensor y = ops::sum(checkpoint(region, {x}, {.determinism = check, .name = "net.0"}));
    num_steps = 2;
    const std::string error = error_of([&] { backward({y}); });
    EXPECT_THAT(error, HasSubstr("checkpoint of net.0: A different number of tensors was saved during the original "
                                 "forward and recomputation."));
    EXPECT_THAT(error, HasSubstr("saved 3, of which the first 3 are needed, the recomputation 2"));
    num_steps = 4;
    EXPECT_EQ(error_of([&] { backward({y}); }), "no error");
  }
}

TEST_F(Checkpoint, ComplainsOfOtherSizesTypesAndDevices) {
  const Tensor x = drawn({4});
  std::function<Tensor(const Tensor&)> change = [](const Tensor& t) { return t; };
  const auto region = [&](const Tensors& in) { return ops::tanh(ops::mul(change(in[0]), 2.0)); };
  const auto error_with = [&](std::function<Tensor(const Tensor&)> then, DeterminismCheck check) {
    change = [](const Tensor& t) { return t; };
    const Tensor y = ops::sum(checkpoint(region, {x}, {.determinism = check}));
    change = std::move(then);
    return error_of([&] { backward({y}); });
  };
  const auto shorter = [](const Tensor& t) { return ops::slice(t, 0, 0, 3); };
  const std::string sizes = error_with(shorter, DeterminismCheck::metadata);
  EXPECT_THAT(sizes, HasSubstr("checkpoint: Recomputed values for the following tensors have different metadata than "
                               "during the forward pass."));
  EXPECT_THAT(sizes,
              HasSubstr("\n  tensor 0, saved by tanh: float32 (4,) on cpu in the forward, float32 (3,) on cpu in "
                        "the recomputation"));
  const auto wider = [](const Tensor& t) { return ops::cast(t, DType::float64); };
  EXPECT_THAT(error_with(wider, DeterminismCheck::metadata), HasSubstr("float64 (4,) on cpu in the recomputation"));
  const auto elsewhere = [](const Tensor& t) { return raw::to_device(t, device::device_from_name("meta")); };
  EXPECT_THAT(error_with(
                  [&](const Tensor& t) {
                    return record("elsewhere", elsewhere(detach(t)), {t}, {},
                                  [](const Backward& at) -> Gradients { return {at.grad()}; });
                  },
                  DeterminismCheck::metadata),
              HasSubstr("float32 (4,) on meta in the recomputation"));
  // Not looked at, it is the derivative that stumbles.
  const std::string unchecked = error_with(shorter, DeterminismCheck::none);
  EXPECT_NE(unchecked, "no error");
  EXPECT_THAT(unchecked, Not(HasSubstr("metadata")));
}

TEST_F(Checkpoint, AnInputChangedInPlaceIsAnError) {
  const Tensor x = drawn({4}, false), w = drawn({4});
  const auto region = [w](const Tensors& in) { return ops::tanh(ops::mul(in[0], w)); };
  const Tensor y = ops::sum(checkpoint(region, {x}));
  raw::fill_(x, 1.0);
  EXPECT_THAT(error_of([&] { backward({y}); }), HasSubstr("was changed in place"));
}

TEST_F(Checkpoint, HooksOfUsersStayOnTheGraphOfTheForward) {
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

TEST_F(Checkpoint, SeededDefectsShow) {
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
    return taken_grad(w);
  };
  const auto right = gradient(Defect::none);
  EXPECT_EQ(runs, 2);
  EXPECT_NE(gradient(Defect::checkpoint_random_state_not_restored), right);
  EXPECT_EQ(gradient(Defect::checkpoint_recomputes_twice), right);
  EXPECT_EQ(runs, 3);
}

}  // namespace
}  // namespace lockstep
