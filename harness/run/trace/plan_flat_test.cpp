// The plan of flat_shard agrees with runs: counts, bytes and order of every strategy, with accumulation, prefetch,
// evaluation, tensor parallelism, replicate and activation checkpoints. The tensors of the dry run are those of a run.
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/run/test_support.hpp"
#include "harness/run/trace/plan_case.hpp"

namespace lockstep::run {
namespace {

using testing_support::ArmedDefect;
using testing_support::failures_starting_with;
using testing_support::Ran;
using testing_support::run_steps;
using testing_support::TextOptions;

// "forward all_gather dp": the number of planned collectives and their bytes.
using Counts = std::map<std::string, std::pair<std::int64_t, std::int64_t>>;
Counts planned(const Ran& ran) {
  Counts counts;
  for (const verdict::PlanRow& row : ran.outcomes.at(0).plan) {
    auto& [count, bytes] = counts[str(row.phase, " ", row.operation, " ", row.axis)];
    count += row.planned;
    bytes += row.planned_bytes;
  }
  return counts;
}

Ran run_on(int world_size, const std::string& steps, const std::string& matrix = "", std::size_t index = 0,
           const std::string& device = "cpu") {
  TextOptions options;
  options.world_size = world_size;
  options.index = index;
  options.device = device;
  if (!matrix.empty()) options.head = str("matrix: ", matrix, "\n");
  return run_steps(steps, options);
}

// Two units of 21 and 27 elements (Linear(3, 5): 15 + 1 + 5; Linear(5, 4): 20 + 4, both in steps of 4) and an empty
// root, three microbatches of which the last synchronizes.
constexpr const char* accumulation = R"yaml(
  - seed: 1
  - model: Sequential(Linear(3, 5), Linear(5, 4))
    as: net
  - flat_shard: {modules: net, strategy: "${strategy}", unit_types: [Linear], use_orig_params: original}
  - optimizer: {type: Adam, model: net, lr: 1e-2}
    as: adam
  - repeat: {times: 3, index: i}
    steps:
      - set_flags: {modules: net, requires_gradient_sync: i == 2}
      - forward: {loss: "sum(net(randn(2, 3)))"}
      - backward: loss
  - step: adam
  - expect: any([p.grad != none for p in parameters(net)])
)yaml";

TEST(FlatPlanRun, AgreesOnEveryStrategyWithAccumulation) {
  const std::string matrix = "{strategy: [full_shard, shard_grad_op, no_shard], original: [true, false]}";
  for (std::size_t index = 0; index < 6; ++index)
    for (const char* device : {"cpu", "sim"}) {
      const Ran ran = run_on(2, accumulation, matrix, index, device);
      EXPECT_PASS(ran) << index << " " << device;
      EXPECT_GT(ran.evidence().planned_in_order, 0);
      const bool original = index % 2 == 0;
      const std::int64_t bytes = original ? (22 + 24) * 4 : (20 + 24) * 4;
      Counts expected;
      if (index < 2) {
        expected["forward all_gather dp"] = {6, 3 * bytes};
        expected["backward all_gather dp"] = {6, 3 * bytes};
      } else if (index < 4) {
        expected["forward all_gather dp"] = {2, bytes};
      }
      if (index < 4)
        expected["backward reduce_scatter dp"] = {2, bytes};
      else
        expected["backward all_reduce dp"] = {2, original ? (21 + 24) * 4 : bytes};
      EXPECT_EQ(planned(ran), expected) << index;
    }
}

TEST(FlatPlanRun, AgreesOnHybridMeshes) {
  const std::string matrix = "{strategy: [hybrid_shard, hybrid_shard_grad_op], shape: [[2, 2], [4, 1]]}";
  for (std::size_t index = 0; index < 4; ++index) {
    const Ran ran = run_on(4, R"yaml(
  - seed: rank
  - mesh: {shape: shape, names: [replicate, shard]}
    as: world
  - model: Linear(3, 5)
    as: net
  - flat_shard:
      modules: net
      mesh: world
      strategy: "${strategy}"
      sync_module_states: true
      mixed_precision: {param: bfloat16, reduce: float32}
  - forward: {loss: "sum(net(randn(2, 3)))"}
  - backward: loss
  - expect: any([p.grad != none for p in parameters(net)])
)yaml",
                           matrix, index);
    EXPECT_PASS(ran) << index;
    // Steps of 8 elements: 15, 1 of padding, 5 and 1 of padding for two ranks.
    Counts expected = {{"other broadcast replicate", {1, 20 * 4}}};
    if (index % 2 == 0) {
      expected["other broadcast shard"] = {1, 20 * 4};
      expected["forward all_gather shard"] = {1, 22 * 2};
      expected["backward reduce_scatter shard"] = {1, 22 * 4};
      expected["backward all_reduce replicate"] = {1, 11 * 4};
    } else {
      expected["backward all_reduce replicate"] = {1, 21 * 4};
    }
    EXPECT_EQ(planned(ran), expected) << index;
  }
}

