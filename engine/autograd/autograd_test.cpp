#include "engine/autograd/autograd.hpp"

#include <chrono>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/autograd/ops.hpp"
#include "engine/comm/process_group.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Autograd : public ::testing::Test {
 protected:
  RankContext context{0, 1};
  RankScope scope{context};
  const device::Device cpu;

  Tensor leaf(const std::vector<double>& values) {
    Tensor tensor = from_values(values, {static_cast<std::int64_t>(values.size())}, DType::float32, cpu);
    set_requires_grad(tensor, true);
    return tensor;
  }
  Tensor constant(const std::vector<double>& values) {
    return from_values(values, {static_cast<std::int64_t>(values.size())}, DType::float32, cpu);
  }
};

std::vector<double> values(const Tensor& tensor) { return to_doubles(tensor); }

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST_F(Autograd, DifferentiatesAChain) {
  const Tensor x = leaf({1, 2, 3});
  const Tensor y = ops::sum(ops::mul(ops::mul(x, x), 2.0));
  EXPECT_FALSE(is_leaf(y));
  backward({y});
  EXPECT_THAT(values(grad(x)), ElementsAre(4, 8, 12));
}

TEST_F(Autograd, SumsGradientsOfAllUses) {
  const Tensor x = leaf({2, 3});
  const Tensor h = ops::mul(x, 3.0);
  backward({ops::sum(ops::add(ops::add(ops::mul(h, h), h), x))});  // 9x^2 + 3x + x
  EXPECT_THAT(values(grad(x)), ElementsAre(40, 58));
}

TEST_F(Autograd, AccumulatesInPlaceIntoAnExistingGradient) {
  const Tensor x = leaf({1, 2});
  backward({ops::sum(ops::mul(x, 2.0))});
  const Tensor first = grad(x);
  backward({ops::sum(ops::mul(x, 3.0))});
  EXPECT_TRUE(grad(x).same_as(first));
  EXPECT_THAT(values(first), ElementsAre(5, 5));
}

TEST_F(Autograd, KeepsAGradientWithoutCopyOnlyAsItsOnlyOwner) {
  const Tensor x = leaf({1, 2});
  const Tensor mine = constant({7, 8});
  backward({ops::mul(x, 1.0)}, {mine});
  EXPECT_NE(grad(x).storage(), mine.storage());
  EXPECT_EQ(grad(x).storage()->memory().purpose(), device::Purpose::gradient);
  EXPECT_EQ(mine.storage()->memory().purpose(), device::Purpose::activation);

  const Tensor y = leaf({1, 2});
  StoragePtr seen;
  Tensor own = constant({7, 8});
  seen = own.storage();
  const Storage* address = seen.get();
  seen.reset();
  accumulate_grad(y, std::move(own));
  EXPECT_EQ(grad(y).storage().get(), address);
  EXPECT_EQ(grad(y).storage()->memory().purpose(), device::Purpose::gradient);

  const Tensor a = leaf({1, 2});
  const Tensor b = leaf({3, 4});
  backward({ops::sum(ops::add(a, b))});  // one gradient tensor arrives at two leaves, which must not share it
  EXPECT_NE(grad(a).storage(), grad(b).storage());
  raw::fill_(grad(a), 9.0);
  EXPECT_THAT(values(grad(b)), ElementsAre(1, 1));
}

TEST_F(Autograd, GivesGradientsTheStridesOfTheirLeaves) {
  const Tensor base = from_values(std::vector<double>{1, 2, 3, 4, 5, 6}, {2, 3}, DType::float32, cpu);
  const Tensor x = transpose(base, 0, 1);
  set_requires_grad(x, true);
  backward({ops::sum(ops::mul(x, x))});
  EXPECT_EQ(grad(x).strides(), x.strides());
  EXPECT_THAT(values(grad(x)), ElementsAre(2, 8, 4, 10, 6, 12));
}

TEST_F(Autograd, RunsTheLatestRecordedNodeFirst) {
  const Tensor x = leaf({1});
  std::vector<std::string> order;
  const auto watch = [&order](const Tensor& tensor, const char* name) {
    return watch_first_gradient({tensor}, [&order, name] { order.push_back(name); })[0];
  };
  const Tensor a = watch(ops::mul(x, 2.0), "a");
  const Tensor b = watch(ops::mul(x, 3.0), "b");
  const Tensor c = watch(ops::mul(a, 4.0), "c");
  backward({ops::sum(ops::add(c, b))});
  EXPECT_THAT(order, ElementsAre("c", "b", "a"));
  EXPECT_THAT(values(grad(x)), ElementsAre(11));
}

