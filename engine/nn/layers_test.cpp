// Compares the layers with their formulas, computed row by row in double.
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

TEST_F(Layers, LayerNormNormalisesRows) {
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

TEST_F(Layers, LayerNormGradientIsOrthogonalToOnesAndInput) {
  const ModulePtr norm = make("LayerNorm", {{5}, {}});
  Tensor x = randn({3, 5}, DType::float64, {});
  set_requires_grad(x, true);
  const Tensor factor = randn({3, 5}, DType::float64, {});
  backward({ops::sum(ops::mul(norm->call(x).tensor(), factor))});
  // The output does not depend on the mean of a row and, except for eps, not on its scale.
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
  // The gradient of the bias is the sum of the output gradients over the rows.
  const auto bias = to_doubles(grad(norm->parameters[1].tensor)), incoming = to_doubles(factor);
  for (std::size_t i = 0; i < 5; ++i) EXPECT_NEAR(bias[i], incoming[i] + incoming[5 + i] + incoming[10 + i], 1e-12);
}

TEST_F(Layers, RmsNormDividesByTheRootMeanSquare) {
  const ModulePtr norm = make("RMSNorm", {{2}, {}});
  EXPECT_THAT(to_doubles(norm->parameters[0].tensor), ElementsAre(1, 1));
  load_state_dict(norm, {{"weight", values({1, 10}, {2})}});
  const double root = std::sqrt(12.5 + 1e-6);
  EXPECT_THAT(to_doubles(norm->call(values({3, 4, 0, 0}, {1, 2, 2})).tensor()),
              Pointwise(DoubleNear(1e-12), std::vector<double>{3 / root, 40 / root, 0, 0}));
}

TEST_F(Layers, EmbeddingSelectsRowsAndAddsTheirGradients) {
  const ModulePtr embedding = make("Embedding", {{3, 2}, {}});
  load_state_dict(embedding, {{"weight", values({1, 2, 3, 4, 5, 6}, {3, 2})}});
  const Tensor y = embedding->call(integers({2, 0, 2, 2}, {2, 2})).tensor();
  EXPECT_EQ(y.sizes(), (Dims{2, 2, 2}));
  EXPECT_THAT(to_doubles(y), ElementsAre(5, 6, 1, 2, 5, 6, 5, 6));
  backward({ops::sum(y)});
  EXPECT_THAT(to_doubles(grad(embedding->parameters[0].tensor)), ElementsAre(1, 1, 0, 0, 3, 3));
}

TEST_F(Layers, EmbeddingDrawsFromTheNormalDistribution) {
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

TEST_F(Layers, GeluMatchesItsFormula) {
  const auto y = to_doubles(make("GELU")->call(values({-1, 0, 2}, {3})).tensor());
  EXPECT_NEAR(y[0], -0.5 * (1 + std::erf(-1 / std::sqrt(2.0))), 1e-14);
  EXPECT_EQ(y[1], 0.0);
  EXPECT_NEAR(y[2], 1 + std::erf(std::sqrt(2.0)), 1e-14);
}

TEST_F(Layers, DropoutUsesTheRanksGeneratorInTraining) {
  const ModulePtr dropout = make("Dropout", {{0.25}, {}});
  Tensor x = ones({4, 50}, DType::float64, {});
  set_requires_grad(x, true);
  context.generator().seed(9);
  const Tensor y = dropout->call(x).tensor();
  context.generator().seed(9);
  std::vector<double> expected(200);
  for (double& value : expected) value = context.generator().keep(0.25) ? 1.0 / 0.75 : 0.0;
  EXPECT_EQ(to_doubles(y), expected);
  EXPECT_THAT(expected, ::testing::Contains(0.0));
  backward({ops::sum(y)});
  EXPECT_EQ(to_doubles(grad(x)), expected);  // the same mask
  set_training(dropout, false);
  EXPECT_TRUE(dropout->call(x).tensor().same_as(x));
  EXPECT_TRUE(make("Dropout", {{0.0}, {}})->call(x).tensor().same_as(x));
  EXPECT_THAT(error_of([&] { make("Dropout", {{1.5}, {}}); }), HasSubstr("p is 1.5"));
}

TEST_F(Layers, ConvolutionMatchesItsFormula) {
  const ModulePtr conv = make("Conv2d", {{2, 3, 2, 2, 1}, {}});
  const Tensor weight = conv->parameters[0].tensor;
  EXPECT_EQ(weight.sizes(), (Dims{3, 2, 2, 2}));
  const double bound = 1.0 / std::sqrt(8.0);
  for (const double value : to_doubles(weight)) EXPECT_LE(std::abs(value), bound);
  Tensor x = randn({2, 2, 4, 5}, DType::float64, {});  // 6 x 7 with the padding; no window contains the last column
  set_requires_grad(x, true);
  const Tensor y = conv->call(x).tensor();
  ASSERT_EQ(y.sizes(), (Dims{2, 3, 3, 3}));
  const auto in = to_doubles(x), w = to_doubles(weight), b = to_doubles(conv->parameters[1].tensor);
  std::vector<double> expected;
  for (std::size_t n = 0; n < 2; ++n)
    for (std::size_t o = 0; o < 3; ++o)
      for (std::size_t row = 0; row < 3; ++row)
        for (std::size_t column = 0; column < 3; ++column) {
          double sum = b[o];
          for (std::size_t c = 0; c < 2; ++c)
            for (std::size_t i = 2 * row; i < 2 * row + 2; ++i)
              for (std::size_t j = 2 * column; j < 2 * column + 2; ++j)
                if (i >= 1 && i <= 4 && j >= 1 && j <= 5)
                  sum += w[((o * 2 + c) * 2 + i % 2) * 2 + j % 2] * in[((n * 2 + c) * 4 + i - 1) * 5 + j - 1];
          expected.push_back(sum);
        }
  EXPECT_THAT(to_doubles(y), Pointwise(DoubleNear(1e-12), expected));
  backward({ops::sum(y)});
  EXPECT_NEAR(to_doubles(grad(x))[0], w[3] + w[11] + w[19], 1e-12);  // the lower right element of the first window
  EXPECT_THAT(to_doubles(grad(conv->parameters[1].tensor)), ElementsAre(18, 18, 18));
  EXPECT_EQ(named_parameters(make("Conv2d", {{2, 3, 2}, {{"bias", false}}})).size(), 1u);
  EXPECT_THAT(error_of([&] { make("Conv2d", {{2, 3, 2, 1, -1}, {}}); }), HasSubstr("`padding` is -1"));
}

TEST_F(Layers, BatchNormUpdatesRunningStatistics) {
  const ModulePtr norm = make("BatchNorm", {{2}, {}});
  EXPECT_EQ(named_buffers(norm).size(), 2u);
  const Tensor x = values({1, 10, 3, 20, 5, 60}, {3, 2});  // means 3 and 30, variances 8/3 and 1400/3
  const double first = 2 / std::sqrt(8.0 / 3 + 1e-5), second = 10 / std::sqrt(1400.0 / 3 + 1e-5);
  EXPECT_THAT(to_doubles(norm->call(x).tensor()),
              Pointwise(DoubleNear(1e-12), std::vector<double>{-first, -2 * second, 0, -second, first, 3 * second}));
  EXPECT_THAT(to_doubles(norm->buffers[0].tensor), Pointwise(DoubleNear(1e-12), std::vector<double>{0.3, 3}));
  EXPECT_THAT(to_doubles(norm->buffers[1].tensor), Pointwise(DoubleNear(1e-12), std::vector<double>{1.3, 70.9}));
  set_training(norm, false);
  EXPECT_NEAR(to_doubles(norm->call(x).tensor())[0], 0.7 / std::sqrt(1.3 + 1e-5), 1e-12);
  EXPECT_THAT(to_doubles(norm->buffers[0].tensor), Pointwise(DoubleNear(1e-12), std::vector<double>{0.3, 3}));
}

TEST_F(Layers, VisionModelCallsAMethodOfItsChild) {
  const ModulePtr model = make("ViT", {}, DType::float32);
  const ModulePtr vit = model->child("vit");
  EXPECT_THAT(vit->methods(), ElementsAre("forward", "forward_features"));
  const Tensor x = randn({1, 3, 28, 42}, DType::float32, {});
  const Tensor patches = vit->call({{x}, {}}, "forward_features").tensor();
  EXPECT_EQ(patches.sizes(), (Dims{1, 6, 1024}));
  EXPECT_EQ(vit->call(x).tensor().sizes(), (Dims{1, 1024}));
  EXPECT_EQ(to_doubles(vit->call(x).tensor()), to_doubles(ops::sum(patches, {1}, false)));
  int calls = 0;
  vit->add_pre_forward([&calls](Module&, Inputs&) { ++calls; });
  EXPECT_EQ(to_doubles(model->call(x).tensor()), to_doubles(model->child("projector")->call(patches).tensor()));
  EXPECT_EQ(calls, 0);
  vit->register_forward_method("forward_features");
  model->call(x);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(to_doubles(clone_module(model)->call(x).tensor()), to_doubles(model->call(x).tensor()));
  EXPECT_THAT(error_of([&] { vit->call({{x}, {}}, "features"); }), HasSubstr("it has forward, forward_features"));
}

TEST_F(Layers, ClonesComputeTheSame) {
  const Tensor x = randn({3, 4}, DType::float64, {});
  for (const char* name : {"LayerNorm", "RMSNorm"}) {
    const ModulePtr layer = make(name, {{4}, {{"eps", 0.5}}});
    const auto before = to_doubles(layer->call(x).tensor());
    EXPECT_EQ(to_doubles(clone_module(layer)->call(x).tensor()), before) << name;
    layer->reset_parameters();  // sets ones again
    EXPECT_EQ(to_doubles(layer->call(x).tensor()), before) << name;
  }
}

}  // namespace
}  // namespace lockstep::nn
