// The plan agrees with runs that train, and defects of the engine show as differences.
#include "harness/run/trace/plan_check.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/run/test_support.hpp"

namespace lockstep::run {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing_support::ArmedDefect;
using testing_support::failures_starting_with;
using testing_support::Ran;
using testing_support::ranks;
using testing_support::run_steps;
using testing_support::TextOptions;

// The failures of the check `plan` on rank 0.
std::vector<std::string> plan_failures(const Ran& ran) { return failures_starting_with(ran, "plan "); }

// The failures of `plan` and `plan_order` on rank 0.
std::vector<std::string> all_plan_failures(const Ran& ran) { return failures_starting_with(ran, "plan"); }

constexpr const char* replicated_steps = R"yaml(
  - seed: 1
  - model: Net()
    as: net
  - replicate: {modules: net, bucket_cap_mb: 0.00002}
  - optimizer: {type: SGD, model: net, lr: 0.1}
    as: sgd
  - repeat: 3
    steps:
      - forward: {loss: "sum(net(randn(4, 2)))"}
      - backward: loss
      - step: sgd
      - zero_grad: sgd
  - expect: any([p.requires_grad for p in parameters(net)])
)yaml";

TEST(PlanCheck, ReplicatedModuleFollowsThePlan) {
  EXPECT_THAT(all_plan_failures(run_steps(replicated_steps, ranks(2))), IsEmpty());
}

TEST(PlanCheck, ReportsBucketsThatAreNotSent) {
  const ArmedDefect armed(Defect::replicate_bucket_not_sent);
  const std::vector<std::string> found = plan_failures(run_steps(replicated_steps, ranks(2)));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_THAT(found[0], HasSubstr("data_parallel/all_reduce over dp of 2 in backward for net"));
  EXPECT_THAT(found[0], HasSubstr("planned 7 of"));
  EXPECT_THAT(found[0], HasSubstr("observed 4 of"));
}

TEST(PlanCheck, ReportsOtherBucketBoundaries) {
  const ArmedDefect armed(Defect::bucket_cap_ignored);
  const std::vector<std::string> found = plan_failures(run_steps(replicated_steps, ranks(2)));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_THAT(found[0], HasSubstr("data_parallel/all_reduce over dp of 2 in backward for net"));
  EXPECT_THAT(found[0], HasSubstr("planned 7 of"));
  EXPECT_THAT(found[0], HasSubstr("observed 3 of"));
}

constexpr const char* sharded_steps = R"yaml(
  - seed: 1
  - model: MLPStack(8)
    as: test
  - mesh: {shape: [2, world_size // 2], names: [replicate, shard]}
    as: mesh
  - activation_checkpoint: test.*
  - fully_shard: {modules: [test.0, test.1, test.2, test], mesh: mesh, reshard_after_forward: false}
  - optimizer: {type: Adam, model: test, lr: 0.1}
    as: adam
  - repeat: 2
    steps:
      - repeat: {times: 2, index: i}
        steps:
          - set_flags: {modules: test, requires_gradient_sync: i == 1}
          - forward: {loss: "sum(test(randn(4, 8)))"}
          - backward: loss
      - step: adam
      - zero_grad: adam
  - let: {y: "test(randn(4, 8))"}
  - let: {y: "test(randn(4, 8))"}
  - expect: any([p.sharded for p in parameters(test)])
)yaml";

TEST(PlanCheck, ShardedGroupsFollowThePlan) {
  const Ran ran = run_steps(sharded_steps, ranks(4));
  EXPECT_THAT(all_plan_failures(ran), IsEmpty());
  const verdict::RankOutcome& first = ran.outcomes.at(0);
  std::map<std::string, std::int64_t> planned, observed;
  for (const verdict::PlanRow& row : first.plan) {
    planned[str(row.phase, " ", row.operation, " ", row.axis)] += row.planned;
    observed[str(row.phase, " ", row.operation, " ", row.axis)] += row.observed;
  }
  // The root owns no parameter. Groups that an evaluation leaves unsharded are used again.
  const std::map<std::string, std::int64_t> expected = {{"forward all_gather shard", 3 * 4 + 3},
                                                        {"backward reduce_scatter shard", 3 * 2},
                                                        {"backward all_reduce replicate", 3 * 2}};
  EXPECT_EQ(planned, expected);
  EXPECT_EQ(observed, expected);
}

TEST(PlanCheck, AssignedTensorsReplaceParameters) {
  const Ran ran = run_steps(R"yaml(
  - model: Net()
    as: net
  - fully_shard: net
  - state_dict: net
    as: state
  - let: {other: "{k: full_like(v, 2) for k, v in zip(keys(state), values(state))}"}
  - load_state_dict: {into: net, state: other, assign: true}
  - repeat: 2
    steps:
      - forward: {loss: "sum(net(ones(4, 2)))"}
      - backward: loss
  - expect: all([p.grad != none for p in parameters(net)])
)yaml",
                            ranks(2));
  EXPECT_THAT(ran.failures(), IsEmpty());
  std::map<std::string, std::int64_t> planned;
  for (const verdict::PlanRow& row : ran.outcomes.at(0).plan) planned[row.operation] += row.planned;
  EXPECT_EQ(planned, (std::map<std::string, std::int64_t>{{"all_gather", 2}, {"reduce_scatter", 2}}));
}

