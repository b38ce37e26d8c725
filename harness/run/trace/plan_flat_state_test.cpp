// The plan of state dicts of flat_shard agrees with runs: of models and optimizers, saved and loaded, full and sharded,
// with frozen parameters, ranks without elements, and tensor parallelism. Bytes are worked out by hand.
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

// "data_parallel all_gather dp": the number of planned collectives outside of forward and backward, and their bytes.
using Counts = std::map<std::string, std::pair<std::int64_t, std::int64_t>>;
Counts planned(const Ran& ran) {
  Counts counts;
  for (const verdict::PlanRow& row : ran.outcomes.at(0).plan) {
    if (row.phase != "other" || row.family == "start_up") continue;
    auto& [count, bytes] = counts[str(row.family, " ", row.operation, " ", row.axis)];
    count += row.planned;
    bytes += row.planned_bytes;
  }
  return counts;
}

Ran run_on(int world_size, const std::string& steps, const std::string& matrix = "", std::size_t index = 0) {
  TextOptions options;
  options.world_size = world_size;
  options.index = index;
  if (!matrix.empty()) options.head = str("matrix: ", matrix, "\n");
  return run_steps(steps, options);
}

// Units of 21 elements (weight (5, 3), one of padding, bias (5)), on 4 ranks 24, and 5, on 4 ranks 8. Rank 3 has only
// padding of the second.
constexpr const char* trained = R"yaml(
  - seed: 1
  - model: Sequential(Linear(3, 5), RMSNorm(5))
    as: net
  - set_requires_grad: {parameters: net.0.weight, to: not frozen}
  - flat_shard: {modules: net, unit_types: [Linear], strategy: "${strategy}"}
  - optimizer: {type: Adam, model: net, lr: 1e-2}
    as: adam
  - forward: {loss: "sum(net(randn(2, 3)))"}
  - backward: loss
  - step: adam
  - set_state_dict_type: {model: net, type: "${type}"}
)yaml";

TEST(FlatStatePlanRun, StateOfModelsIsGatheredPerUnitAndLoadedPerParameter) {
  const std::string matrix = "{frozen: [false], type: [sharded, full, local], strategy: [full_shard, no_shard]}";
  for (std::size_t index = 0; index < 6; ++index) {
    const Ran ran = run_on(4, str(trained, R"yaml(
  - state_dict: net
    as: state
  - let:
      pieces: "[v.local.shape if v.sharded else v.shape for v in values(state)]"
      as_expected: 0
  - let: {as_expected: 1}
    when: >-
      pieces == ([[[2, 3], [2], [2]], [[2, 3], [2], [2]], [[1, 3], [1], [1]], [[0, 3], [0], [0]]][rank]
      if strategy == 'full_shard' and type == 'sharded' else [[6], [2]] if strategy == 'full_shard' and type == 'local' and
      rank < 2 else [[6], [1]] if strategy == 'full_shard' and type == 'local' and rank == 2 else
      [[3], [0]] if strategy == 'full_shard' and type == 'local' else [[5, 3], [5], [5]])
  - expect: as_expected == 1
  - load_state_dict: {into: net, state: state}
  - repeat: {times: as_expected}
    steps:
      - forward: {y: "sum(net(randn(2, 3)))"}
  - expect: item(y) != 0
)yaml"),
                           matrix, index);
    EXPECT_PASS(ran) << index;
    Counts expected;
    if (index == 0) {
      expected["data_parallel all_gather dp"] = {2, (24 + 8) * 4};
      expected["tensor_parallel all_gather dp"] = {3, 4 * (2 * 3 + 2 + 2) * 4};
    } else if (index == 2) {
      expected["data_parallel all_gather dp"] = {2, (24 + 8) * 4};
    }
    EXPECT_EQ(planned(ran), expected) << index;
  }
}

