// The plan of tensor parallelism agrees with runs: alone, below fully_shard and replicate, with checkpoints, clipping
// and loss scaling. Defects of the engine show as differences, and collectives that are not planned are named.
#include <map>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/run/test_support.hpp"
#include "harness/run/trace/plan_case.hpp"

namespace lockstep::run {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing_support::ArmedDefect;
using testing_support::failures_starting_with;
using testing_support::Ran;
using testing_support::ranks;
using testing_support::run_steps;

std::vector<std::string> plan_failures(const Ran& ran) { return failures_starting_with(ran, "plan"); }

// "backward tensor_parallel/all_reduce tp": the number of planned collectives.
std::map<std::string, std::int64_t> planned(const Ran& ran, const std::string& family = "tensor_parallel") {
  std::map<std::string, std::int64_t> counts;
  for (const verdict::PlanRow& row : ran.outcomes.at(0).plan)
    if (row.family == family) counts[str(row.phase, " ", row.operation, " ", row.axis)] += row.planned;
  return counts;
}
using Counts = std::map<std::string, std::int64_t>;

const std::string stack = R"yaml(
  - seed: 1
  - mesh: {shape: [world_size // 2, 2], names: [dp, tp]}
    as: world
  - model: MLPStack(5)
    as: test
  - tensor_parallel:
      model: test
      mesh: world.tp
      plan:
        "[012].in_proj": colwise(keep_sharded=true)
        "[01].out_proj": rowwise(keep_sharded=true)
        2.out_proj: rowwise()
)yaml";
const std::string trained = R"yaml(
  - optimizer: {type: Adam, model: test, lr: 0.1}
    as: adam
  - repeat: 2
    steps:
      - forward: {loss: "sum(test(randn(4, 5)))"}
      - backward: loss
      - step: adam
      - zero_grad: adam
  - expect: all([p.sharded for p in parameters(test)])
)yaml";

TEST(PlanTensorParallel, ColumnsAndRowsFollowThePlan) {
  const Ran ran = run_steps(stack + trained, ranks(2));
  EXPECT_THAT(ran.failures(), IsEmpty());
  EXPECT_EQ(planned(ran), (Counts{{"forward all_reduce tp", 2 * 3}, {"backward all_reduce tp", 2 * 2}}));
  EXPECT_EQ(planned(ran, "start_up"), (Counts{{"other all_gather tp", 1}, {"other broadcast tp", 2}}));
}

// The document's counts of an iteration: 3 and 3 in forward, 2, 3 and 3 in backward.
TEST(PlanTensorParallel, GroupsOfDistributedParametersFollowThePlan) {
  const std::string groups = "  - fully_shard: {modules: [\"test.[012]\", test], mesh: world.dp}\n";
  for (const int world_size : {2, 4}) {
    const Ran ran = run_steps(stack + groups + trained, ranks(world_size));
    EXPECT_THAT(ran.failures(), IsEmpty());
    EXPECT_EQ(planned(ran), (Counts{{"forward all_reduce tp", 2 * 3}, {"backward all_reduce tp", 2 * 2}}));
    EXPECT_EQ(planned(ran, "data_parallel"), (Counts{{"forward all_gather dp", 2 * 3},
                                                     {"backward all_gather dp", 2 * 3},
                                                     {"backward reduce_scatter dp", 2 * 3}}));
  }
}

TEST(PlanTensorParallel, CheckpointsReplicasAndStepsFollowThePlan) {
  const std::string checkpoint = "  - activation_checkpoint: \"test.[012]\"\n";
  const std::string groups = "  - fully_shard: {modules: [\"test.[012]\", test], mesh: world.dp}\n";
  EXPECT_THAT(run_steps(stack + checkpoint + groups + trained, ranks(4)).failures(), IsEmpty());
  EXPECT_THAT(run_steps(stack + checkpoint + trained, ranks(2)).failures(), IsEmpty());
  EXPECT_THAT(run_steps(stack + "  - replicate: {modules: test, mesh: world.dp}\n" + trained, ranks(4)).failures(),
              IsEmpty());
  const Ran ran = run_steps(stack + groups + R"yaml(
  - optimizer: {type: SGD, model: test, lr: 0.1}
    as: sgd
  - grad_scaler: {init_scale: 4}
    as: scaler
  - repeat: 2
    steps:
      - forward: {loss: "sum(test(randn(4, 5)))"}
      - backward: loss
      - unscale: {scaler: scaler, optimizer: sgd}
      - clip_grad_norm: {model: test, max_norm: 1}
      - step: {optimizer: sgd, scaler: scaler}
      - update_scale: scaler
  - let: {whole: "[full_tensor(p) for p in parameters(test)]"}
  - state_dict: {of: test, full: true}
    as: state
  - expect: len(whole) == len(state)
)yaml",
                            ranks(4));
  EXPECT_THAT(ran.failures(), IsEmpty());
  const Counts counts = planned(ran);
  EXPECT_EQ(counts.at("optimizer all_reduce "), 2);  // a flag over both axes
  EXPECT_EQ(counts.at("other all_reduce dp"), 2);    // the norm
  EXPECT_EQ(counts.at("other all_reduce tp"), 2);
  EXPECT_EQ(counts.at("other all_gather dp"), 2 * 12);
  EXPECT_EQ(counts.at("other all_gather tp"), 2 * 9);  // three biases are replicated over tp
}

