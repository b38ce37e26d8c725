// Models built on the meta device, for all builders: materialized and reset, they equal models built in place.
#include <cmath>
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/autograd/autograd.hpp"
#include "engine/autograd/ops.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/nn/build.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::nn {
namespace {

struct Example {
  const char* name;
  Inputs arguments;
  std::function<Tensor()> input;
};

std::vector<Example> examples() {
  const auto rows = [](std::int64_t size) { return [size] { return randn({3, size}, DType::float32, {}); }; };
  const auto images = [] { return randn({2, 3, 14, 14}, DType::float32, {}); };
  const auto tokens = [] { return randint(0, 8, {2, 16}, DType::int64, {}); };
  const auto no_dropout = Inputs{{}, {{"dropout_p", 0.0}}};
  return {
      {"Linear", {{4, 5}, {}}, rows(4)},
      {"Conv2d", {{3, 4, 3}, {}}, images},
      {"Embedding", {{8, 5}, {}}, tokens},
      {"LayerNorm", {{6}, {}}, rows(6)},
      {"RMSNorm", {{6}, {}}, rows(6)},
      {"BatchNorm", {{3}, {}}, images},
      {"ReLU", {}, rows(4)},
      {"GELU", {}, rows(4)},
      {"Dropout", {{0.0}, {}}, rows(4)},
      {"Net", {}, rows(2)},
      {"MyNet", {}, rows(2)},
      {"UnitModule", {}, rows(100)},
      {"CompositeModel", {}, rows(100)},
      {"CompositeParamModel", {}, rows(100)},
      {"MLP", {{6}, {{"buffer", true}}}, rows(6)},
      {"MLPStack", {{6}, {}}, rows(6)},
      {"MultiForwardModule", {}, rows(4)},
      {"SimpleModel", {}, rows(5)},
      {"MLPModule", {}, rows(10)},
      {"VisionTransformer", {}, images},
      {"ViT", {}, images},
      {"Transformer", no_dropout, tokens},
  };
}

class OnMeta : public ::testing::Test {
 protected:
  RankContext context_{0, 1};
  RankScope scope_{context_};
  ModulePtr built(const Example& example, const char* on) {
    context_.generator().seed(7);
    return build(example.name, example.arguments, {DType::float32, device::device_from_name(on)});
  }
};

TEST_F(OnMeta, ExamplesCoverAllBuilders) {
  std::vector<std::string> known, shown;
  for (const BuilderInfo& info : builders())
    if (!info.variadic) known.push_back(info.name);
  for (const Example& example : examples()) shown.emplace_back(example.name);
  EXPECT_THAT(shown, ::testing::UnorderedElementsAreArray(known));
}

TEST_F(OnMeta, ModelsHaveShapesAndDrawNothing) {
  for (const Example& example : examples()) {
    const ModulePtr here = built(example, "cpu");
    const ModulePtr meta = built(example, "meta");
    // Building drew nothing from the generator. One model seeds it.
    const double next = context_.generator().normal_single();
    context_.generator().seed(example.name == std::string("MLPModule") ? 5 : 7);
    EXPECT_EQ(next, context_.generator().normal_single()) << example.name;
    const auto expected = named_parameters(here, false), actual = named_parameters(meta, false);
    ASSERT_EQ(actual.size(), expected.size()) << example.name;
    for (std::size_t i = 0; i < actual.size(); ++i) {
      EXPECT_EQ(actual[i].path, expected[i].path);
      EXPECT_EQ(actual[i].tensor().sizes(), expected[i].tensor().sizes()) << actual[i].path;
      EXPECT_TRUE(actual[i].tensor().is_meta()) << actual[i].path;
      EXPECT_TRUE(requires_grad(actual[i].tensor())) << actual[i].path;
      EXPECT_EQ(actual[i].owner->parameters[actual[i].slot].num_draws, 0) << actual[i].path;
      EXPECT_EQ(expected[i].owner->parameters[expected[i].slot].num_draws, 1) << expected[i].path;
    }
    ASSERT_EQ(named_buffers(meta).size(), named_buffers(here).size()) << example.name;
    for (const NamedBuffer& buffer : named_buffers(meta)) EXPECT_TRUE(buffer.tensor().is_meta()) << buffer.path;
  }
}

// Resets every module of a tree, children first, which is the order of draws while building.
void reset_all(const ModulePtr& root) {
  for (const ChildSlot& child : root->children) reset_all(child.module);
  root->reset_parameters();
}

TEST_F(OnMeta, MaterializedModelsMatchModelsBuiltInPlace) {
  for (const Example& example : examples()) {
    const ModulePtr here = built(example, "cpu");
    const ModulePtr model = built(example, "meta");
    materialize(model, {});
    for (const NamedParameter& parameter : named_parameters(model))
      EXPECT_TRUE(std::isnan(to_doubles(parameter.tensor())[0])) << example.name << " " << parameter.path;
    context_.generator().seed(example.name == std::string("MLPModule") ? 5 : 7);
    reset_all(model);
    const bool tied = example.name == std::string("Transformer");  // the weight that its output drew is discarded
    const auto actual = named_parameters(model), expected = named_parameters(here);
    for (std::size_t i = 0; i < actual.size(); ++i) {
      EXPECT_EQ(actual[i].owner->parameters[actual[i].slot].num_draws, 1) << actual[i].path;
      if (tied && actual[i].path == "tok_embeddings.weight")
        EXPECT_NE(to_doubles(actual[i].tensor()), to_doubles(expected[i].tensor()));
      else
        EXPECT_EQ(to_doubles(actual[i].tensor()), to_doubles(expected[i].tensor()))
            << example.name << " " << actual[i].path;
    }
    for (std::size_t i = 0; i < named_buffers(model).size(); ++i)
      EXPECT_EQ(to_doubles(named_buffers(model)[i].tensor()), to_doubles(named_buffers(here)[i].tensor()))
          << example.name;
    const Tensor loss = ops::sum(model->call(example.input()).tensor());
    EXPECT_TRUE(std::isfinite(to_doubles(loss)[0])) << example.name;
    if (actual.empty()) continue;
    backward({loss});
    for (const NamedParameter& parameter : named_parameters(model)) {
      const Tensor gradient = grad(parameter.tensor());
      ASSERT_TRUE(gradient.defined()) << example.name << " " << parameter.path;
      for (const double value : to_doubles(gradient)) ASSERT_TRUE(std::isfinite(value)) << parameter.path;
    }
  }
}

TEST_F(OnMeta, CountsDrawsPerModule) {
  const ModulePtr net = built({"Net", {}, {}}, "cpu");
  const auto count = [](const ModulePtr& root) {
    std::vector<int> counts;
    for (const NamedParameter& parameter : named_parameters(root))
      counts.push_back(parameter.owner->parameters[parameter.slot].num_draws);
    return counts;
  };
  net->child("fc2")->reset_parameters();
  net->reset_parameters();  // draws nothing: only its children have parameters
  EXPECT_THAT(count(net), ::testing::ElementsAre(1, 1, 2, 2, 1, 1));
  EXPECT_THAT(count(clone_module(net)), ::testing::ElementsAre(1, 1, 2, 2, 1, 1));
}

}  // namespace
}  // namespace lockstep::nn
