// Operations of networks, where the registry does not cover them: side effects, random draws, errors.
#include "engine/tensor/ops_network.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/autograd/ops.hpp"
#include "engine/core/error.hpp"
#include "engine/core/rank_context.hpp"

namespace lockstep::ops {
namespace {

const device::Device cpu = {device::Kind::cpu, 0};

class NetworkOps : public testing::Test {
 protected:
  NetworkOps() : scope_(context_) {}
  // The number of uniform draws of the generator of the rank since it was seeded.
  int drawn_since(std::uint64_t seed) {
    Generator fresh;
    fresh.seed(seed);
    Generator now = context_.generator();
    const std::uint64_t next = now.next64();
    for (int count = 0; count < 100000; ++count)
      if (fresh.next64() == next) return count;
    return -1;
  }
  RankContext context_{0, 1};
  RankScope scope_;
};

TEST_F(NetworkOps, BatchNormMovesRunningStatistics) {
  const Tensor x = from_values(std::vector<double>{1, 2, 3, 4, 5, 9}, {3, 2}, DType::float32, cpu);
  const Tensor mean = from_values(std::vector<double>{10, 20}, {2}, DType::float32, cpu);
  const Tensor variance = ones({2}, DType::float32, cpu);
  batch_norm(x, nullptr, nullptr, &mean, &variance, true, 0.5);
  EXPECT_THAT(to_doubles(mean), testing::ElementsAre(6.5, 12.5));     // batch means: 3 and 5
  EXPECT_THAT(to_doubles(variance), testing::ElementsAre(2.5, 7.0));  // batch variances: 4 and 13
  const std::vector<double> before = to_doubles(mean);
  batch_norm(x, nullptr, nullptr, &mean, &variance, false);
  EXPECT_EQ(to_doubles(mean), before);
  EXPECT_THROW(batch_norm(x, nullptr, nullptr, nullptr, nullptr, false), Error);
}

TEST_F(NetworkOps, DropoutDrawsOneNumberPerElementInTrainingOnly) {
  const Tensor x = ones({5, 7}, DType::float32, cpu);
  context_.generator().seed(3);
  dropout(x, 0.4, false);
  dropout(x, 0.0);
  dropout(x, 1.0);
  EXPECT_EQ(drawn_since(3), 0);
  const std::vector<double> values = to_doubles(dropout(x, 0.4));
  EXPECT_EQ(drawn_since(3), 35);
  Generator generator;
  generator.seed(3);
  for (const double value : values) EXPECT_EQ(value, generator.keep(0.4) ? 1.0f / 0.6f : 0.0f);
  const Tensor none = empty({5, 7}, DType::float32, {device::Kind::meta, 0});
  dropout(none, 0.4);
  EXPECT_EQ(drawn_since(3), 35);
  EXPECT_THROW(dropout(x, 1.5), Error);
  EXPECT_THROW(dropout(x, 1.5, false), Error);  // also where nothing is dropped
}

TEST_F(NetworkOps, AttentionDrawsForMaskedScoresToo) {
  const Tensor x = ones({2, 3, 4, 8}, DType::float32, cpu);
  context_.generator().seed(5);
  attention(x, x, x, true, 0.1);
  EXPECT_EQ(drawn_since(5), 2 * 3 * 4 * 4);
}

TEST_F(NetworkOps, ErrorsNameOperandsAndRemedy) {
  const Tensor logits = ones({2, 3}, DType::float32, cpu);
  const Tensor far = from_values(std::vector<std::int64_t>{0, 3}, {2}, DType::int64, cpu);
  try {
    cross_entropy(logits, far);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.message(), testing::HasSubstr("target 3 of row 1"));
  }
  EXPECT_THROW(embedding(logits, far), Error);
  EXPECT_THROW(cross_entropy(logits, logits), Error);
  EXPECT_THROW(batch_norm(Tensor(), nullptr, nullptr, nullptr, nullptr, true), Error);
  EXPECT_THROW(layer_norm(logits, 0, nullptr, nullptr), Error);
  EXPECT_THROW(layer_norm(logits, 3, nullptr, nullptr), Error);
  EXPECT_THROW(layer_norm(logits, 1, &logits, nullptr), Error);
  EXPECT_THROW(attention(logits, logits, ones({4, 3}, DType::float32, cpu)), Error);
  EXPECT_THROW(conv2d(logits, logits, nullptr), Error);
  EXPECT_THROW(where(logits, logits, logits), Error);
  EXPECT_THROW(argmax(zeros({2, 0}, DType::float32, cpu), 1), Error);
  EXPECT_THROW(split(logits, 0, 0), Error);
}

TEST_F(NetworkOps, MaximumPrefersNaN) {
  const Tensor zero = zeros({1, 3}, DType::float32, cpu);
  const Tensor values = cat({ones({1, 2}, DType::float32, cpu), div(zero, zero)}, 1);
  EXPECT_THAT(to_doubles(argmax(values, 1)), testing::ElementsAre(2.0));
  EXPECT_TRUE(to_doubles(max(values, 1))[0] != to_doubles(max(values, 1))[0]);
}

TEST_F(NetworkOps, SplitTreatsMissingGradientsAsZeros) {
  const Tensor x = ones({4, 2}, DType::float32, cpu);
  set_requires_grad(x, true);
  const std::vector<Tensor> halves = split(x, 2, 0);
  backward({sum(mul(halves[1], 3.0))});
  EXPECT_THAT(to_doubles(grad(x)), testing::ElementsAre(0, 0, 0, 0, 3, 3, 3, 3));
}

}  // namespace
}  // namespace lockstep::ops
