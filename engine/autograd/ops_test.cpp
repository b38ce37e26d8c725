// Differentiable operations, where the registry does not cover them: saved tensors, in-place operations, mixed types, a
// small network.
#include "engine/autograd/ops.hpp"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/core/error.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/device/order.hpp"

namespace lockstep::ops {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const device::Device cpu = {device::Kind::cpu, 0};

class Ops : public testing::Test {
 protected:
  Ops() : scope_(context_) { device::set_poison(true); }
  static Tensor leaf(std::vector<double> values, Dims sizes, DType dtype = DType::float32) {
    const Tensor tensor = from_values(values, sizes, dtype, cpu);
    set_requires_grad(tensor, true);
    return tensor;
  }
  static Tensor plain(std::vector<double> values, Dims sizes) {
    return from_values(values, sizes, DType::float32, cpu);
  }
  static std::vector<double> grad_of(const Tensor& tensor) { return to_doubles(grad(tensor)); }
  // The sizes of the tensors that `f` saves.
  template <class F>
  static std::vector<std::string> saved_by(F&& f) {
    std::vector<std::string> sizes;
    const SavedTensorHooksScope hooks({[&](const Tensor& tensor) -> PackedTensor {
                                         sizes.push_back(to_text(tensor.sizes()));
                                         return std::make_shared<Tensor>(tensor);
                                       },
                                       [](const PackedTensor& packed) { return *static_cast<Tensor*>(packed.get()); }});
    f();
    return sizes;
  }

