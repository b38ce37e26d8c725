// The layers against their formulas, worked out a row at a time in double.
#include "engine/nn/layers.hpp"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/autograd/autograd.hpp"
#include "engine/autograd/ops.hpp"
#include "engine/core/rank_context.hpp"

namespace lockstep::nn {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pointwise;

class Layers : public ::testing::Test {
 protected:
  RankContext context{0, 1};
  RankScope scope{context};
  ModulePtr make(const char* name, Inputs arguments = {}, DType dtype = DType::float64) {
    return build(name, arguments, {dtype, {}});
  }
  Tensor values(std::vector<double> numbers, Dims sizes) { return from_values(numbers, sizes, DType::float64, {}); }
  Tensor integers(std::vector<std::int64_t> numbers, Dims sizes) {
    return from_values(numbers, sizes, DType::int64, {});
  }
};

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST_F(Layers, LayerNormBringsRowsToMeanZeroAndVarianceOne) {
  const ModulePtr norm = make("LayerNorm", {{4}, {}});
  EXPECT_THAT(to_doubles(norm->parameters[0].tensor), ElementsAre(1, 1, 1, 1));
  EXPECT_THAT(to_doubles(norm->parameters[1].tensor), ElementsAre(0, 0, 0, 0));
  load_state_dict(norm, {{"weight", values({1, 2, 3, 4}, {4})}, {"bias", values({0, 0, 0, 10}, {4})}});
  const Tensor y = norm->call(values({1, 2, 3, 4, -5, -5, -5, -5}, {2, 4})).tensor();
  const double scale = 1.0 / std::sqrt(1.25 + 1e-5);  // the variance of 1, 2, 3, 4 is 1.25
  EXPECT_THAT(to_doubles(y),
              Pointwise(DoubleNear(1e-12), std::vector<double>{-1.5 * scale, -0.5 * scale * 2, 0.5 * scale * 3,
                                                               1.5 * scale * 4 + 10, 0, 0, 0, 10}));
  const ModulePtr plain = make("LayerNorm", {{4}, {{"bias", false}, {"eps", 0.75}}});
  EXPECT_EQ(named_parameters(plain).size(), 1u);
  EXPECT_THAT(to_doubles(plain->call(values({1, 2, 3, 4}, {4})).tensor()),
              Pointwise(DoubleNear(1e-12), std::vector<double>{-1.5 / std::sqrt(2.0), -0.5 / std::sqrt(2.0),
                                                               0.5 / std::sqrt(2.0), 1.5 / std::sqrt(2.0)}));
  EXPECT_THAT(error_of([&] { norm->call(values({1, 2}, {2})); }), HasSubstr("the last dim must have size 4"));
}

TEST_F(Layers, LayerNormSendsBackNoMeanGradient) {
  const ModulePtr norm = make("LayerNorm", {{5}, {}});
  Tensor x = randn({3, 5}, DType::float64, {});
  set_requires_grad(x, true);
  const Tensor factor = randn({3, 5}, DType::float64, {});
  backward({ops::sum(ops::mul(norm->call(x).tensor(), factor))});
  // The output does not change with the mean nor, but for eps, with the scale of a row.
  const auto gradient = to_doubles(grad(x)), input = to_doubles(x);
  for (std::size_t row = 0; row < 3; ++row) {
    double along_ones = 0, along_x = 0, size = 0;
    for (std::size_t i = row * 5; i < row * 5 + 5; ++i) {
      along_ones += gradient[i];
      along_x += gradient[i] * input[i];
      size += std::abs(gradient[i]);
    }
    EXPECT_NEAR(along_ones, 0.0, 1e-12);
    EXPECT_NEAR(along_x, 0.0, 1e-3 * size);
    EXPECT_GT(size, 1e-3);
  }
  // of bias: the sum of what comes in over the rows
  const auto bias = to_doubles(grad(norm->parameters[1].tensor)), incoming = to_doubles(factor);
  for (std::size_t i = 0; i < 5; ++i) EXPECT_NEAR(bias[i], incoming[i] + incoming[5 + i] + incoming[10 + i], 1e-12);
}

TEST_F(Layers, RmsNormDividesByTheRootOfTheMeanSquare) {
  const ModulePtr norm = make("RMSNorm", {{2}, {}});
  EXPECT_THAT(to_doubles(norm->parameters[0].tensor), ElementsAre(1, 1));
  load_state_dict(norm, {{"weight", values({1, 10}, {2})}});
  const double root = std::sqrt(12.5 + 1e-6);
  EXPECT_THAT(to_doubles(norm->call(values({3, 4, 0, 0}, {1, 2, 2})).tensor()),
              Pointwise(DoubleNear(1e-12), std::vector<double>{3 / root, 40 / root, 0, 0}));
}

TEST_F(Layers, EmbeddingPicksRowsAndAddsTheirGradients) {
  const ModulePtr embedding = make("Embedding", {{3, 2}, {}});
  load_state_dict(embedding, {{"weight", values({1, 2, 3, 4, 5, 6}, {3, 2})}});
  const Tensor y = embedding->call(integers({2, 0, 2, 2}, {2, 2})).tensor();
  EXPECT_EQ(y.sizes(), (Dims{2, 2, 2}));
  EXPECT_THAT(to_doubles(y), ElementsAre(5, 6, 1, 2, 5, 6, 5, 6));
  backward({ops::sum(y)});
  EXPECT_THAT(to_doubles(grad(embedding->parameters[0].tensor)), ElementsAre(1, 1, 0, 0, 3, 3));
}

TEST_F(Layers, EmbeddingIsDrawnNormallyAndDrawnAgain) {
  context.generator().seed(3);
  const ModulePtr embedding = make("Embedding", {{100, 16}, {}}, DType::float32);
  context.generator().seed(3);
  EXPECT_EQ(to_doubles(randn({100, 16}, DType::float32, {})), to_doubles(embedding->parameters[0].tensor));
  const auto before = to_doubles(embedding->parameters[0].tensor);
  embedding->reset_parameters();
  EXPECT_NE(to_doubles(embedding->parameters[0].tensor), before);
  context.generator().seed(3);
  embedding->reset_parameters();
  EXPECT_EQ(to_doubles(embedding->parameters[0].tensor), before);
}

TEST_F(Layers, CopiesComputeTheSame) {
  const Tensor x = randn({3, 4}, DType::float64, {});
  for (const char* name : {"LayerNorm", "RMSNorm"}) {
    const ModulePtr layer = make(name, {{4}, {{"eps", 0.5}}});
    const auto before = to_doubles(layer->call(x).tensor());
    EXPECT_EQ(to_doubles(clone_module(layer)->call(x).tensor()), before) << name;
    layer->reset_parameters();  // ones again
    EXPECT_EQ(to_doubles(layer->call(x).tensor()), before) << name;
  }
}

}  // namespace
}  // namespace lockstep::nn