const std::string sequence = R"yaml(
  - seed: 1
  - mesh: {shape: [world_size // 2, 2], names: [dp, tp]}
    as: world
  - model: Transformer(dropout_p=0, weight_tying=false)
    as: test
  - tensor_parallel:
      model: test
      mesh: world.tp
      plan:
        tok_embeddings: rowwise(input=replicate(), output=shard(1))
        pos_embeddings: rowwise(input=replicate(), output=shard(0))
        norm: sequence_parallel()
        layers.*.attention_norm: sequence_parallel()
        layers.*.attention: prepare_input(given=shard(1), wanted=replicate())
        "layers.*.attention.w[qkv]": colwise()
        layers.*.attention.wo: rowwise(output=shard(1))
        layers.*.ffn_norm: sequence_parallel()
        layers.*.feed_forward.w1: colwise(input=shard(1))
        layers.*.feed_forward.w2: rowwise(output=shard(1))
        output: colwise(input=shard(1), output=replicate())
)yaml";
const std::string one_iteration = R"yaml(
  - forward: {loss: "sum(test(randint(0, 8, [3, 16])))"}
  - backward: loss
  - expect: all([p.grad != none for p in parameters(test)])
)yaml";
const Counts sequence_counts = {{"forward reduce_scatter tp", 6},
                                {"forward all_gather tp", 6},
                                {"backward reduce_scatter tp", 5},
                                {"backward all_gather tp", 6},
                                {"backward all_reduce tp", 10}};

TEST(PlanTensorParallel, SequencesBetweenLayersFollowThePlan) {
  const Ran alone = run_steps(sequence + one_iteration, ranks(2));
  EXPECT_THAT(alone.failures(), IsEmpty());
  EXPECT_EQ(planned(alone), sequence_counts);
  const Ran sharded = run_steps(
      sequence + "  - fully_shard: {modules: [test.layers.*, test], mesh: world.dp}\n" + one_iteration, ranks(4));
  EXPECT_THAT(sharded.failures(), IsEmpty());
  EXPECT_EQ(planned(sharded), sequence_counts);
}

// One gather of a shard, or one reduction of a partial result, for each function of the sharded output y (2, 5, 15).
TEST(PlanTensorParallel, FunctionsOfOutputsFollowThePlan) {
  const std::vector<std::string> gathered = {
      "tanh(y)",
      "sigmoid(y)",
      "contiguous(y)",
      "gt(y, 0)",
      "eq(y, y)",
      "where(lt(y, 0), y, 1)",
      "to(y, int64)",
      "amax(detach(y), 0)",
      "amin(detach(y), 1, keepdim=true)",
      "argmax(y, 1)",
      "softmax(y, 0)",
      "log_softmax(y, 1)",
      "sum(y, [0, 1])",
      "mean(y, 1, keepdim=true)",
      "narrow(y, 1, 1, 2)",
      "select(y, 1, 2)",
      "y[1]",
      "y[:1]",
      "split(y, 2, 1)[2]",
      "chunk(y, 2, 1)[0]",
      "stack([y, y], 1)",
      "cat([y, y], 1)",
      "unsqueeze(y, 1)",
      "squeeze(unsqueeze(y, 0), 0)",
      "expand(y, 3, -1, -1, -1)",
      "permute(y, [2, 0, 1])",
      "transpose(y, 2, 0)",
      "view(y, 10, 15)",
      "index_select(y, 1, at)",
      "y[at]",
      "cat([y, other], 1)",
      "stack([other, y])",
      "where(gt(other, 0), y, other)",
      "eq(other, y)",
      "embedding(at, select(y, 0, 1))",
      "attention(permute(y, [2, 0, 1]), permute(y, [2, 0, 1]), permute(y, [2, 0, 1]))"};
  const std::vector<std::string> reduced = {"sum(y, [2, 0])", "amax(detach(y), 2)", "amin(detach(y), 2, keepdim=true)"};
  std::string text = stack + R"yaml(
  - let:
      at: "distribute(tensor([1, 0, 1]), world.tp, [replicate()])"
      other: "distribute(randn(2, 5, 15), world.tp, [shard(2)])"
  - forward: {y: "test.0.in_proj(randn(2, 5, 5))"}
)yaml";
  for (const auto* list : {&gathered, &reduced})
    for (const std::string& of : *list) text += str("  - forward: {z: \"", of, "\", whole: full_tensor(z)}\n");
  const Ran ran = run_steps(text + "  - expect: y.placements == [shard(2)]\n", ranks(2));
  EXPECT_THAT(ran.failures(), IsEmpty());
  EXPECT_THAT(ran.result.plan_verdict.value().left_out, IsEmpty());
  const auto count = [](const std::vector<std::string>& list) { return static_cast<std::int64_t>(list.size()); };
  EXPECT_EQ(planned(ran), (Counts{{"other all_gather tp", count(gathered)}, {"other all_reduce tp", count(reduced)}}));
}