// Adam has two state tensors per parameter. With a frozen weight, ranks 0 and 1 have no state of the first unit.
TEST(FlatStatePlanRun, StateOfOptimizersIsGatheredPerUnitAndKey) {
  const std::string matrix = "{frozen: [false, true], type: [sharded, full], strategy: [full_shard]}";
  for (std::size_t index = 0; index < 4; ++index) {
    const Ran ran = run_on(4, str(trained, R"yaml(
  - state_dict: adam
    as: state
  - let: {names: "['1.weight', '0.bias'] if frozen else ['1.weight', '0.bias', '0.weight']"}
  - let: {as_expected: len(names)}
    when: sorted(keys(state.state)) == sorted(names)
  - load_state_dict: {into: adam, state: state}
  - repeat: {times: as_expected}
    steps:
      - forward: {y: "sum(net(randn(2, 3)))"}
  - expect: item(y) != 0
)yaml"),
                           matrix, index);
    EXPECT_PASS(ran) << index;
    Counts expected = {{"data_parallel all_gather dp", {4, 2 * (24 + 8) * 4}}};
    if (index % 2 == 0) {
      const bool frozen = index == 2;
      expected["tensor_parallel all_gather dp"] = {frozen ? 4 : 6, 2 * 4 * (2 + 2 + (frozen ? 0 : 2 * 3)) * 4};
    }
    EXPECT_EQ(planned(ran), expected) << index;
  }
}

// Ranks without elements of a parameter have no gradient to see. SGD without momentum keeps step counts only.
TEST(FlatStatePlanRun, ParametersWithoutStateAreNotGathered) {
  const std::string matrix = "{frozen: [false], type: [sharded], strategy: [full_shard], zeroed: [net, adam]}";
  for (std::size_t index = 0; index < 2; ++index) {
    const Ran ran = run_on(4, str(trained, R"yaml(
  - optimizer: {type: Adam, model: net, lr: 1e-2}
    as: later
  - optimizer: {type: SGD, model: net, lr: 1e-2}
    as: sgd
  - step: sgd
  - choose: zeroed
    among:
      net:
        - zero_grad: net
      adam:
        - zero_grad: adam
  - step: later
  - state_dict: later
    as: none_yet
  - state_dict: sgd
    as: counts_only
  - repeat: {times: "len(keys(counts_only.state)) - len(keys(none_yet.state))"}
    steps:
      - forward: {y: "sum(net(randn(2, 3)))"}
  - expect: item(y) != 0 and len(keys(none_yet.state)) == 0 and len(keys(counts_only.state)) == 3
  - init_optimizer_state: later
  - state_dict: later
    as: state
  - expect: len(keys(state.state)) == 3
)yaml"),
                           matrix, index);
    EXPECT_PASS(ran) << index;
    EXPECT_EQ(planned(ran), (Counts{{"data_parallel all_gather dp", {4, 2 * (24 + 8) * 4}}})) << index;
  }
}

// The local parts are net1 (8, 10) and (8), net2 (10, 8) and (10); no padding between them, none at the end.
TEST(FlatStatePlanRun, StateAboveTensorParallelism) {
  const std::string matrix = "{type: [sharded, full], original: [true, false]}";
  for (std::size_t index = 0; index < 4; ++index) {
    const Ran ran = run_on(4, R"yaml(
  - mesh: {shape: [world_size // 2, 2], names: [dp, tp]}
    as: world
  - seed: 3
  - model: MLPModule()
    as: net
  - tensor_parallel: {model: net, mesh: world.tp, plan: {net1: colwise(), net2: rowwise()}}
  - flat_shard: {modules: net, mesh: world.dp, use_orig_params: original}
  - optimizer: {type: SGD, model: net, lr: 1e-2, momentum: 0.5}
    as: sgd
  - forward: {loss: "sum(net(randn(2, 10)))"}
  - backward: loss
  - step: sgd
  - set_state_dict_type: {model: net, type: "${type}"}
  - state_dict: net
    as: state
  - state_dict: {of: sgd, keyed_by: position}
    as: momentum
  - expect: len(keys(state)) == 4 and keys(momentum.state) == ['0', '1', '2', '3']
  - load_state_dict: {into: net, state: state}
  - load_state_dict: {into: sgd, state: momentum, keyed_by: position}
  - expect: all([v.sharded == (type == 'sharded') for v in values(state)])
)yaml",
                           matrix, index);
    EXPECT_PASS(ran) << index;
    const std::int64_t bytes = (80 + 8 + 80 + 10) * 4;
    Counts expected = {{"data_parallel all_gather dp", {2, 2 * bytes}}};
    if (index < 2)
      expected["tensor_parallel all_gather dp"] = {8, 2 * bytes};
    else
      expected["tensor_parallel all_gather tp"] = {6, 2 * (16 * 10 + 16 + 10 * 16) * 4};
    EXPECT_EQ(planned(ran), expected) << index;
  }
}

}  // namespace
}  // namespace lockstep::run
