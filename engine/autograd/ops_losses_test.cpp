// The loss over classes: reductions, class weights, ignored rows, classes of a batch. The expected values are worked
// out by hand from logits whose softmax has simple fractions; PyTorch 2's cross_entropy gives the same numbers.
#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/autograd/ops.hpp"
#include "engine/core/error.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::ops {
namespace {

using testing::DoubleNear;
using testing::HasSubstr;
using testing::Pointwise;

const device::Device cpu = {device::Kind::cpu, 0};
const double nan = std::numeric_limits<double>::quiet_NaN();

class Losses : public testing::Test {
 protected:
  Losses() : scope_(context_) {}
  static std::string error_of(const std::function<void()>& action) {
    try {
      action();
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }
  RankContext context_{0, 1};
  RankScope scope_;
};

// The softmax of row i is shares[i] / the sum of the row: 8, 8, 16, 16.
const std::vector<double> shares = {1, 2, 3, 1, 1, 4, 1, 1, 1, 1, 1, 1, 2, 8, 4, 2, 6, 1, 1, 6};
const std::vector<std::int64_t> at = {2, 0, 4, 1};               // shares 3/8, 1/2, 1/4, 3/8
const std::vector<double> class_weights = {0.5, 2, 1, 4, 0.25};  // of the targets: 1, 1/2, 1/4, 2

Tensor logits(const Dims& sizes, DType dtype = DType::float64) {
  std::vector<double> logs;
  for (const double share : shares) logs.push_back(std::log(share));
  const Tensor made = from_values(logs, sizes, dtype, cpu);
  set_requires_grad(made, true);
  return made;
}
Tensor targets(const Dims& sizes) { return from_values(at, sizes, DType::int64, cpu); }
Tensor weights(DType dtype = DType::float64) { return from_values(class_weights, {5}, dtype, cpu); }

// The gradient of row `row` for a factor: (softmax - one at the target) * factor.
std::vector<double> gradient(const std::vector<double>& factors) {
  std::vector<double> all;
  for (std::size_t i = 0; i < shares.size(); ++i) {
    const std::size_t row = i / 5;
    const double softmax = shares[i] / (row < 2 ? 8.0 : 16.0);
    all.push_back((softmax - (static_cast<std::int64_t>(i % 5) == at[row] ? 1.0 : 0.0)) * factors[row]);
  }
  return all;
}

void expect(const LossOptions& options, const std::vector<double>& values, const std::vector<double>& factors) {
  for (const bool batched : {false, true}) {
    const Tensor x = logits(batched ? Dims{2, 2, 5} : Dims{4, 5});
    const Tensor loss = cross_entropy(x, targets(batched ? Dims{2, 2} : Dims{4}), options);
    EXPECT_EQ(loss.num_dims(), options.reduction != Reduction::none ? 0 : batched ? 2 : 1);
    EXPECT_THAT(to_doubles(loss), Pointwise(DoubleNear(1e-14), values));
    backward({loss}, {full(loss.sizes(), 1.0, DType::float64, cpu)});
    EXPECT_THAT(to_doubles(grad(x)), Pointwise(DoubleNear(1e-14), gradient(factors)));
  }
}

const double first = std::log(8.0 / 3.0), second = std::log(2.0), third = std::log(4.0);

TEST_F(Losses, ReduceRows) {
  expect({}, {(2 * first + second + third) / 4}, {0.25, 0.25, 0.25, 0.25});
  expect({.reduction = Reduction::sum}, {2 * first + second + third}, {1, 1, 1, 1});
  expect({.reduction = Reduction::none}, {first, second, third, first}, {1, 1, 1, 1});
}

TEST_F(Losses, WeighRowsByTheClassOfTheirTarget) {
  const double sum = 3 * first + second / 2 + third / 4;
  expect({.weight = weights()}, {sum / 3.75}, {1 / 3.75, 0.5 / 3.75, 0.25 / 3.75, 2 / 3.75});
  expect({.reduction = Reduction::sum, .weight = weights()}, {sum}, {1, 0.5, 0.25, 2});
  expect({.reduction = Reduction::none, .weight = weights()}, {first, second / 2, third / 4, 2 * first},
         {1, 0.5, 0.25, 2});
}

// Class 0 is the target of the second row.
TEST_F(Losses, IgnoreRows) {
  const double rest = 2 * first + third;
  expect({.ignore_index = 0}, {rest / 3}, {1.0 / 3, 0, 1.0 / 3, 1.0 / 3});
  expect({.reduction = Reduction::sum, .ignore_index = 0}, {rest}, {1, 0, 1, 1});
  expect({.reduction = Reduction::none, .ignore_index = 0}, {first, 0, third, first}, {1, 0, 1, 1});
  expect({.weight = weights(), .ignore_index = 0}, {(3 * first + third / 4) / 3.25},
         {1 / 3.25, 0, 0.25 / 3.25, 2 / 3.25});
  expect({.ignore_index = -100}, {(2 * first + second + third) / 4}, {0.25, 0.25, 0.25, 0.25});
}

TEST_F(Losses, OfNoRowAreNaNOrZeroAndHaveNoGradient) {
  const Tensor none = full({4}, std::int64_t{-100}, DType::int64, cpu);
  for (const bool weighted : {false, true})
    for (const Reduction reduction : {Reduction::mean, Reduction::sum, Reduction::none}) {
      const Tensor x = logits({4, 5});
      const Tensor loss = cross_entropy(
          x, none, {.reduction = reduction, .weight = weighted ? weights() : Tensor(), .ignore_index = -100});
      for (const double value : to_doubles(loss)) {
        if (reduction == Reduction::mean)
          EXPECT_TRUE(std::isnan(value));
        else
          EXPECT_EQ(value, 0.0);
      }
      backward({loss}, {full(loss.sizes(), 1.0, DType::float64, cpu)});
      EXPECT_THAT(to_doubles(grad(x)), testing::Each(0.0));
    }
}

TEST_F(Losses, SkipLogitsOfIgnoredRowsThatAreNotFinite) {
  const Tensor x = from_values(std::vector<double>{0, 0, nan, 0}, {2, 2}, DType::float32, cpu);
  const Tensor rows = from_values(std::vector<std::int64_t>{1, 7}, {2}, DType::int64, cpu);
  EXPECT_NEAR(item(cross_entropy(x, rows, {.ignore_index = 7})), second, 1e-6);
  EXPECT_THAT(to_doubles(cross_entropy(x, rows, {.reduction = Reduction::none, .ignore_index = 7}))[1], 0.0);
}

TEST_F(Losses, WithoutWeightsHaveTheBitsOfEqualWeights) {
  const Tensor x = cast(logits({4, 5}), DType::float32), plain = lockstep::detach(x), weighed = raw::clone(plain);
  set_requires_grad(plain, true);
  set_requires_grad(weighed, true);
  const Tensor loss = cross_entropy(plain, targets({4}));
  const Tensor same = cross_entropy(weighed, targets({4}), {.weight = ones({5}, DType::float32, cpu)});
  EXPECT_EQ(to_bytes(loss), to_bytes(same));
  backward({loss});
  backward({same});
  EXPECT_EQ(to_bytes(grad(plain)), to_bytes(grad(weighed)));
}

TEST_F(Losses, RefuseOtherOperands) {
  const Tensor x = logits({2, 2, 5}), t = targets({2, 2});
  EXPECT_THAT(error_of([&] { cross_entropy(ops::transpose(x, 1, 2), t); }), HasSubstr("transpose dim 1 to the end"));
  EXPECT_THAT(error_of([&] { cross_entropy(x, targets({4})); }), HasSubstr("give logits (..., classes)"));
  EXPECT_THAT(error_of([&] { cross_entropy(x, t, {.weight = weights(DType::float32)}); }),
              HasSubstr("give one weight per class, of the type of the logits"));
  EXPECT_THAT(error_of([&] { cross_entropy(x, t, {.weight = ones({4}, DType::float64, cpu)}); }),
              HasSubstr("give one weight per class"));
  const Tensor learnt = weights();
  set_requires_grad(learnt, true);
  EXPECT_THAT(error_of([&] { cross_entropy(x, t, {.weight = learnt}); }), HasSubstr("detach the weight"));
  const Tensor far = from_values(std::vector<std::int64_t>{0, 5, -100, 1}, {2, 2}, DType::int64, cpu);
  EXPECT_THAT(
      error_of([&] { cross_entropy(x, far, {.ignore_index = -100}); }),
      HasSubstr("target 5 of row 1 is out of range for 5 classes (give targets from 0 to 4, or -100 to ignore"));
  EXPECT_THAT(error_of([&] { cross_entropy(x, far, {.ignore_index = 5}); }), HasSubstr("target -100 of row 2"));
}

}  // namespace
}  // namespace lockstep::ops