// ---- defects ----
TEST(PlanTensorParallel, ReportsDefectsThatChangeCollectives) {
  for (const Defect defect : {Defect::tensor_gradient_not_reduced, Defect::tensor_gradient_reduced_per_use,
                              Defect::tensor_output_left_partial, Defect::sharded_gathers_twice}) {
    const ArmedDefect armed(defect);
    EXPECT_THAT(plan_failures(run_steps(sequence + one_iteration, ranks(2))), Contains(HasSubstr("tensor_parallel/")))
        << static_cast<int>(defect);
  }
}

// ---- collectives that are not planned ----
TEST(PlanTensorParallel, NamesCollectivesThatAreNotPlanned) {
  const Ran ran = run_steps(stack + R"yaml(
  - forward: {y: "test.0.in_proj(randn(15, 5))"}
  - forward: {loss: "sum(full_tensor(transpose(y, 0, 1)))"}
  - backward: loss
  - all_reduce: {tensor: "ones(2)", op: sum, mesh: world.tp}
  - let: {whole: "full_tensor(y)"}
  - expect: y.sharded
)yaml",
                            ranks(2));
  EXPECT_THAT(plan_failures(ran), IsEmpty());
  const verdict::PlanVerdict verdict = ran.result.plan_verdict.value();
  EXPECT_TRUE(verdict.is_judged);
  EXPECT_THAT(verdict.left_out, ElementsAre(HasSubstr("user: 1 collective that a step asks for"),
                                            HasSubstr("`transpose` of (15, 15) as (Shard(1))")));
}

TEST(PlanTensorParallel, NamesEverythingOfACaseWithoutAPlan) {
  const Ran ran = run_steps(R"yaml(
  - let: {x: "full_tensor(distribute(ones(4), all_ranks, [shard(0)]))"}
  - expect: x.numel == 4
)yaml",
                            ranks(2));
  const verdict::PlanVerdict verdict = ran.result.plan_verdict.value();
  EXPECT_EQ(verdict.kind(), "nothing to plan");
  EXPECT_THAT(verdict.left_out, ElementsAre(HasSubstr("1 other collective: ")));
}

// Parameters that the steps distribute. By columns and then by rows: full_tensor, outside of modules, reduces the
// result, and backward the gradient of the input, once for its two uses.
constexpr const char* distributed = R"yaml(
  - seed: 1
  - model: Sequential(Linear(3, 4), GELU(), Linear(4, 5))
    as: net
  - set_parameter: {parameter: net.0.weight, to: "distribute(detach(net.0.weight), all_ranks, [shard(0)])"}
  - set_parameter: {parameter: net.0.bias, to: "distribute(detach(net.0.bias), all_ranks, [shard(0)])"}
  - set_parameter: {parameter: net.2.weight, to: "distribute(detach(net.2.weight), all_ranks, [shard(1)])"}
  - set_parameter: {parameter: net.2.bias, to: "distribute(detach(net.2.bias), all_ranks, [replicate()])"}
  - model: Linear(2, 2)
    as: other
  - replicate: other
  - let: {x: "requires_grad(distribute(randn(2, 3), all_ranks, [replicate()]))"}
  - forward: {loss: "sum(full_tensor(net(x)))"}
  - forward: {loss: "loss + sum(full_tensor(net(x)))"}
  - backward: loss
  - expect: x.grad.placements == [replicate()]
)yaml";

TEST(PlanTensorParallel, LinearOnDistributedParametersFollowsThePlan) {
  const Ran ran = run_steps(distributed, ranks(2));
  EXPECT_THAT(ran.failures(), IsEmpty());
  EXPECT_EQ(planned(ran), (Counts{{"other all_reduce dp", 2}, {"backward all_reduce dp", 1}}));
}

// Each rank has the summand of its rows in the gradient of w.
TEST(PlanTensorParallel, RepeatedOperandsFollowThePlan) {
  for (const char* repeated : {"x + w", "w * x", "x / (w * w + 1)", "where(gt(x, 0), x, w)"}) {
    const Ran ran = run_steps(str(R"yaml(
  - model: Linear(2, 2)
    as: other
  - replicate: other
  - seed: 1
  - let:
      x: requires_grad(distribute(randn(4, 6), all_ranks, [shard(0)]))
      w: requires_grad(distribute(randn(6), all_ranks, [replicate()]))
  - forward: {y: ")yaml",
                                  repeated, R"yaml(", loss: sum(full_tensor(y * y))}
  - backward: loss
  - expect: w.grad.placements == [replicate()]
)yaml"),
                              ranks(2));
    EXPECT_THAT(ran.failures(), IsEmpty()) << repeated;
    EXPECT_EQ(planned(ran), (Counts{{"other all_gather dp", 1}, {"backward all_reduce dp", 1}})) << repeated;
  }
}

}  // namespace
}  // namespace lockstep::run
