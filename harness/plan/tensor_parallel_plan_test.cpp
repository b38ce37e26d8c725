// Every row of the table of styles, as counts in forward and backward from the documents, and bytes by hand. A row that
// is read wrongly changes a count here.
#include "harness/plan/tensor_parallel_plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/core/error.hpp"
#include "engine/core/text.hpp"

namespace lockstep::plan {
namespace {

using layout::Placement;
using layout::replicate;
using layout::shard;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr ModuleId module = 7;
const layout::MeshShape two({2}, {"tp"});

class TensorParallel : public ::testing::Test {
 protected:
  std::vector<Collective> issued;
  TensorParallelPlan plan{0, [this](Collective one) { issued.push_back(std::move(one)); }};

  void apply(StyleKind kind, ModuleKind of, std::optional<Placement> input = {}, std::optional<Placement> output = {}) {
    plan.add(module, {"net.fc", {kind, input, output}, of, two, of == ModuleKind::linear ? 6 : 0});
  }
  // "all_reduce 80": operation and bytes.
  std::vector<std::string> taken() {
    std::vector<std::string> texts;
    for (const Collective& one : std::exchange(issued, {})) {
      EXPECT_EQ(one.family, "tensor_parallel");
      EXPECT_EQ(one.axis, "tp");
      EXPECT_EQ(one.group_size, 2);
      EXPECT_EQ(one.owner, "net.fc");
      texts.push_back(str(one.operation, " ", one.bytes));
    }
    return texts;
  }
  std::vector<std::string> forward_of(const Value& input, const Dims& output) {
    plan.forward(plan.input(module, input));
    plan.forward(plan.output(module, output, DType::float32));
    return taken();
  }
  std::vector<std::string> backward_of(const Value& input, const Dims& output, bool input_needs_gradient = true) {
    plan.backward(plan.output(module, output, DType::float32));
    if (input_needs_gradient) plan.backward(plan.input(module, input));
    return taken();
  }
  static Value plain(const Dims& sizes) { return {sizes, DType::float32, {}}; }
  static Value sharded(const Placement& placement, const Dims& sizes, OpenGradientPtr open = {}) {
    return {sizes, DType::float32, layout::ShardedLayout{two, {placement}, sizes}, std::move(open)};
  }
};

// Linear(6, 8) on 4 rows: an input of 24 elements, an output of 32.
TEST_F(TensorParallel, ColwiseReducesTheGradientOfItsInput) {
  apply(StyleKind::colwise, ModuleKind::linear);
  EXPECT_THAT(forward_of(plain({4, 6}), {4, 8}), IsEmpty());
  EXPECT_THAT(backward_of(plain({4, 6}), {4, 8}), ElementsAre("all_reduce 96"));
  EXPECT_THAT(backward_of(plain({4, 6}), {4, 8}, false), IsEmpty());
}

TEST_F(TensorParallel, ColwiseGathersAShardedInputAndScattersItsGradient) {
  apply(StyleKind::colwise, ModuleKind::linear, shard(0));
  EXPECT_THAT(forward_of(plain({2, 6}), {4, 8}), ElementsAre("all_gather 96"));
  EXPECT_THAT(backward_of(plain({2, 6}), {4, 8}), ElementsAre("reduce_scatter 96"));
}

TEST_F(TensorParallel, ColwiseGathersItsOutputIfAsked) {
  apply(StyleKind::colwise, ModuleKind::linear, {}, replicate());
  EXPECT_THAT(forward_of(plain({4, 6}), {4, 8}), ElementsAre("all_gather 128"));
  EXPECT_THAT(backward_of(plain({4, 6}), {4, 8}), ElementsAre("all_reduce 96"));
}

TEST_F(TensorParallel, RowwiseReducesItsOutput) {
  apply(StyleKind::rowwise, ModuleKind::linear);
  EXPECT_THAT(forward_of(plain({4, 3}), {4, 8}), ElementsAre("all_reduce 128"));
  EXPECT_THAT(backward_of(plain({4, 3}), {4, 8}), IsEmpty());
}

TEST_F(TensorParallel, RowwiseSlicesAReplicatedInputAndGathersItsGradient) {
  apply(StyleKind::rowwise, ModuleKind::linear, replicate());
  EXPECT_THAT(forward_of(plain({4, 6}), {4, 8}), ElementsAre("all_reduce 128"));
  EXPECT_THAT(backward_of(plain({4, 6}), {4, 8}), ElementsAre("all_gather 96"));
}

// 5 rows over 2 ranks: padded to 6.
TEST_F(TensorParallel, RowwiseScattersItsOutputIfAsked) {
  apply(StyleKind::rowwise, ModuleKind::linear, {}, shard(0));
  EXPECT_THAT(forward_of(plain({5, 3}), {5, 8}), ElementsAre("reduce_scatter 192"));
  EXPECT_THAT(backward_of(plain({5, 3}), {5, 8}), ElementsAre("all_gather 192"));
}

TEST_F(TensorParallel, EmbeddingsReduceOrKeepTheirOutput) {
  apply(StyleKind::rowwise, ModuleKind::embedding, replicate());
  EXPECT_THAT(forward_of(plain({4, 3}), {4, 3, 8}), ElementsAre("all_reduce 384"));
  EXPECT_THAT(backward_of(plain({4, 3}), {4, 3, 8}, false), IsEmpty());
  apply(StyleKind::rowwise, ModuleKind::embedding, replicate(), shard(1));
  EXPECT_THAT(forward_of(plain({4, 4}), {4, 4, 8}), ElementsAre("reduce_scatter 512"));
  EXPECT_THAT(backward_of(plain({4, 4}), {4, 4, 8}, false), ElementsAre("all_gather 512"));
  apply(StyleKind::colwise, ModuleKind::embedding);
  EXPECT_THAT(forward_of(plain({4, 3}), {4, 3, 8}), IsEmpty());
  EXPECT_THAT(backward_of(plain({4, 3}), {4, 3, 8}, false), IsEmpty());
}

TEST_F(TensorParallel, SequenceParallelMovesNothingForItsShardAndReducesItsWeights) {
  apply(StyleKind::sequence_parallel, ModuleKind::other);
  EXPECT_THAT(forward_of(plain({4, 2, 6}), {4, 4, 6}), IsEmpty());
  EXPECT_THAT(backward_of(plain({4, 2, 6}), {4, 4, 6}), IsEmpty());
  EXPECT_THAT(forward_of(sharded(shard(0), {4, 4, 6}), {4, 4, 6}), ElementsAre("all_to_all 192"));
  EXPECT_THAT(backward_of(sharded(shard(0), {4, 4, 6}), {4, 4, 6}), ElementsAre("all_to_all 192"));
  EXPECT_TRUE(parameter_reading({StyleKind::sequence_parallel}, ModuleKind::other, "weight")->gradient_is_partial);
  plan.reduce_gradient("net.fc", two, {6}, DType::float32);
  EXPECT_THAT(taken(), ElementsAre("all_reduce 24"));
}

// prepare_input gathers for three uses, whose partial gradients are scattered together.
TEST_F(TensorParallel, ReducesTheGradientsOfSeveralUsesOnce) {
  constexpr ModuleId attention = 8;
  plan.add(attention, {"net.fc", {StyleKind::prepare_input}, ModuleKind::other, two});
  apply(StyleKind::colwise, ModuleKind::linear);
  Change gathered = plan.prepared(attention, plain({4, 2, 6}), shard(1), replicate());
  plan.forward(gathered);
  EXPECT_THAT(taken(), ElementsAre("all_gather 384"));
  gathered.result = std::make_shared<OpenGradient>();
  for (int use = 0; use < 3; ++use)
    EXPECT_THAT(backward_of(sharded(replicate(), {4, 4, 6}, gathered.result), {4, 4, 8}), IsEmpty());
  plan.backward(gathered);
  EXPECT_THAT(taken(), ElementsAre("reduce_scatter 384"));
  plan.backward(gathered);  // a backward without a partial gradient: each rank keeps its shard
  EXPECT_THAT(taken(), IsEmpty());
}

TEST_F(TensorParallel, KeepsThePlacementOfAnInputWithoutAWantedOne) {
  plan.add(module, {"net.fc", {StyleKind::prepare_input}, ModuleKind::other, two});
  EXPECT_EQ(plan.prepared(module, plain({4, 6}), shard(0), {}).result_layout().sizes, Dims({8, 6}));
  const Change kept = plan.prepared(module, sharded(shard(1), {4, 6}), shard(0), {});
  EXPECT_THAT(kept.to, ElementsAre(shard(1)));
  plan.forward(kept);
  EXPECT_THAT(taken(), IsEmpty());
}

// The output of an operation between two modules.
TEST_F(TensorParallel, ReducesAPartialGradientBeforeTheOperationThatMadeTheValue) {
  apply(StyleKind::colwise, ModuleKind::linear);
  const Value value = sharded(replicate(), {4, 6}, std::make_shared<OpenGradient>());
  EXPECT_THAT(backward_of(value, {4, 8}), IsEmpty());
  EXPECT_THAT(backward_of(value, {4, 8}), IsEmpty());
  plan.backward(value);
  EXPECT_THAT(taken(), ElementsAre("all_reduce 96"));
  plan.backward(value);
  EXPECT_THAT(taken(), IsEmpty());
}

TEST_F(TensorParallel, StatesPlacementsOfParameters) {
  const auto placement = [](StyleKind kind, ModuleKind of, const char* name) {
    return parameter_reading({kind}, of, name)->placement;
  };
  EXPECT_EQ(placement(StyleKind::colwise, ModuleKind::linear, "weight"), shard(0));
  EXPECT_EQ(placement(StyleKind::colwise, ModuleKind::linear, "bias"), shard(0));
  EXPECT_EQ(placement(StyleKind::colwise, ModuleKind::embedding, "weight"), shard(1));
  EXPECT_EQ(placement(StyleKind::rowwise, ModuleKind::linear, "weight"), shard(1));
  EXPECT_EQ(placement(StyleKind::rowwise, ModuleKind::linear, "bias"), replicate());
  EXPECT_EQ(placement(StyleKind::rowwise, ModuleKind::embedding, "weight"), shard(0));
  EXPECT_FALSE(parameter_reading({StyleKind::prepare_input}, ModuleKind::other, "weight"));
  EXPECT_THROW(input_reading({StyleKind::colwise}, ModuleKind::other), Error);
}

}  // namespace
}  // namespace lockstep::plan