  RankContext context_{0, 1};
  RankScope scope_;
};

TEST_F(Ops, SaveOnlyTensorsThatBackwardReads) {
  const Tensor a = leaf({1, 2}, {2}), b = leaf({3}, {1}), c = plain({5, 6}, {2});
  const Tensor w = leaf({1, 2, 3, 4}, {2, 2}), frozen = plain({1, 2, 3, 4}, {2, 2});
  EXPECT_THAT(saved_by([&] { add(a, b); }), ElementsAre());
  EXPECT_THAT(saved_by([&] { mul(a, c); }), ElementsAre("(2,)"));  // only c
  EXPECT_THAT(saved_by([&] { mul(a, b); }), ElementsAre("(2,)", "(1,)"));
  EXPECT_THAT(saved_by([&] { div(a, c); }), ElementsAre("(2,)"));
  EXPECT_THAT(saved_by([&] { exp(a); }), ElementsAre("(2,)"));
  EXPECT_THAT(saved_by([&] { sum(a); }), ElementsAre());
  EXPECT_THAT(saved_by([&] { mean(a); }), ElementsAre());
  EXPECT_THAT(saved_by([&] { linear(plain({1, 2}, {1, 2}), w, &a); }), ElementsAre("(1, 2)"));
  EXPECT_THAT(saved_by([&] { linear(reshape(a, {1, 2}), frozen, nullptr); }), ElementsAre("(2, 2)"));
  EXPECT_THAT(saved_by([&] { matmul(frozen, w); }), ElementsAre("(2, 2)"));
  EXPECT_THAT(saved_by([&] { cat({a, b}, 0); }), ElementsAre());
  EXPECT_THAT(saved_by([&] { mul(c, c); }), ElementsAre());
  const NoGrad no_grad;
  EXPECT_THAT(saved_by([&] { mul(a, b); }), ElementsAre());
}

TEST_F(Ops, GiveGradientsTheTypeOfTheirInput) {
  const Tensor a = leaf({1, 2}, {2}, DType::bfloat16), b = leaf({3, 4}, {2}, DType::float64);
  const Tensor result = mul(a, b);
  EXPECT_EQ(result.dtype(), DType::float64);
  backward({sum(result)});
  EXPECT_EQ(grad(a).dtype(), DType::bfloat16);
  EXPECT_EQ(grad(b).dtype(), DType::float64);
  EXPECT_THAT(grad_of(a), ElementsAre(3, 4));
  EXPECT_THAT(grad_of(b), ElementsAre(1, 2));
}

TEST_F(Ops, DifferentiateATwoLayerNetwork) {
  // x (1, 2) -> linear to 2 -> relu -> linear to 1 -> mse against 1.
  const Tensor x = plain({1, 2}, {1, 2});
  const Tensor w1 = leaf({1, 0, 0, -1}, {2, 2}), b1 = leaf({0.5, 0.5}, {2});
  const Tensor w2 = leaf({2, 3}, {1, 2}), b2 = leaf({-1}, {1});
  const Tensor hidden = relu(linear(x, w1, &b1));  // relu(1.5, -1.5) = (1.5, 0)
  const Tensor loss = mse_loss(linear(hidden, w2, &b2), plain({1}, {1, 1}));
  EXPECT_EQ(item(loss), 1.0);  // 2 * 1.5 - 1 = 2; (2 - 1)^2
  backward({loss});
  EXPECT_THAT(grad_of(b2), ElementsAre(2));
  EXPECT_THAT(grad_of(w2), ElementsAre(3, 0));
  EXPECT_THAT(grad_of(b1), ElementsAre(4, 0));
  EXPECT_THAT(grad_of(w1), ElementsAre(4, 8, 0, 0));
}

TEST_F(Ops, PowToZeroHasZeroGradientAtZero) {
  const Tensor a = leaf({0, 2}, {2});
  backward({sum(pow(a, 0.0))});
  EXPECT_THAT(grad_of(a), ElementsAre(0, 0));
}

TEST_F(Ops, InPlaceOperationsContinueTheHistory) {
  const Tensor a = leaf({1, 2}, {2}), b = leaf({3, 4}, {2});
  const Tensor c = mul(a, 2.0);
  add_(c, b, 3.0);
  mul_(c, b);
  sub_(c, a);
  mul_(c, -1.0);
  EXPECT_STREQ(grad_fn_name(c), "mul_");
  EXPECT_THAT(to_doubles(c), ElementsAre(-((2 + 9) * 3 - 1), -((4 + 12) * 4 - 2)));
  backward({sum(c)});
  EXPECT_THAT(grad_of(a), ElementsAre(-(2 * 3 - 1), -(2 * 4 - 1)));      // -(2b - 1)
  EXPECT_THAT(grad_of(b), ElementsAre(-(2 + 6 * 3), -(2 * 2 + 6 * 4)));  // -(2a + 6b)
}

TEST_F(Ops, WhatIsOverwrittenInPlaceGetsZeros) {
  const Tensor a = leaf({1, 2}, {2}), b = leaf({3, 4}, {2});
  const Tensor c = mul(a, 2.0);
  copy_(c, b);
  backward({sum(mul(c, c))});
  EXPECT_THAT(grad_of(a), ElementsAre(0, 0));
  EXPECT_THAT(grad_of(b), ElementsAre(6, 8));
  const Tensor d = mul(a, 2.0);
  zero_(d);
  backward({sum(d)});
  EXPECT_THAT(grad_of(a), ElementsAre(0, 0));
}

TEST_F(Ops, RefuseInPlaceOnALeafBeforeWriting) {
  const Tensor a = leaf({1, 2}, {2}), other = plain({7, 7}, {2});
  a.set_name("fc1.weight");
  const auto refused = [&](auto&& f) {
    const auto version = a.storage()->version();
    try {
      f();
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_THAT(error.message(), HasSubstr("fc1.weight, float32 (2,) on cpu is a leaf that requires a gradient"));
      EXPECT_FALSE(error.remedy().empty());
    }
    EXPECT_THAT(to_doubles(a), ElementsAre(1, 2));
    EXPECT_EQ(a.storage()->version(), version);
    EXPECT_TRUE(is_leaf(a));
  };
  refused([&] { add_(a, other); });
  refused([&] { sub_(a, other); });
  refused([&] { mul_(a, other); });
  refused([&] { mul_(a, 2.0); });
  refused([&] { copy_(a, other); });
  refused([&] { zero_(a); });
  const NoGrad no_grad;
  add_(a, other);
  EXPECT_THAT(to_doubles(a), ElementsAre(8, 9));
}

TEST_F(Ops, DetectInPlaceChangesOfSavedTensors) {
  const Tensor a = leaf({1, 2}, {2}), factor = plain({3, 4}, {2});
  const Tensor loss = sum(mul(a, factor));
  add_(factor, factor);
  EXPECT_THROW(backward({loss}), Error);
}

TEST_F(Ops, CastToIntegersAndDetachEndTheHistory) {
  const Tensor a = leaf({1.5, 2.5}, {2});
  EXPECT_FALSE(requires_grad(cast(a, DType::int64)));
  EXPECT_FALSE(requires_grad(ops::detach(a)));
  EXPECT_TRUE(cast(a, DType::float32).same_as(a));
  EXPECT_TRUE(contiguous(a).same_as(a));
}

TEST_F(Ops, SumBothGradientsOfAnInputUsedTwice) {
  const Tensor a = leaf({2, 3}, {2});
  backward({sum(mul(a, a))});
  EXPECT_THAT(grad_of(a), ElementsAre(4, 6));
  const Tensor b = leaf({1, 2}, {2});
  backward({sum(stack({b, b, mul(b, 3.0)}, 0))});
  EXPECT_THAT(grad_of(b), ElementsAre(5, 5));
}

}  // namespace
}  // namespace lockstep::ops