TEST_F(Autograd, RunsALeafWhenItsLastGradientArrives) {
  const Tensor first = leaf({1});
  const Tensor last = leaf({2});
  std::vector<std::string> order;
  add_post_accumulate_hook(first, [&](const Tensor&) { order.push_back("first"); });
  add_post_accumulate_hook(last, [&](const Tensor&) { order.push_back("last"); });
  const Tensor h = watch_first_gradient({ops::mul(first, first)}, [&] { order.push_back("h"); })[0];
  backward({ops::sum(ops::mul(h, last))});
  EXPECT_THAT(order, ElementsAre("last", "h", "first"));
}

TEST_F(Autograd, TellsWhetherALeafHasPostAccumulateHooks) {
  EXPECT_FALSE(has_post_accumulate_hooks(constant({1})));  // it has no gradient state
  const Tensor x = leaf({1});
  EXPECT_FALSE(has_post_accumulate_hooks(x));
  const HookId id = add_post_accumulate_hook(x, [](const Tensor&) {});
  EXPECT_TRUE(has_post_accumulate_hooks(x));
  remove_hook(x, id);
  EXPECT_FALSE(has_post_accumulate_hooks(x));
}

TEST_F(Autograd, RunsHooksInOrderOnTheCompleteGradient) {
  const Tensor x = leaf({1, 2});
  std::vector<double> seen;
  add_hook(x, [&](const Tensor& gradient) {
    seen = values(gradient);
    return raw::mul(gradient, 10.0);
  });
  const HookId second = add_hook(x, [](const Tensor& gradient) { return raw::add(gradient, 1.0); });
  const auto loss = [&] { return ops::sum(ops::add(ops::mul(x, 2.0), x)); };
  backward({loss()});
  EXPECT_THAT(seen, ElementsAre(3, 3));
  EXPECT_THAT(values(grad(x)), ElementsAre(31, 31));
  remove_hook(x, second);
  set_grad(x, Tensor());
  backward({loss()});
  EXPECT_THAT(values(grad(x)), ElementsAre(30, 30));

  const Tensor h = ops::mul(x, 2.0);
  add_hook(h, [](const Tensor&) { return Tensor(); });  // an undefined result keeps the gradient
  add_hook(h, [](const Tensor& gradient) { return raw::mul(gradient, 0.5); });
  set_grad(x, Tensor());
  backward({ops::sum(h)});
  EXPECT_THAT(values(grad(x)), ElementsAre(10, 10));  // 0.5 * 2, and 10 by the first hook of x
}

TEST_F(Autograd, RemovesAHookOfAResult) {
  const Tensor x = leaf({1, 2});
  const Tensor h = ops::mul(x, 2.0);
  add_hook(h, [](const Tensor& gradient) { return raw::mul(gradient, 10.0); });
  const HookId removed = add_hook(h, [](const Tensor& gradient) { return raw::add(gradient, 1.0); });
  remove_hook(h, removed);
  backward({ops::sum(h)});
  EXPECT_THAT(values(grad(x)), ElementsAre(20, 20));  // 2 * 10
}

TEST_F(Autograd, KeepsTheGradientThatArrivedBeforeAHookWasRemoved) {
  const Tensor x = leaf({1, 2});
  int calls = 0;
  const Tensor watched = watch_first_gradient({ops::mul(x, 2.0)}, [&] { ++calls; })[0];
  const HookId removed = add_hook(watched, [](const Tensor& gradient) { return raw::mul(gradient, 10.0); });
  const Tensor second = ops::mul(watched, 3.0), first = ops::mul(watched, 5.0);  // in the order of backward
  add_hook(second, [&](const Tensor&) {
    remove_hook(watched, removed);
    return Tensor();
  });
  backward({ops::add(ops::sum(second), ops::sum(first))});
  EXPECT_THAT(values(grad(x)), ElementsAre(16, 16));  // (3 + 5) * 2, without the removed hook
  EXPECT_EQ(calls, 1);
}

TEST_F(Autograd, CallsTheAccumulatorInsteadOfAccumulating) {
  const Tensor x = leaf({1, 2});
  std::vector<double> got;
  set_accumulator(x, [&](const Tensor& leaf, const Tensor& gradient) {
    EXPECT_TRUE(leaf.same_as(x));
    got = values(gradient);
  });
  EXPECT_TRUE(has_accumulator(x));
  backward({ops::sum(ops::mul(x, 5.0))});
  EXPECT_THAT(got, ElementsAre(5, 5));
  EXPECT_FALSE(grad(x).defined());
  set_accumulator(x, {});
  backward({ops::sum(ops::mul(x, 5.0))});
  EXPECT_THAT(values(grad(x)), ElementsAre(5, 5));
}

