// The Transformer: names, draws, tied weights, and its forward compared with plain loops.
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/autograd/autograd.hpp"
#include "engine/autograd/ops.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/nn/build.hpp"

namespace lockstep::nn {
namespace {

using ::testing::DoubleNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;

class Transformers : public ::testing::Test {
 protected:
  RankContext context{0, 1};
  RankScope scope{context};
  ModulePtr make(Structure::Map named, DType dtype = DType::float32) {
    return build("Transformer", {{}, std::move(named)}, {dtype, {}});
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

const Tensor& parameter(const ModulePtr& root, const std::string& path) {
  for (const NamedParameter& entry : named_parameters(root, false))
    if (entry.path == path) return entry.owner->parameters[entry.slot].tensor;
  throw Error(str("no ", path));
}

TEST_F(Transformers, TiesTheEmbeddingAndOutputWeights) {
  const ModulePtr tied = make({{"n_layers", 1}});
  const ModulePtr own = make({{"n_layers", 1}, {"weight_tying", false}});
  EXPECT_TRUE(parameter(tied, "output.weight").same_as(parameter(tied, "tok_embeddings.weight")));
  EXPECT_FALSE(parameter(own, "output.weight").same_as(parameter(own, "tok_embeddings.weight")));
  EXPECT_EQ(named_parameters(own).size(), named_parameters(tied).size() + 1);
  EXPECT_EQ(state_dict(own).size(), state_dict(tied).size());  // it has both names
  const ModulePtr copy = clone_module(tied);
  EXPECT_TRUE(parameter(copy, "output.weight").same_as(parameter(copy, "tok_embeddings.weight")));
  EXPECT_EQ(parameter(tied, "output.weight").name(), "tok_embeddings.weight");
}

TEST_F(Transformers, DrawsInOrderOfConstruction) {
  const Dims dim_dim = {16, 16};
  context.generator().seed(42);
  const ModulePtr model = make({{"n_layers", 1}, {"weight_tying", false}});
  context.generator().seed(42);
  const auto next = [&](const char* path, const Tensor& drawn) {
    EXPECT_EQ(to_doubles(parameter(model, path)), to_doubles(drawn)) << path;
  };
  const auto uniform = [](const Dims& sizes, double fan_in) {
    const Tensor drawn = empty(sizes, DType::float32, {});
    uniform_(drawn, -1 / std::sqrt(fan_in), 1 / std::sqrt(fan_in));
    return drawn;
  };
  next("tok_embeddings.weight", randn({8, 16}, DType::float32, {}));
  next("pos_embeddings.weight", randn({16, 16}, DType::float32, {}));
  for (const char* name : {"wq", "wk", "wv", "wo"})
    next(str("layers.0.attention.", name, ".weight").c_str(), uniform(dim_dim, 16));
  next("layers.0.feed_forward.w1.weight", uniform({64, 16}, 16));
  next("layers.0.feed_forward.w1.bias", uniform({64}, 16));
  next("layers.0.feed_forward.w2.weight", uniform({16, 64}, 64));
  next("layers.0.feed_forward.w2.bias", uniform({16}, 64));
  next("output.weight", uniform({8, 16}, 16));
}

// The operations of the Transformer in plain loops over rows of doubles.
using Rows = std::vector<std::vector<double>>;

Rows product(const Rows& x, const std::vector<double>& weight, std::size_t out, const std::vector<double>& bias = {}) {
  Rows y;
  for (const auto& row : x) {
    y.emplace_back(out, 0.0);
    for (std::size_t o = 0; o < out; ++o) {
      if (!bias.empty()) y.back()[o] = bias[o];
      for (std::size_t i = 0; i < row.size(); ++i) y.back()[o] += weight[o * row.size() + i] * row[i];
    }
  }
  return y;
}

// Layer norm with the initial weight (ones) and bias (zeros).
Rows normalized(const Rows& x) {
  Rows y;
  for (const auto& row : x) {
    const double size = static_cast<double>(row.size());
    double mean = 0, variance = 0;
    for (const double v : row) mean += v / size;
    for (const double v : row) variance += (v - mean) * (v - mean) / size;
    y.emplace_back();
    for (const double v : row) y.back().push_back((v - mean) / std::sqrt(variance + 1e-5));
  }
  return y;
}

Rows sum_of(Rows x, const Rows& y) {
  for (std::size_t i = 0; i < x.size(); ++i)
    for (std::size_t j = 0; j < x[i].size(); ++j) x[i][j] += y[i][j];
  return x;
}

// Causal attention with heads of width 2.
Rows causal_attention(const Rows& q, const Rows& k, const Rows& v) {
  Rows joined(q.size(), std::vector<double>(q[0].size(), 0.0));
  for (std::size_t head = 0; head < q[0].size() / 2; ++head)
    for (std::size_t s = 0; s < q.size(); ++s) {
      std::vector<double> scores;
      double total = 0;
      for (std::size_t t = 0; t <= s; ++t) {
        const double dot = q[s][2 * head] * k[t][2 * head] + q[s][2 * head + 1] * k[t][2 * head + 1];
        scores.push_back(std::exp(dot / std::sqrt(2.0)));
        total += scores.back();
      }
      for (std::size_t t = 0; t <= s; ++t)
        for (std::size_t i = 0; i < 2; ++i) joined[s][2 * head + i] += scores[t] / total * v[t][2 * head + i];
    }
  return joined;
}

TEST_F(Transformers, MatchesItsFormulas) {
  const ModulePtr model = make({{"n_layers", 1}, {"dim", 4}, {"n_heads", 2}, {"dropout_p", 0.0}}, DType::float64);
  const auto weight = [&](const std::string& path) { return to_doubles(parameter(model, path)); };
  const auto token_weight = weight("tok_embeddings.weight"), position_weight = weight("pos_embeddings.weight");
  Rows h;
  const std::size_t words[] = {1, 5, 2};
  for (std::size_t s = 0; s < 3; ++s) {
    h.emplace_back();
    for (std::size_t i = 0; i < 4; ++i) h.back().push_back(token_weight[words[s] * 4 + i] + position_weight[s * 4 + i]);
  }
  const Rows x = normalized(h);
  const Rows joined = causal_attention(product(x, weight("layers.0.attention.wq.weight"), 4),
                                       product(x, weight("layers.0.attention.wk.weight"), 4),
                                       product(x, weight("layers.0.attention.wv.weight"), 4));
  h = sum_of(h, product(joined, weight("layers.0.attention.wo.weight"), 4));
  Rows inner =
      product(normalized(h), weight("layers.0.feed_forward.w1.weight"), 16, weight("layers.0.feed_forward.w1.bias"));
  for (auto& row : inner)
    for (double& value : row) value *= 0.5 * (1 + std::erf(value / std::sqrt(2.0)));
  h = sum_of(h, product(inner, weight("layers.0.feed_forward.w2.weight"), 4, weight("layers.0.feed_forward.w2.bias")));
  std::vector<double> expected;
  for (const auto& row : product(normalized(h), token_weight, 8))
    expected.insert(expected.end(), row.begin(), row.end());

  const Tensor tokens = from_values(std::vector<std::int64_t>{1, 5, 2}, {1, 3}, DType::int64, {});
  const Tensor y = model->call(tokens).tensor();
  EXPECT_EQ(y.sizes(), (Dims{1, 3, 8}));
  EXPECT_EQ(y.dtype(), DType::float32);
  EXPECT_THAT(to_doubles(y), Pointwise(DoubleNear(1e-6), expected));
}

TEST_F(Transformers, SeesLaterTokensOnlyWithoutTheMask) {
  for (const bool mask : {true, false}) {
    const ModulePtr model = make({{"dropout_p", 0.0}, {"use_attn_mask", mask}});
    const auto first_of = [&](std::int64_t last) {
      return to_doubles(select(
          model->call(from_values(std::vector<std::int64_t>{1, 2, last}, {1, 3}, DType::int64, {})).tensor(), 1, 0));
    };
    EXPECT_EQ(first_of(3) == first_of(4), mask);
  }
}

TEST_F(Transformers, DropsOnlyInTraining) {
  const ModulePtr model = make({});
  const Tensor tokens = randint(0, 8, {2, 16}, DType::int64, {});
  EXPECT_NE(to_doubles(model->call(tokens).tensor()), to_doubles(model->call(tokens).tensor()));
  const auto state = context.generator().state().engine;
  set_training(model, false);
  EXPECT_EQ(to_doubles(model->call(tokens).tensor()), to_doubles(model->call(tokens).tensor()));
  EXPECT_TRUE(context.generator().state().engine == state);
}

TEST_F(Transformers, AddsBothGradientsOfTheTiedWeight) {
  const ModulePtr tied = make({{"dropout_p", 0.0}}, DType::float64);
  const ModulePtr own = make({{"dropout_p", 0.0}, {"weight_tying", false}}, DType::float64);
  load_state_dict(own, state_dict(tied));
  const Tensor tokens = randint(0, 8, {2, 5}, DType::int64, {});
  const Tensor factor = randn({2, 5, 8}, DType::float32, {});
  for (const ModulePtr& model : {tied, own}) backward({ops::sum(ops::mul(model->call(tokens).tensor(), factor))});
  const auto both = to_doubles(grad(parameter(tied, "output.weight")));
  auto expected = to_doubles(grad(parameter(own, "output.weight")));
  const auto embedded = to_doubles(grad(parameter(own, "tok_embeddings.weight")));
  for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += embedded[i];
  EXPECT_THAT(both, Pointwise(DoubleNear(1e-9), expected));
  for (const NamedParameter& entry : named_parameters(tied)) EXPECT_TRUE(grad(entry.tensor()).defined()) << entry.path;
}

TEST_F(Transformers, GivesTheSameBitsWithCheckpoints) {
  context.generator().seed(3);
  const ModulePtr plain = make({{"n_layers", 3}});
  context.generator().seed(3);
  const ModulePtr built = make({{"n_layers", 3}, {"checkpoint_activations", true}});
  const Tensor tokens = randint(0, 8, {2, 16}, DType::int64, {});
  for (const ModulePtr& model : {built, clone_module(built)}) {
    int runs = 0;
    for (const ChildSlot& layer : model->child("layers")->children)
      layer.module->add_pre_forward([&runs](Module&, Inputs&) { ++runs; });
    for (const ModulePtr& each : {plain, model}) {
      zero_grad(each);
      context.generator().seed(4);
      backward({ops::sum(each->call(tokens).tensor())});
    }
    EXPECT_EQ(runs, 6);
    const auto expected = named_parameters(plain), found = named_parameters(model);
    ASSERT_EQ(expected.size(), found.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(expected[i].path, found[i].path);
      EXPECT_EQ(to_doubles(grad(expected[i].tensor())), to_doubles(grad(found[i].tensor()))) << expected[i].path;
    }
  }
}

TEST_F(Transformers, RejectsWrongSizes) {
  EXPECT_THAT(error_of([&] { make({{"dim", 6}, {"n_heads", 4}}); }), HasSubstr("dim is 6, n_heads 4"));
  const ModulePtr model = make({});
  EXPECT_THAT(error_of([&] { model->call(randint(0, 8, {3}, DType::int64, {})); }),
              HasSubstr("give (batch, sequence)"));
}

}  // namespace
}  // namespace lockstep::nn