TEST(PlanCheck, PlansModulesThatChecksCall) {
  const Ran ran = run_steps(R"yaml(
  - model: Net()
    as: plain
  - copy: plain
    as: test
  - fully_shard: {modules: [test.fc1, test]}
  - let: {x: "randn(4, 2)"}
  - expect_equal: [test(x), plain(x)]
  - expect: item(sum(test(x))) < 1000
)yaml",
                            ranks(2));
  EXPECT_THAT(all_plan_failures(ran), IsEmpty());
  std::int64_t planned = 0;
  for (const verdict::PlanRow& row : ran.outcomes.at(0).plan) planned += row.planned;
  EXPECT_EQ(planned, 2 + 1);  // the root stays unsharded
}

TEST(PlanCheck, ReportsDefectsThatChangeCounts) {
  for (const Defect defect : {Defect::shard_reshard_too_often, Defect::shard_sync_flag_ignored}) {
    const ArmedDefect armed(defect);
    const std::vector<std::string> found = plan_failures(run_steps(sharded_steps, ranks(4)));
    ASSERT_EQ(found.size(), 1u) << static_cast<int>(defect);
    EXPECT_THAT(found[0], HasSubstr("for test.0"));
  }
}

TEST(PlanCheck, ExplainPrintsThePlanWithoutALaunch) {
  scenario::Library library((std::filesystem::temp_directory_path() / "lockstep_no_such_folder").string());
  const auto explained = [&](const std::string& more) {
    const auto scenario =
        library.load_text(str("scenario: test/text\nsummary: A test.\nranks: {world_size: [4]}\n", more,
                              "steps:\n  - model: Net()\n    as: net\n  - fully_shard: net\n",
                              "  - repeat: 3\n    steps:\n      - forward: {loss: \"sum(net(ones(2, 2)))\"}\n",
                              "      - backward: loss\n  - expect: rank >= 0\n"),
                          "text.yaml");
    const std::vector<scenario::Case> cases = scenario::expand(scenario, {});
    CaseSpec spec;
    spec.scenario = scenario.get();
    spec.test_case = &cases.at(0);
    spec.library = &library;
    return explain_plan(spec);
  };
  // Three linears of 2x2, with rows and biases padded to 4.
  EXPECT_EQ(explained(""),
            "  phase     family         operation       group    last turn  bytes  in all  for\n"
            "  forward   data_parallel  all_gather      dp of 4          1    144       3  net\n"
            "  backward  data_parallel  reduce_scatter  dp of 4          1    144       3  net\n"
            "  in this order (last turn):\n"
            "  forward    all_gather net\n"
            "  backward   reduce_scatter net\n"
            "  parameters of rank 0 after the last step:\n"
            "  parameter       sizes   placements  mesh  on this rank\n"
            "  net.fc1.weight  (2, 2)  (Shard(0))  dp 4  (1, 2)\n"
            "  net.fc1.bias    (2,)    (Shard(0))  dp 4  (1,)\n"
            "  net.fc2.weight  (2, 2)  (Shard(0))  dp 4  (1, 2)\n"
            "  net.fc2.bias    (2,)    (Shard(0))  dp 4  (1,)\n"
            "  net.fc3.weight  (2, 2)  (Shard(0))  dp 4  (1, 2)\n"
            "  net.fc3.bias    (2,)    (Shard(0))  dp 4  (1,)\n");
  EXPECT_EQ(explained("plan: {unplanned: a test}\n"), "  not foretold: a test\n");
}

