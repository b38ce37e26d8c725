// Exceptions during a checkpointed forward or its recomputation, and recomputations that differ from the forward.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/autograd/checkpoint_testing.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep {
namespace {

using checkpoint_testing::Checkpoint;
using checkpoint_testing::error_of;
using checkpoint_testing::Tensors;
using ::testing::HasSubstr;
using ::testing::Not;

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
  // No state is left over: the same backward now works, and other graphs keep their saved tensors.
  fails = false;
  backward({y});
  const auto gradient = take_grad(w);
  set_grad(x, Tensor());
  backward({ops::sum(region({x}))});
  EXPECT_EQ(gradient, take_grad(w));

  // A backward that ends after it reads the first saved tensor of a region and before it reads the last.
  y = ops::sum(checkpoint(region, {x}));
  const HookId hook = add_hook(w, [](const Tensor&) -> Tensor { throw Error("in a hook"); });
  const std::int64_t then = activation_bytes();
  EXPECT_THAT(error_of([&] { backward({y}, {}, true); }), HasSubstr("in a hook"));
  EXPECT_EQ(activation_bytes(), then);
  remove_hook(w, hook);
}

TEST_F(Checkpoint, RefusesFewerSavedTensorsAndAllowsMore) {
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

TEST_F(Checkpoint, RefusesOtherSizesTypesAndDevices) {
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
  // Without the check of the metadata, the derivative fails.
  const std::string unchecked = error_with(shorter, DeterminismCheck::none);
  EXPECT_NE(unchecked, "no error");
  EXPECT_THAT(unchecked, Not(HasSubstr("metadata")));
}

TEST_F(Checkpoint, RefusesInputsChangedInPlace) {
  const Tensor x = drawn({4}, false), w = drawn({4});
  const auto region = [w](const Tensors& in) { return ops::tanh(ops::mul(in[0], w)); };
  const Tensor y = ops::sum(checkpoint(region, {x}));
  raw::fill_(x, 1.0);
  EXPECT_THAT(error_of([&] { backward({y}); }), HasSubstr("was changed in place"));
}

}  // namespace
}  // namespace lockstep