TEST(FlatPlanRun, AgreesBelowAndAboveOtherApis) {
  // u1 is replicated; u2 is checkpointed around its unit.
  const Ran ran = run_on(2, R"yaml(
  - seed: 1
  - model: CompositeParamModel()
    as: net
  - activation_checkpoint: {modules: net.u2, form: wrapper}
  - replicate: net.u1
  - flat_shard: {modules: net, unit_types: [UnitModule]}
  - repeat: 2
    steps:
      - forward: {loss: "sum(net(randn(2, 100)))"}
      - backward: loss
  - expect: any([p.grad != none for p in parameters(net)])
)yaml");
  EXPECT_PASS(ran);
  const Counts counts = planned(ran);
  EXPECT_EQ(counts.at("forward all_gather dp").first, 2 + 2 + 1);  // u2, the root, and the start-up of replicate
  EXPECT_EQ(counts.at("backward all_gather dp").first, 2);         // u2, also for its recomputation
  EXPECT_EQ(counts.at("backward reduce_scatter dp").first, 4);
}

TEST(FlatPlanRun, AgreesWithTensorParallelismBelow) {
  const Ran ran = run_on(4, R"yaml(
  - mesh: {shape: [world_size // 2, 2], names: [dp, tp]}
    as: world
  - model: MLPModule()
    as: net
  - tensor_parallel: {model: net, mesh: world.tp, plan: {net1: colwise(), net2: rowwise()}}
  - flat_shard: {modules: net, mesh: world.dp, sync_module_states: true}
  - seed: 3
  - forward: {loss: "sum(net(randn(2, 10)))"}
  - backward: loss
  - expect: any([p.grad != none for p in parameters(net)])
)yaml");
  EXPECT_PASS(ran);
  // The local shards: net1 (8, 10) and (8), net2 (10, 8) and (10); no padding between them, none at the end.
  const std::int64_t bytes = (80 + 8 + 80 + 10) * 4;
  const Counts counts = planned(ran);
  EXPECT_EQ(counts.at("forward all_gather dp"), std::make_pair(std::int64_t{1}, bytes));
  EXPECT_EQ(counts.at("backward reduce_scatter dp"), std::make_pair(std::int64_t{1}, bytes));
  EXPECT_EQ(counts.at("other broadcast dp"), std::make_pair(std::int64_t{1}, bytes));
}

// Conditions that hold in the run: where one does not hold in the dry run, the plan lacks an all-gather. Weight (2, 3)
// and bias (2) in steps of 8 elements: 10, on two ranks chunks of 5; packed 8 and 4.
TEST(FlatPlanRun, TensorsOfTheDryRunAreThoseOfTheRun) {
  const auto run_with = [](const std::string& options, const std::string& sizes, const std::string& gradients) {
    return run_on(2, str(R"yaml(
  - seed: 1
  - model: Linear(3, 2)
    as: net
  - flat_shard: {modules: net, mixed_precision: {param: bfloat16, reduce: float32}, )yaml",
                         options, R"yaml(}
  - forward: {y: "net(randn(2, 3))", loss: sum(y)}
  - backward: loss
  - let: {as_expected: 0}
  - let: {as_expected: as_expected + 1}
    when: "[p.shape for p in parameters(net)] == )yaml",
                         sizes, R"yaml([rank]"
  - let: {as_expected: as_expected + 1}
    when: "[none if p.grad == none else p.grad.shape for p in parameters(net)] == )yaml",
                         gradients, R"yaml([rank]"
  - let: {as_expected: as_expected + 1}
    when: y.dtype == bfloat16 and all([p.dtype == float32 for p in parameters(net)])
  - let: {as_expected: as_expected + 1}
    when: all([p.grad == none or p.grad.dtype == float32 for p in parameters(net)])
  - expect: as_expected == 4
  - repeat: {times: as_expected}
    steps:
      - forward: {loss: "sum(net(randn(2, 3)))"}
      - backward: loss
)yaml"));
  };
  EXPECT_PASS(run_with("strategy: full_shard", "[[[5], [0]], [[1], [2]]]", "[[[5], none], [[1], [2]]]"));
  EXPECT_PASS(run_with("use_orig_params: false", "[[[4]], [[4]]]", "[[[4]], [[4]]]"));
  EXPECT_PASS(run_with("strategy: no_shard", "[[[2, 3], [2]], [[2, 3], [2]]]", "[[[2, 3], [2]], [[2, 3], [2]]]"));
  EXPECT_PASS(run_with("strategy: no_shard, use_orig_params: false", "[[[8]], [[8]]]", "[[[8]], [[8]]]"));
}

TEST(FlatPlanRun, SummonedParametersAreGatheredPerUnit) {
  const std::string matrix = "{original: [true, false]}";
  for (std::size_t index = 0; index < 2; ++index) {
    const Ran ran = run_on(2, R"yaml(
  - seed: 1
  - model: Sequential(Linear(3, 5), Linear(5, 4))
    as: net
  - flat_shard: {modules: net, unit_types: [Linear], use_orig_params: original}
  - forward: {loss: "sum(net(randn(2, 3)))"}
  - backward: loss
  - summon_full_parameters: {model: net, gradients: true}
    steps:
      - expect: len(parameters(net)) == 4
      - for_each: {name: p, in: parameters(net)}
        steps:
          - expect: p.grad.shape == p.shape
  - expect: any([p.grad != none for p in parameters(net)])
)yaml",
                           matrix, index);
    EXPECT_PASS(ran);
    const Counts counts = planned(ran);
    const std::int64_t bytes = index == 0 ? (22 + 24) * 4 : (20 + 24) * 4;
    EXPECT_EQ(counts.at("other all_gather dp"), std::make_pair(std::int64_t{4}, 2 * bytes));
    EXPECT_EQ(counts.at("other all_reduce dp"), std::make_pair(std::int64_t{2}, std::int64_t{index == 0 ? 16 : 8}));
  }
}

// The plans of all ranks, without a run.
std::vector<PlanOutcome> plans_of(const std::string& steps, int world_size) {
  scenario::Library library(LOCKSTEP_SOURCE_DIR "/scenarios");
  const std::string text =
      str("steps:\n", steps, "\nscenario: test/text\nsummary: A test.\nranks: {world_size: [", world_size, "]}\n");
  const auto scenario = library.load_text(text, "text.yaml");
  const std::vector<scenario::Case> cases = scenario::expand(scenario, {});
  CaseSpec spec;
  spec.scenario = scenario.get();
  spec.library = &library;
  spec.test_case = &cases.at(0);
  std::vector<PlanOutcome> plans;
  plans.reserve(static_cast<std::size_t>(world_size));
  for (int rank = 0; rank < world_size; ++rank) plans.push_back(plan_case(spec, rank, world_size, 0));
  return plans;
}

// The optimizer changes the chunks of some ranks only: ranks 0 and 1 hold frozen elements of net.0, and rank 3 holds
// padding of net.1. All ranks gather them anew.
TEST(FlatPlanRun, AllRanksPlanTheSameAfterAnEvaluation) {
  const std::vector<PlanOutcome> plans = plans_of(R"yaml(
  - model: Sequential(Linear(4, 5), RMSNorm(5))
    as: net
  - set_requires_grad: {parameters: net.0.weight, to: false}
  - flat_shard: {modules: net, strategy: shard_grad_op, unit_types: [Linear, RMSNorm]}
  - optimizer: {type: SGD, model: net, lr: 1e-2}
    as: sgd
  - forward: {loss: "sum(net(randn(2, 4)))"}
  - backward: loss
  - let: {before: "net(randn(2, 4))"}
  - step: sgd
  - let: {after: "net(randn(2, 4))"}
)yaml",
                                                  4);
  for (const PlanOutcome& plan : plans) {
    EXPECT_EQ(plan.unforeseen, "");
    std::map<int, int> gathers;  // per line
    for (const plan::Collective& one : plan.planned) gathers[one.line] += one.operation == "all_gather" ? 1 : 0;
    EXPECT_EQ(gathers, (std::map<int, int>{{9, 2}, {10, 0}, {11, 2}, {13, 2}}));
  }
}

// Rank 3 holds no element of the flat parameter, and so no gradient.
TEST(FlatPlanRun, ARankWithoutElementsUnscalesBesideTheOthers) {
  const std::vector<PlanOutcome> plans = plans_of(R"yaml(
  - model: "Linear(3, 2, bias=false)"
    as: net
  - flat_shard: net
  - optimizer: {type: SGD, model: net, lr: 1e-2}
    as: sgd
  - grad_scaler: {init_scale: 2}
    as: scaler
  - forward: {loss: "sum(net(randn(2, 3))) * scaler.scale"}
  - backward: loss
  - unscale: {optimizer: sgd, scaler: scaler}
  - step: {optimizer: sgd, scaler: scaler}
  - update_scale: scaler
)yaml",
                                                  4);
  for (const PlanOutcome& plan : plans) {
    EXPECT_EQ(plan.unforeseen, "");
    std::map<int, int> flags;  // per line
    for (const plan::Collective& one : plan.planned)
      if (one.family == "tensor_parallel") ++flags[one.line];
    EXPECT_EQ(flags, (std::map<int, int>{{12, 1}}));
  }
}

