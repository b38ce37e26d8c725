// The order in which the parameters of layers and models get their gradients. The expected orders were recorded with
// PyTorch 2.15 (CPU) by register_post_accumulate_grad_hook on the same models.
#include <sstream>

#include <gtest/gtest.h>

#include "engine/autograd/autograd.hpp"
#include "engine/autograd/ops.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/nn/build.hpp"
#include "engine/nn/models.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::nn {
namespace {

class GradientOrder : public ::testing::Test {
 protected:
  RankContext context{0, 1};
  RankScope scope{context};
  std::string order;

  Tensor rows(const Dims& sizes) { return rand(sizes, DType::float32, {}); }
  Tensor tokens() {
    return from_values(std::vector<std::int64_t>{1, 2, 3, 4, 5, 6, 7, 0, 1, 2}, {2, 5}, DType::int64, {});
  }
  ModulePtr make(const char* name, const Inputs& arguments = {}) {
    return build(name, arguments, {DType::float32, {}});
  }
  std::string of(const ModulePtr& model, const Tensor& x) {
    order.clear();
    for (const NamedParameter& named : named_parameters(model))
      add_post_accumulate_hook(
          named.tensor(), [this, name = named.path](const Tensor&) { order += (order.empty() ? "" : " ") + name; });
    backward({ops::sum(model->call(x).tensor())});
    return order;
  }
};

// "2 1" -> "2.bias 2.weight 1.bias 1.weight".
std::string linears(const std::string& names) {
  std::istringstream in(names);
  std::string name, all;
  while (in >> name) all += (all.empty() ? "" : " ") + name + ".bias " + name + ".weight";
  return all;
}

TEST_F(GradientOrder, CoversLayers) {
  EXPECT_EQ(of(make("Linear", {{4, 5}, {}}), rows({3, 4})), "bias weight");
  EXPECT_EQ(of(make("Linear", {{4, 5}, {}}), rows({2, 3, 4})), "bias weight");
  EXPECT_EQ(of(make("Linear", {{4, 5}, {}}), rows({4})), "bias weight");
  EXPECT_EQ(of(make("Linear", {{4, 5}, {{"bias", false}}}), rows({3, 4})), "weight");
  EXPECT_EQ(of(make("LayerNorm", {{4}, {}}), rows({3, 4})), "weight bias");
  EXPECT_EQ(of(make("RMSNorm", {{4}, {}}), rows({3, 4})), "weight");
  EXPECT_EQ(of(make("BatchNorm", {{4}, {}}), rows({3, 4})), "weight bias");
  EXPECT_EQ(of(make("BatchNorm", {{3}, {}}), rows({2, 3, 4, 4})), "weight bias");
  EXPECT_EQ(of(make("Conv2d", {{3, 2, 2}, {}}), rows({2, 3, 4, 4})), "weight bias");
  EXPECT_EQ(of(make("Embedding", {{8, 3}, {}}), tokens()), "weight");
  const ModulePtr evaluated = make("BatchNorm", {{4}, {}});
  set_training(evaluated, false);
  EXPECT_EQ(of(evaluated, rows({3, 4})), "weight bias");
}

TEST_F(GradientOrder, CoversSequencesOfLinears) {
  EXPECT_EQ(of(make("Net"), rows({3, 2})), linears("fc3 fc2 fc1"));
  EXPECT_EQ(of(make("MyNet"), rows({3, 2})), linears("a"));
  EXPECT_EQ(of(make("UnitModule"), rows({3, 100})), linears("l2 seq.1 l1"));
  EXPECT_EQ(of(make("CompositeModel"), rows({3, 100})), linears("l2 u2.l2 u2.seq.1 u2.l1 u1.l2 u1.seq.1 u1.l1 l1"));
  EXPECT_EQ(of(make("CompositeParamModel"), rows({3, 100})),
            "p " + linears("u2.l2 u2.seq.1 u2.l1 u1.l2 u1.seq.1 u1.l1 l"));
  EXPECT_EQ(of(make("MLP", {{4}, {}}), rows({3, 4})), linears("out_proj in_proj"));
  EXPECT_EQ(of(make("MLPStack", {{4}, {}}), rows({3, 4})),
            linears("2.out_proj 2.in_proj 1.out_proj 1.in_proj 0.out_proj 0.in_proj"));
  EXPECT_EQ(of(make("SimpleModel"), rows({3, 5})), linears("net3 net2 net1"));
}

TEST_F(GradientOrder, CoversAModuleUsedTwice) {
  EXPECT_EQ(of(make("MultiForwardModule"), rows({3, 4})), linears("outer inner"));
}

TEST_F(GradientOrder, CoversAVisionModel) {
  EXPECT_EQ(of(make("ViT"), rows({1, 3, 28, 42})), linears("projector") + " vit.patch_proj.weight vit.patch_proj.bias");
}

TEST_F(GradientOrder, CoversATransformer) {
  const auto layer = [](const std::string& at) {
    return linears(at + "feed_forward.w2 " + at + "feed_forward.w1") + " " + at + "ffn_norm.weight " + at +
           "ffn_norm.bias " + at + "attention.wo.weight " + at + "attention.wv.weight " + at + "attention.wk.weight " +
           at + "attention.wq.weight " + at + "attention_norm.weight " + at + "attention_norm.bias ";
  };
  const std::string expected = "norm.weight norm.bias " + layer("layers.1.") + layer("layers.0.") +
                               "pos_embeddings.weight tok_embeddings.weight";
  EXPECT_EQ(of(make("Transformer"), tokens()), expected);
  EXPECT_EQ(of(make("Transformer", {{}, {{"checkpoint_activations", true}}}), tokens()), expected);
  EXPECT_EQ(of(make("Transformer", {{}, {{"weight_tying", false}}}), tokens()), "output.weight " + expected);
}

}  // namespace
}  // namespace lockstep::nn
