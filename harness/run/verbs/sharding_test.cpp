// Verbs and checks of fully_shard: their options, their errors, and that the checks can fail.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/run/test_support.hpp"

namespace lockstep::run {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing_support::all_failures;
using testing_support::Ran;
using testing_support::run_steps;
using testing_support::TextOptions;
using verdict::Status;

Ran run_two(const std::string& steps, const std::string& device = "cpu") {
  TextOptions options;
  options.world_size = 2;
  options.device = device;
  return run_steps(steps, options);
}

constexpr const char* two_layers = R"yaml(
  - seed: 1
  - model: Sequential(Linear(4, 3), Linear(3, 5))
    as: m
  - copy: m
    as: reference
)yaml";

TEST(FullyShardVerb, ComparesShardsWithFullTensors) {
  const Ran ran = run_two(str(two_layers, R"yaml(
  - fully_shard: [m.*, m]
  - expect: all([p.sharded for p in parameters(m)])
  - expect_equal: [m, reference]
  - expect_equal: [parameters(m), parameters(reference)]
  - expect_equal: [m.0.weight.local, "reference.0.weight[0:2] if rank == 0 else reference.0.weight[2:3]"]
  - state_dict: {of: m, full: true}
    as: state
  - state_dict: reference
    as: expected
  - expect_equal: [state, expected]
)yaml"));
  EXPECT_PASS(ran);
  // Four parameters twice, a local tensor, and four tensors of the state. The condition is no comparison.
  EXPECT_EQ(ran.evidence().comparisons, 4 + 4 + 1 + 4);
  EXPECT_EQ(ran.evidence().conditions, 1);
  EXPECT_EQ(ran.evidence(1).same_bits, ran.evidence(1).comparisons);
}

TEST(FullyShardVerb, WrongElementFailsOnTheRankThatOwnsIt) {
  const Ran ran = run_two(str(two_layers, R"yaml(
  - fully_shard: m
  - let: {row: "zeros(1, 4) + 7"}
  - assign: {to: "reference.0.weight[2:3]", value: row}
  - expect_equal: [m, reference]
)yaml"));
  EXPECT_EQ(ran.result.status, Status::FAIL);
  EXPECT_TRUE(ran.failures(0).empty()) << all_failures(ran);
  ASSERT_EQ(ran.failures(1).size(), 1u) << all_failures(ran);
  EXPECT_THAT(ran.failures(1)[0], HasSubstr("m.0.weight and reference.0.weight: 4 of 4 elements"));
}

TEST(FullyShardVerb, DifferentShapeIsAMismatch) {
  const Ran ran = run_two(str(two_layers, R"yaml(
  - fully_shard: m
  - expect_equal: [m.0.weight, "zeros(4, 3)"]
)yaml"));
  EXPECT_EQ(ran.result.status, Status::FAIL);
  EXPECT_THAT(ran.failures(0)[0], HasSubstr("(3, 4) as (Shard(0))"));
}

TEST(FullyShardVerb, PassesItsOptionsToTheEngine) {
  EXPECT_PASS(run_two(str(two_layers, R"yaml(
  - fully_shard:
      modules: m
      reshard_after_forward: false
      shard_dim: {0.weight: 1}
      mixed_precision: {param: bfloat16, reduce: float32, output: float32, cast_forward_inputs: true}
  - fully_shard: {modules: reference, ignored: [reference.1.bias, reference.0]}
  - expect: not reference.1.bias.sharded and not reference.0.weight.sharded and reference.1.weight.sharded
  - expect_equal: [m.0.weight.local.shape, "[3, 2]"]
  - expect_equal: [m.1.weight.local.shape, "[3, 3] if rank == 0 else [2, 3]"]
  - forward: {y: "m(ones(2, 4))"}
  - expect: y.dtype == float32
  - let: {z: "reference(ones(2, 4))"}
  - expect_equal: {actual: y, expected: z, rtol: 0.05, atol: 0.05}
)yaml")));
}

TEST(FullyShardVerb, TogetherMakesOneGroup) {
  EXPECT_PASS(run_two(str(two_layers, R"yaml(
  - fully_shard: {modules: m.*, together: true}
  - fully_shard: m
  - observe: {}
    as: run
    steps:
      - forward: {loss: "sum(m(ones(2, 4)))"}
      - backward: loss
  - expect_events: {during: run, model: m, kinds: [unshard, reduce], exactly: [unshard 0+1, unshard 0+1, reduce 0+1]}
)yaml")));
}

TEST(FullyShardVerb, RejectsWrongArguments) {
  const Ran ran = run_two(str(two_layers, R"yaml(
  - fully_shard: {modules: m, reshard_after_forward: "'often'"}
    raises: "`reshard_after_forward` is true, false or a number of ranks, not "
  - fully_shard: {modules: m, mixed_precision: {parm: bfloat16}}
    raises: "mixed_precision has no `parm`; did you mean `param`?"
  - fully_shard: {modules: m, shard_dim: {2.weight: 1}}
    raises: "`2.weight` of shard_dim matches no parameter"
  - fully_shard: {modules: reference, ignored: [reference.7]}
    raises: "reference.7"
  - set_flags: {modules: reference, requires_gradient_sync: false}
    raises: nothing that synchronises gradients is applied
  - replicate: reference
  - set_flags: {modules: reference, is_last_backward: false}
    raises: nothing is sharded at
)yaml"));
  EXPECT_PASS(ran);
  EXPECT_EQ(ran.evidence().errors_expected, 6);
}

TEST(UnshardVerb, UnshardsAndReshards) {
  for (const char* device : {"cpu", "sim"}) {
    const Ran ran = run_two(str(two_layers, R"yaml(
  - fully_shard: [m.0, m.1, m]
  - unshard: {modules: m.0, async: true}
    as: gathering
  - unshard: m.1
  - expect: not m.1.weight.sharded
  - wait: gathering
  - expect: not m.0.weight.sharded
  - expect_equal: [m, reference]
  - reshard: [m.0, m.1]
  - expect: all([p.sharded for p in parameters(m)])
  - expect_equal: [m, reference]
)yaml"),
                            device);
    EXPECT_PASS(ran);
  }
}

TEST(MetaModels, GetStorageAndInitialValues) {
  EXPECT_PASS(run_two(R"yaml(
  - model: {build: "Sequential(Linear(4, 3), LayerNorm(3))", device: meta}
    as: m
  - expect: m.0.weight.device == 'meta'
  - to_empty: m
  - expect: m.0.weight.device == device and not finite(m.0.weight)
  - seed: 3
  - reset_parameters: [m.0, m.1]
  - seed: 3
  - model: Sequential(Linear(4, 3), LayerNorm(3))
    as: drawn
  - expect_equal: {actual: m, expected: drawn, bits: true}
)yaml"));
}

TEST(MetaModels, GetTheSameInitialValuesWhenSharded) {
  EXPECT_PASS(run_two(R"yaml(
  - model: {build: "Sequential(Linear(4, 3), LayerNorm(3))", device: meta}
    as: m
  - fully_shard: [m.0, m]
  - to_empty: m
  - seed: 3
  - reset_parameters: [m.0, m.1]
  - seed: 3
  - model: Sequential(Linear(4, 3), LayerNorm(3))
    as: drawn
  - expect: all([p.sharded for p in parameters(m)])
  - expect_equal: {actual: m, expected: drawn, bits: true}
  - let: {x: "ones(2, 4)", y: m(x)}
  - expect_equal: [y, drawn(x)]
)yaml"));
}

TEST(LoadStateDictVerb, LoadsShardsOfFullTensors) {
  const Ran ran = run_two(str(two_layers, R"yaml(
  - fully_shard: m
  - state_dict: reference
    as: values
  - assign: {to: parameters(m), value: 0}
  - load_state_dict: {into: m, state: values, broadcast_from_rank0: true}
    raises: "`broadcast_from_rank0` goes with `full`"
  - load_state_dict: {into: m, state: values}
    raises: 0.weight
  - load_state_dict:
      into: m
      state: "put({}, '0.weight', ones(3, 4)) if rank == 0 else {}"
      full: true
      broadcast_from_rank0: true
    raises: "Missing key(s) in state_dict: 0.bias, 1.weight, 1.bias"
  - load_state_dict:
      into: m
      state: "put({}, '0.weight', ones(3, 4)) if rank == 0 else {}"
      full: true
      broadcast_from_rank0: true
      strict: false
  - expect_equal: [m.0.weight, "ones(3, 4)"]
  - expect_equal: [m.1.weight, 0]
  - load_state_dict: {into: m, state: values, full: true}
  - expect_equal: [m, reference]
)yaml"));
  EXPECT_PASS(ran);
  EXPECT_EQ(ran.evidence().errors_expected, 3);
}

constexpr const char* observed_iteration = R"yaml(
  - fully_shard: [m.*, m]
  - observe: {}
    as: run
    steps:
      - forward: {loss: "sum(m(ones(2, 4)))"}
      - backward: loss
)yaml";

TEST(ExpectEvents, PassesForObservedEvents) {
  const Ran ran = run_two(str(two_layers, observed_iteration, R"yaml(
  - expect_events: {during: run, model: m, kinds: [unshard], exactly: [unshard 0, unshard 1, unshard 1, unshard 0]}
  - expect_events: {during: run, model: m, in_order: [pre_forward (root), unshard 0, post_forward 1, reduce 1, reduce 0]}
  - expect_events: {during: run, model: m, never: [unshard (root), recompute 0]}
  - expect_events: {during: run, model: m.0, in_order: [unshard (root), reduce (root)]}
)yaml"));
  EXPECT_PASS(ran);
  EXPECT_EQ(ran.evidence().orders_checked, 4);
}

TEST(ExpectEvents, FailureListsObservedEvents) {
  const Ran ran = run_two(str(two_layers, observed_iteration, R"yaml(
  - expect_events: {during: run, model: m, exactly: [unshard 0, unshard 1, unshard 0, unshard 1]}
  - expect_events: {during: run, model: m, exactly: [unshard 0, unshard 1]}
  - expect_events: {during: run, model: m, in_order: [reduce 0, reduce 1]}
  - expect_events: {during: run, model: m, never: [reduce 1]}
)yaml"));
  EXPECT_EQ(ran.result.status, Status::FAIL);
  ASSERT_EQ(ran.failures().size(), 4u) << all_failures(ran);
  EXPECT_THAT(ran.failures()[0], HasSubstr("event 2 is `unshard 1`, expected `unshard 0`. Seen: unshard 0, unshard 1"));
  EXPECT_THAT(ran.failures()[1], HasSubstr("event 2 is `unshard 1`, expected no more"));
  EXPECT_THAT(ran.failures()[2], HasSubstr("no `reduce 1` after `reduce 0`"));
  EXPECT_THAT(ran.failures()[3], HasSubstr("`reduce 1` is event "));
}

TEST(ExpectEvents, IsTrivialInAWindowWithoutEvents) {
  const Ran ran = run_two(str(two_layers, R"yaml(
  - fully_shard: [m.*, m]
  - fully_shard: reference
  - observe: {}
    as: run
    steps:
      - let: {y: "reference(ones(2, 4))"}
  - expect_events: {during: run, model: m, never: [unshard 0]}
  - expect_events: {during: run, model: m, kinds: recompute, exactly: "${[k for k in ['recompute 0'] if 1 == 2]}"}
)yaml"));
  EXPECT_EQ(ran.result.status, Status::INVALID) << all_failures(ran);
  EXPECT_EQ(ran.evidence().trivial, 2);
}

TEST(ExpectEvents, RejectsUnknownKindsAndEmptyLists) {
  EXPECT_PASS(run_two(str(two_layers, observed_iteration, R"yaml(
  - expect_events: {during: run, model: m, kinds: [unsharding], never: [unshard 0]}
    raises: "unknown kind of event `unsharding`; did you mean `unshard`?"
  - expect_events: {during: run, model: m, never: [unshard]}
    raises: "`unshard` is no event"
  - expect_events: {during: run, model: m, kinds: [reshard], never: [unshard 0]}
    raises: "`unshard` is not among the `kinds`"
  - expect_events: {during: run, model: m, never: "${[k for k in ['unshard 0'] if 1 == 2]}"}
    raises: "`never` lists no event"
  - expect_events: {during: run, model: m, in_order: "${[k for k in ['unshard 0'] if 1 == 2]}"}
    raises: "`in_order` lists no event"
)yaml")));
}

TEST(ExpectEvents, RejectsPathsOfNoModule) {
  EXPECT_PASS(run_two(str(two_layers, observed_iteration, R"yaml(
  - expect_events: {during: run, model: m, never: [reduce m.0]}
    raises: "`m.0` of the event `reduce m.0` is no path below `m`; did you mean `0`?"
  - expect_events: {during: run, model: m, exactly: [reduce m]}
    raises: "did you mean `(root)`?"
  - expect_events: {during: run, model: m, in_order: [unshard 0+2]}
    raises: "`2` of the event `unshard 0+2` is no path below `m`"
  - expect_events: {during: run, never: [recompute 0]}
    raises: "there are several models: m, reference"
  - drop: reference
  - expect_events: {during: run, in_order: [unshard 0, reduce 0]}
)yaml")));
}

TEST(ExpectEvents, NeverRejectsPathsWithoutEvents) {
  EXPECT_PASS(run_two(str(two_layers, R"yaml(
  - fully_shard: {modules: [m.0, m.1], together: true}
  - fully_shard: m
  - observe: {}
    as: run
    steps:
      - let: {y: "m(ones(2, 4))"}
  - expect_events: {during: run, model: m, never: [unshard 0]}
    raises: "nothing at `0` has events*events come from (root), 0+1"
  - expect_events: {during: run, model: m, never: [reduce 0+1]}
)yaml")));
}

TEST(Hooks, RunBeforeTheCollectivesOfAGroup) {
  for (const char* device : {"cpu", "sim"})
    EXPECT_PASS(run_two(str(two_layers, R"yaml(
  - fully_shard: [m.0, m]
  - let: {gathers: 0, reductions: 0}
  - hook: {modules: [m.0, m], at: before_all_gather}
    steps:
      - let: {gathers: gathers + 1}
      - delay: 1
  - hook: {modules: m, at: before_reduce_scatter}
    steps:
      - let: {reductions: reductions + 1}
  - forward: {loss: "sum(m(ones(2, 4)))"}
  - backward: loss
  - expect: gathers == 3 and reductions == 1
)yaml"),
                        device));
}

TEST(Optimizers, UpdateShardsWhileParametersAreUnsharded) {
  EXPECT_PASS(run_two(str(two_layers, R"yaml(
  - fully_shard: m
  - optimizer: {type: SGD, model: reference, lr: 0.5}
    as: reference_optimizer
  - unshard: m
  - optimizer: {type: SGD, model: m, lr: 0.5}
    as: optimizer
  - forward: {loss: "sum(m(ones(2, 4)))", reference_loss: "sum(reference(ones(2, 4)))"}
  - backward: loss
  - backward: reference_loss
  - expect_equal: [m, reference]
  - step: optimizer
  - step: reference_optimizer
  - expect_equal: [m, reference]
)yaml")));
}

}  // namespace
}  // namespace lockstep::run