TEST(FlatPlanRun, DefectsOfTheEngineAreDifferences) {
  constexpr const char* steps = R"yaml(
  - seed: rank
  - model: CompositeParamModel()
    as: net
  - flat_shard:
      modules: net
      unit_types: [UnitModule]
      strategy: "${strategy}"
      sync_module_states: true
      ignored: [net.p]
  - repeat: {times: 2, index: i}
    steps:
      - set_flags: {modules: net, requires_gradient_sync: i == 1}
      - forward: {loss: "sum(net(randn(2, 100)))"}
      - backward: loss
  - expect: any([p.grad != none for p in parameters(net.u1)])
)yaml";
  const std::string matrix = "{strategy: [full_shard, shard_grad_op]}";
  for (const std::size_t strategy : {0u, 1u}) {
    const Ran ran = run_on(2, steps, matrix, strategy);
    EXPECT_EQ(failures_starting_with(ran, "plan"), std::vector<std::string>{});
    EXPECT_PASS(ran);
  }
  using enum Defect;
  for (const auto& [defect, strategy] : {std::pair{flat_unit_types_ignored, 0},
                                         {flat_grad_op_resharded, 1},
                                         {flat_reshards_without_sync, 1},
                                         {flat_ignored_sharded, 0},
                                         {flat_states_not_synced, 0},
                                         {flat_buffers_not_synced, 0},
                                         {flat_prefetch_left_out, 0}}) {
    const ArmedDefect armed(defect);
    const Ran ran = run_on(2, steps, matrix, static_cast<std::size_t>(strategy));
    EXPECT_FALSE(failures_starting_with(ran, "plan").empty()) << static_cast<int>(defect);
  }
}

TEST(FlatPlanRun, RefusedFlagsChangeNoPlan) {
  const Ran ran = run_on(2, R"yaml(
  - model: Linear(3, 5)
    as: net
  - flat_shard: net
  - set_flags: {modules: net, requires_all_reduce: false}
    raises: flat-sharded, and has requires_gradient_sync only
  - forward: {loss: "sum(net(randn(2, 3)))"}
  - backward: loss
  - expect: any([p.grad != none for p in parameters(net)])
)yaml");
  EXPECT_EQ(failures_starting_with(ran, "plan"), std::vector<std::string>{});
  EXPECT_PASS(ran);
}

}  // namespace
}  // namespace lockstep::run