TEST_F(Autograd, WatchesSeparateBranchesSeparately) {
  const Tensor x = leaf({1, 2});
  const Tensor z = leaf({3, 4});
  int calls = 0;
  const auto watched = watch_first_gradient({ops::mul(x, 2.0), ops::mul(z, 3.0)}, [&] { ++calls; });
  backward({ops::sum(watched[0])});
  EXPECT_EQ(calls, 1);
  EXPECT_FALSE(grad(z).defined());
  backward({ops::sum(watched[1])});
  EXPECT_EQ(calls, 2);
  EXPECT_THAT(values(grad(z)), ElementsAre(3, 3));

  const auto together = watch_first_gradient({ops::mul(x, 2.0), ops::mul(z, 3.0)}, [&] { ++calls; });
  backward({ops::sum(ops::add(together[0], together[1]))});
  EXPECT_EQ(calls, 3);
}

TEST_F(Autograd, RunsCallbacksAtTheEndInOrder) {
  const Tensor x = leaf({1});
  std::vector<int> order;
  const Tensor h = watch_first_gradient({ops::mul(x, 2.0)}, [&] {
    EXPECT_TRUE(in_backward());
    EXPECT_FALSE(grad_enabled());
    EXPECT_EQ(comm::current_phase(), comm::Phase::backward);
    EXPECT_TRUE(backward_reaches(x));
    queue_backward_callback([&] {
      order.push_back(1);
      EXPECT_TRUE(grad(x).defined());
      queue_backward_callback([&] { order.push_back(3); });
    });
    queue_backward_callback([&] { order.push_back(2); });
  })[0];
  backward({ops::sum(h)});
  EXPECT_THAT(order, ElementsAre(1, 2, 3));
  EXPECT_FALSE(in_backward());
  EXPECT_EQ(comm::current_phase(), comm::Phase::other);
  EXPECT_THAT(error_of([] { queue_backward_callback([] {}); }), HasSubstr("no backward is running"));
}

TEST_F(Autograd, SeparatesCallbacksOfNestedBackwards) {
  const Tensor x = leaf({1});
  const Tensor z = leaf({1});
  std::vector<std::string> order;
  const Tensor h = watch_first_gradient({ops::mul(x, 2.0)}, [&] {
    queue_backward_callback([&] { order.push_back("outer"); });
    const std::uint64_t outer = backward_id();
    Tensor loss;
    {
      const GradMode on(true);
      loss = ops::sum(watch_first_gradient({ops::mul(z, 3.0)}, [&] {
        EXPECT_NE(backward_id(), outer);
        queue_backward_callback([&] { order.push_back("inner"); });
      })[0]);
    }
    backward({loss});
    EXPECT_EQ(backward_id(), outer);
  })[0];
  backward({ops::sum(h)});
  EXPECT_THAT(order, ElementsAre("inner", "outer"));
  EXPECT_THAT(values(grad(z)), ElementsAre(3));
  EXPECT_THAT(values(grad(x)), ElementsAre(2));
}

TEST_F(Autograd, PacksThroughTheInnermostHooksAndUnpacksOnce) {
  const Tensor x = leaf({3});
  int packed = 0, unpacked = 0;
  const SavedTensorHooks hooks{[&](const Tensor& tensor) -> PackedTensor {
                                 ++packed;
                                 return std::make_shared<Tensor>(raw::mul(tensor, 10.0));
                               },
                               [&](const PackedTensor& object) {
                                 ++unpacked;
                                 return *static_cast<Tensor*>(object.get());
                               }};
  const SavedTensorHooksScope outer({[](const Tensor&) -> PackedTensor { throw Error("the outer one"); }, {}});
  Tensor y;
  {
    const SavedTensorHooksScope inner(hooks);
    y = record("twice", raw::mul(x, x), {x}, {x}, [](const Backward& at) -> Gradients {
      return {raw::mul(at.grad(), raw::add(at.saved(0), at.saved(0)))};
    });
  }
  backward({y});
  EXPECT_EQ(packed, 1);
  EXPECT_EQ(unpacked, 1);
  EXPECT_THAT(values(grad(x)), ElementsAre(60));
}

TEST_F(Autograd, IgnoresGradientsOfInputsThatNeedNone) {
  const Tensor x = leaf({1, 2}), factors = constant({3, 4, 5});
  const Tensor y = record("pair", raw::mul(x, 2.0), {x, factors}, {}, [](const Backward& at) -> Gradients {
    return {raw::mul(at.grad(), 2.0), at.grad()};  // the second has the sizes of the first input
  });
  backward({ops::sum(y)});
  EXPECT_THAT(values(grad(x)), ElementsAre(2, 2));
  EXPECT_FALSE(grad(factors).defined());
}