TEST(PlanCheck, BranchOnAValueNeedsAReason) {
  const std::string steps = R"yaml(
  - model: Net()
    as: net
  - replicate: net
  - let: {twice: "item(sum(randn(2))) > 0 or true"}
  - if: twice
    steps:
      - forward: {loss: "sum(net(randn(4, 2)))"}
      - backward: loss
  - expect: any([p.grad != none for p in parameters(net)])
)yaml";
  const std::vector<std::string> found = plan_failures(run_steps(steps, ranks(2)));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_THAT(found[0], HasSubstr("cannot be foretold"));
  TextOptions unplanned = ranks(2);
  unplanned.head = "plan: {unplanned: the branch depends on a value}\n";
  EXPECT_THAT(all_plan_failures(run_steps(steps, unplanned)), IsEmpty());
}

TEST(PlanCheck, NamesTheStepAndTheUnknownValue) {
  const auto failures_with = [](const std::string& value) {
    return plan_failures(run_steps(str(R"yaml(
  - model: Net()
    as: net
  - replicate: net
  - observe: {}
    as: seen
    steps:
      - forward: {loss: "sum(net(randn(4, 2)))"}
      - backward: loss
  - let: {again: ")yaml",
                                       value, R"yaml("}
  - if: again
    steps:
      - forward: {loss: "sum(net(randn(4, 2)))"}
      - backward: loss
  - expect: net.fc1.weight.grad != none
)yaml"),
                                   ranks(2)));
  };
  const std::map<std::string, std::string> unknown = {{"memory('parameter') > 0", "memory()"},
                                                      {"seen.peak_bytes > 0", "`peak_bytes`"},
                                                      {"seen.seconds > 0", "`seconds`"},
                                                      {"draws(net)[0] == 1", "the number of draws"},
                                                      {"not net.fc1.weight.pinned", "`pinned`"}};
  for (const auto& [value, name] : unknown) {
    const std::vector<std::string> found = failures_with(value);
    ASSERT_EQ(found.size(), 1u) << value;
    EXPECT_THAT(found[0], HasSubstr("text.yaml:12: `again` has no value here"));
    EXPECT_THAT(found[0], HasSubstr("unknown: `again` of text.yaml:11:5: "));
    EXPECT_THAT(found[0], HasSubstr(str(name, " is known only when the case runs")));
  }
  EXPECT_THAT(failures_with("counts(seen)['data_parallel/all_reduce'] == 1"), IsEmpty());
  EXPECT_THAT(failures_with("net.fc1.weight.device == device"), IsEmpty());
}

// The dry run leaves out a branch without training, and a step that must fail by a value does not fail in it.
TEST(PlanCheck, NamesTheValueThatMayDecideACall) {
  const auto failure_of = [](const std::string& steps) {
    const std::vector<std::string> found = plan_failures(run_steps(str(R"yaml(
  - model: Sequential(Embedding(4, 4), Linear(4, 4))
    as: net
  - fully_shard: [net.0, net]
  - let: {good: "tensor([1])", bad: "tensor([9])"}
)yaml",
                                                                       steps, "  - expect: good != none\n"),
                                                                   ranks(2)));
    EXPECT_EQ(found.size(), 1u) << steps;
    return found.empty() ? std::string() : found[0];
  };
  const std::string remedy =
      "; if such a value decides which modules are called, give the reason as `plan: {unplanned: reason}`";
  const std::string branch = failure_of(R"yaml(  - let: {y: "sum(net(good))"}
  - if: item(y) == item(y)
    steps:
      - let: {z: net(good)}
)yaml");
  EXPECT_THAT(branch, HasSubstr("in forward for net.0 (line 10): planned none, observed 1 of "));
  EXPECT_THAT(branch, HasSubstr("(unknown: `if` of text.yaml:"));
  EXPECT_THAT(branch, HasSubstr(remedy));
  const std::string failing = failure_of(R"yaml(  - forward: {y: sum(net(bad))}
    raises: "9"
  - forward: {y: sum(net(good))}
)yaml");
  EXPECT_THAT(failing, HasSubstr("(unknown: `forward` of text.yaml:"));
  EXPECT_THAT(failing, HasSubstr(remedy));
}

