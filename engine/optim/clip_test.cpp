#include "engine/optim/clip.hpp"

#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/autograd/autograd.hpp"
#include "engine/core/error.hpp"
#include "engine/core/rank_context.hpp"

namespace lockstep::optim {
namespace {

using ::testing::DoubleNear;
using ::testing::Pointwise;

class Clip : public ::testing::Test {
 protected:
  RankContext context{0, 1};
  RankScope scope{context};
  std::vector<Tensor> parameters;

  Tensor with_grad(std::vector<double> values, DType dtype = DType::float64) {
    const Dims sizes = {static_cast<std::int64_t>(values.size())};
    const Tensor parameter = zeros(sizes, dtype, {});
    set_requires_grad(parameter, true);
    set_grad(parameter, from_values(values, sizes, dtype, {}));
    parameters.push_back(parameter);
    return parameter;
  }
};

TEST_F(Clip, ScalesByTheJointNorm) {
  const Tensor a = with_grad({3, 0}), b = with_grad({0, -4, 12});
  const Tensor without = zeros({2}, DType::float64, {});
  set_requires_grad(without, true);
  parameters.push_back(without);
  EXPECT_NEAR(item(clip_grad_norm(parameters, 6.5)), 13.0, 1e-12);
  const double factor = 6.5 / (13.0 + 1e-6);
  EXPECT_THAT(to_doubles(grad(a)), Pointwise(DoubleNear(1e-12), std::vector<double>{3 * factor, 0}));
  EXPECT_THAT(to_doubles(grad(b)), Pointwise(DoubleNear(1e-12), std::vector<double>{0, -4 * factor, 12 * factor}));
  EXPECT_FALSE(grad(without).defined());
}

TEST_F(Clip, KeepsSmallGradients) {
  const Tensor a = with_grad({0.5, -0.25});
  EXPECT_NEAR(item(clip_grad_norm(parameters, 1.0)), std::sqrt(0.3125), 1e-12);
  EXPECT_EQ(to_doubles(grad(a)), (std::vector<double>{0.5, -0.25}));
}

TEST_F(Clip, SupportsOtherNorms) {
  with_grad({3, 1});
  const Tensor b = with_grad({0, -4, 1, 2, -1});
  EXPECT_NEAR(item(clip_grad_norm(parameters, 100, 1)), 12.0, 1e-12);
  EXPECT_NEAR(item(clip_grad_norm(parameters, 100, 3)), std::cbrt(27 + 1 + 64 + 1 + 8 + 1), 1e-12);
  EXPECT_EQ(item(clip_grad_norm(parameters, 2, std::numeric_limits<double>::infinity())), 4.0);
  EXPECT_NEAR(to_doubles(grad(b))[1], -2.0, 1e-5);
}

TEST_F(Clip, SumsShortTypesInFloat32) {
  with_grad({200, 200, 200}, DType::float16);  // the squares exceed the largest float16
  const Tensor norm = clip_grad_norm(parameters, 1000);
  EXPECT_EQ(norm.dtype(), DType::float32);
  EXPECT_NEAR(item(norm), 346.41016, 1e-4);
  EXPECT_EQ(to_doubles(grad(parameters[0])), (std::vector<double>{200, 200, 200}));
}

TEST_F(Clip, ReturnsZeroWithoutGradients) {
  EXPECT_EQ(item(clip_grad_norm({}, 1.0)), 0.0);
  EXPECT_THROW(clip_grad_norm({}, -1.0), Error);
  EXPECT_THROW(clip_grad_norm({}, std::numeric_limits<double>::quiet_NaN()), Error);
  EXPECT_THROW(clip_grad_norm({}, 1.0, 0.0), Error);
}

}  // namespace
}  // namespace lockstep::optim