TEST_F(Autograd, RefusesSavedTensorsChangedInPlace) {
  const Tensor x = leaf({1, 2});
  const Tensor factor = constant({3, 4});
  factor.storage()->owner = "factor";
  const Tensor y = ops::sum(ops::mul(x, factor));
  raw::fill_(factor, 0.0);
  const std::string error = error_of([&] { backward({y}); });
  EXPECT_THAT(error, HasSubstr("mul"));
  EXPECT_THAT(error, HasSubstr("factor"));
  EXPECT_THAT(error, HasSubstr("it was at version"));
}

TEST_F(Autograd, FreesTheGraphUnlessRetained) {
  const Tensor x = leaf({1, 2});
  const Tensor y = ops::sum(ops::mul(x, x));
  backward({y}, {}, true);
  backward({y});
  EXPECT_THAT(values(grad(x)), ElementsAre(4, 8));
  EXPECT_THAT(error_of([&] { backward({y}); }), HasSubstr("the graph was freed by an earlier backward"));
  EXPECT_THAT(values(grad(x)), ElementsAre(4, 8));
}

TEST_F(Autograd, RefusesRootsThatCannotBeDifferentiated) {
  const Tensor x = leaf({1, 2});
  EXPECT_THAT(error_of([&] { backward({ops::mul(x, 2.0)}); }), HasSubstr("of sizes (2,) is not a scalar"));
  EXPECT_THAT(error_of([&] { backward({constant({1})}); }), HasSubstr("nothing to differentiate"));
  EXPECT_THAT(error_of([&] { backward({ops::mul(x, 2.0)}, {constant({1})}); }), HasSubstr("the root is float32 (2,)"));
  EXPECT_THAT(error_of([&] {
                backward({ops::sum(x), ops::sum(x)}, {constant({1})});
              }),
              HasSubstr("1 gradients for 2 roots"));
  EXPECT_THAT(error_of([&] { set_requires_grad(arange(0, 3, 1, DType::int64, cpu), true); }), HasSubstr("int64"));
  EXPECT_THAT(error_of([&] { set_grad(x, constant({1})); }), HasSubstr("set_grad"));
}

TEST_F(Autograd, RecordsNothingWithoutGradMode) {
  const Tensor x = leaf({1});
  {
    const NoGrad off;
    EXPECT_TRUE(is_leaf(ops::mul(x, 2.0)));
    const GradMode on(true);
    EXPECT_STREQ(grad_fn_name(ops::mul(x, 2.0)), "mul");
  }
  EXPECT_TRUE(grad_enabled());
  EXPECT_FALSE(requires_grad(detach(x)));
}

TEST_F(Autograd, ContinuesTheHistoryOfInPlaceOperations) {
  const Tensor x = leaf({2, 3});
  const Tensor y = ops::mul(x, 1.0);
  ops::mul_(y, 4.0);
  ops::add_(y, x);
  backward({ops::sum(y)});
  EXPECT_THAT(values(grad(x)), ElementsAre(5, 5));
  EXPECT_THAT(error_of([&] { ops::mul_(x, 2.0); }), HasSubstr("requires a gradient and cannot be changed in place"));
  const NoGrad off;
  ops::mul_(x, 2.0);
  EXPECT_THAT(values(x), ElementsAre(4, 6));
}

TEST_F(Autograd, StaysUsableAfterAFailedBackward) {
  const Tensor x = leaf({1});
  const Tensor h = watch_first_gradient({ops::mul(x, 2.0)}, [] { throw Error("on purpose", "nothing"); })[0];
  EXPECT_THAT(error_of([&] { backward({ops::sum(h)}); }), HasSubstr("on purpose"));
  EXPECT_FALSE(in_backward());
  EXPECT_TRUE(grad_enabled());
  backward({ops::sum(ops::mul(x, 2.0))});
  EXPECT_THAT(values(grad(x)), ElementsAre(2));
}

TEST_F(Autograd, DestroysALongChainWithoutRecursion) {
  const Tensor x = leaf({1});
  Tensor y = x;
  for (int i = 0; i < 200000; ++i)
    y = record("step", detach(y), {y}, {}, [](const Backward& at) -> Gradients { return {at.grad()}; });
  backward({y});
  EXPECT_THAT(values(grad(x)), ElementsAre(1));
}

}  // namespace
}  // namespace lockstep