TEST(PlanCheck, CountsOfAWindowAreThePlannedOnes) {
  const Ran ran = run_steps(R"yaml(
  - model: Net()
    as: net
  - fully_shard: [net.fc1, net]
  - let: {trained: parameters(net)}
  - observe: {}
    as: seen
    steps:
      - all_reduce: {tensor: "ones(2)", op: sum}
      - forward: {loss: "sum(net(randn(4, 2)))"}
      - backward: loss
  - repeat: counts(seen)['data_parallel/all_gather'] + counts(seen)['user/all_reduce']
    steps:
      - forward: {loss: "sum(net(randn(4, 2)))"}
      - backward: loss
  - observe: {}
    as: raised
    steps:
      - forward: {loss: "sum(net(randn(4, 3)))"}
        raises: linear
  - expect: all([p.grad != none for p in trained])
)yaml",
                            ranks(2));
  EXPECT_THAT(ran.failures(), IsEmpty());
  std::int64_t scattered = 0;
  for (const verdict::PlanRow& row : ran.outcomes.at(0).plan)
    if (row.operation == "reduce_scatter") scattered += row.planned;
  // An iteration has two reduce-scatters, and three all-gathers: fc1 is gathered again for backward, the root is not.
  EXPECT_EQ(scattered, 2 * (1 + 3 + 1));
}

TEST(PlanCheck, ReportsWhyACaseWasNotJudged) {
  const auto verdict_of = [](const std::string& steps, const std::string& head = "") {
    TextOptions options = ranks(2);
    options.head = head;
    return run_steps(steps, options).result.plan_verdict.value();
  };
  EXPECT_TRUE(verdict_of(replicated_steps).is_judged);
  EXPECT_EQ(verdict_of(replicated_steps, "plan: {unplanned: a test}\n").reason, "unplanned: a test");
  EXPECT_EQ(verdict_of("  - expect: rank >= 0\n").kind(), "nothing to plan");
  const std::string ended = str(replicated_steps, "  - forward: {y: \"net(ones(4, 3))\"}\n");
  EXPECT_EQ(verdict_of(ended).kind(), "ended early");
  EXPECT_EQ(verdict_of(str(replicated_steps, "  - if: item(sum(ones(2))) > 0\n    steps:\n      - step: sgd\n")).kind(),
            "cannot be foretold");
}

TEST(PlanCheck, IgnoresUnknownValuesThatNoStepNeeds) {
  const Ran ran = run_steps(R"yaml(
  - model: Net()
    as: net
  - replicate: net
  - let: {losses: "[]"}
  - repeat: 2
    steps:
      - forward: {loss: "sum(net(randn(4, 2)))"}
      - backward: loss
      - let: {losses: "losses + [item(loss)]"}
  - expect: len(losses) == 2
)yaml",
                            ranks(2));
  EXPECT_THAT(all_plan_failures(ran), IsEmpty());
}

// The full state dict of an optimizer gathers the state that the checkpoint has given it.
TEST(PlanCheck, FollowsTheOptimizerStateOfACheckpoint) {
  for (const bool trained : {false, true}) {
    const Ran ran = run_steps(str(R"yaml(
  - model: Net()
    as: net
  - fully_shard: net
  - optimizer: {type: Adam, model: net, lr: 0.1}
    as: optimizer
  - optimizer: {type: Adam, model: net, lr: 0.1}
    as: other
  - init_optimizer_state: optimizer
    when: )yaml",
                                  trained ? "rank >= 0" : "rank < 0", R"yaml(
  - save_checkpoint: {folder: saved, state: {net: net, optimizer: optimizer}}
  - load_checkpoint: {folder: saved, state: {net: net, optimizer: other}}
  - state_dict: {of: other, full: true}
    as: state
  - expect: len(tensors(other)) == )yaml",
                                  trained ? 12 : 0, "\n"),
                              ranks(2));
    EXPECT_THAT(ran.failures(), IsEmpty()) << trained;
    EXPECT_EQ(ran.outcomes[0].plan.empty(), !trained);
  }
}

TEST(PlanCheck, ExcludesStepsThatMustFail) {
  const Ran ran = run_steps(R"yaml(
  - model: Net()
    as: net
  - replicate: net
  - replicate: net
    raises: already been applied
  - forward: {loss: "sum(net(randn(4, 2)))"}
  - backward: loss
)yaml",
                            ranks(2));
  EXPECT_THAT(all_plan_failures(ran), IsEmpty());
}

}  // namespace
}  // namespace lockstep::run
