// The order of the plan agrees with runs, seeded defects show as differences, and no defect changes the plan.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/core/defects.hpp"
#include "harness/run/test_support.hpp"
#include "harness/run/trace/plan_case.hpp"
#include "harness/run/trace/plan_check.hpp"

namespace lockstep::run {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing_support::ArmedDefect;
using testing_support::Ran;
using testing_support::run_steps;
using testing_support::TextOptions;

std::vector<std::string> failures_of(const Ran& ran, const std::string& check) {
  return testing_support::failures_starting_with(ran, check + " ");
}

Ran run_on_two(const std::string& steps, const std::string& device = "cpu") {
  TextOptions options;
  options.world_size = 2;
  options.device = device;
  return run_steps(steps, options);
}

// The groups stay unsharded after their backward. A wrong prefetch then changes no count, but only the order.
constexpr const char* sharded_steps = R"yaml(
  - seed: 1
  - model: Sequential(Linear(4, 4), Linear(4, 4), Linear(4, 4), Linear(4, 4))
    as: net
  - fully_shard: {modules: [net.0, net.1, net.2, net.3, net]}
  - set_flags: {modules: net, reshard_after_backward: false}
  - repeat: 2
    steps:
      - forward: {loss: "sum(net(requires_grad(randn(3, 4), true)))"}
      - backward: loss
  - reshard: [net.0, net.1, net.2, net.3]
  - expect: all([p.grad != none for p in parameters(net)])
)yaml";

TEST(PlanOrder, RunsFollowThePlannedOrderOnBothDevices) {
  for (const char* device : {"cpu", "sim"}) {
    const Ran ran = run_on_two(sharded_steps, device);
    EXPECT_THAT(ran.failures(), IsEmpty());
    EXPECT_EQ(ran.evidence(1).planned_in_order, 4 + 4 + 4 + 4 + 4) << device;
    EXPECT_EQ(ran.result.evidence.planned_in_order, 2 * 20);
  }
}

// The recomputation reaches the left group first, the backward of the product the right one. Neither has inputs with a
// gradient, so both reduce at the end of the backward.
TEST(PlanOrder, FollowsRootsInsideARecomputedModule) {
  TextOptions options;
  options.world_size = 2;
  options.head =
      "models: {Fan: {children: {left: 'Linear(4, 4)', right: 'Linear(4, 4)'}, forward: 'left(x) * right(x)'}}\n";
  const Ran ran = run_steps(R"yaml(
  - seed: 1
  - model: Sequential(Fan())
    as: net
  - activation_checkpoint: net.0
  - fully_shard: net.0.right
  - fully_shard: net.0.left
  - forward: {loss: "sum(net(randn(3, 4)))"}
  - backward: loss
  - expect: all([p.grad != none for p in parameters(net)])
)yaml",
                            options);
  EXPECT_THAT(ran.failures(), IsEmpty());
  EXPECT_EQ(ran.evidence(1).planned_in_order, 2 + 2);
}

TEST(PlanOrder, ReportsWrongPrefetchWithCorrectCounts) {
  const ArmedDefect armed(Defect::shard_prefetch_wrong_group);
  const Ran ran = run_on_two(sharded_steps);
  EXPECT_THAT(failures_of(ran, "plan"), IsEmpty());
  EXPECT_THAT(failures_of(ran, "plan_order"),
              ElementsAre(HasSubstr("backward, 2nd (line 11, turn 1): planned all_gather of net.2, observed "
                                    "reduce_scatter of net.3")));
  EXPECT_EQ(ran.evidence().planned_in_order, 0);
}

TEST(PlanOrder, ReportsFirstDifferenceBesideWrongCounts) {
  const ArmedDefect armed(Defect::shard_sync_flag_ignored);
  const Ran ran = run_on_two(R"yaml(
  - model: Net()
    as: net
  - fully_shard: [net.fc1, net]
  - repeat: {times: 2, index: i}
    steps:
      - set_flags: {modules: net, requires_gradient_sync: i == 1}
      - forward: {loss: "sum(net(ones(4, 2)))"}
      - backward: loss
  - expect: all([p.grad != none for p in parameters(net)])
)yaml");
  EXPECT_EQ(failures_of(ran, "plan").size(), 1u);
  EXPECT_THAT(
      failures_of(ran, "plan_order"),
      ElementsAre(HasSubstr(
          "forward, 1st (line 9, turn 2): planned all_gather of net, observed reduce_scatter of net in backward")));
}

TEST(PlanOrder, FollowsAForwardUpToItsFailure) {
  const Ran ran = run_on_two(R"yaml(
  - model: Sequential(Linear(4, 4), Linear(4, 4), Linear(4, 2))
    as: net
  - fully_shard: {modules: [net.0, net.1, net.2, net], reshard_after_forward: false}
  - let: {y: "net(ones(2, 3))"}
    raises: linear
  - forward: {loss: "sum(net(ones(2, 4)))"}
  - backward: loss
  - expect: all([p.grad != none for p in parameters(net)])
)yaml");
  EXPECT_THAT(ran.failures(), IsEmpty());
  std::map<std::string, std::int64_t> planned;
  for (const verdict::PlanRow& row : ran.outcomes.at(0).plan) planned[row.operation] += row.planned;
  // The forward that fails leaves net.0 unsharded.
  EXPECT_EQ(planned, (std::map<std::string, std::int64_t>{{"all_gather", 2}, {"reduce_scatter", 3}}));
}

TEST(PlanOrder, PlansParametersFrozenBetweenSteps) {
  const Ran ran = run_on_two(R"yaml(
  - model: Net()
    as: net
  - replicate: net
  - repeat: {times: 6, index: i}
    steps:
      - set_requires_grad: {parameters: net.**, to: i % 2 == 0}
      - zero_grad: net
      - let: {x: "requires_grad(ones(4, 2), true)"}
      - forward: {loss: "sum(net(x))"}
      - backward: loss
      - expect: all([(p.grad != none) == (i % 2 == 0) for p in parameters(net)])
)yaml");
  EXPECT_THAT(ran.failures(), IsEmpty());
  std::int64_t reduced = 0;
  for (const verdict::PlanRow& row : ran.outcomes.at(0).plan)
    if (row.operation == "all_reduce") reduced += row.planned;
  EXPECT_EQ(reduced, 3);
}

// ---- independence ----
std::string text_of(const PlanOutcome& outcome) {
  std::string text = str(outcome.unforeseen, "\n");
  for (const plan::Collective& one : outcome.planned)
    text += str(one.family, " ", one.operation, " ", one.axis, " ", one.group_size, " ", one.phase, " ", one.owner, " ",
                one.line, " ", one.bytes, " ", one.bytes_are_least, " ", one.turn, "\n");
  return text;
}

TEST(PlanIndependence, NoDefectChangesThePlan) {
  scenario::Library library(LOCKSTEP_SOURCE_DIR "/scenarios");
  for (const char* name :
       {"replicate/single_module", "training/gradient_accumulation", "golden/hsdp_uneven_ac_w4",
        "tensor_parallel/seven_collectives", "golden/mlp_stack_2d_w4", "golden/transformer_2d_seq_w4",
        "golden/flat_hybrid_w4", "compose/replicate_with_flat_shard"}) {
    const auto scenario = library.load(library.find({name}).front());
    const std::vector<scenario::Case> cases = scenario::expand(scenario, {});
    CaseSpec spec;
    spec.scenario = scenario.get();
    spec.library = &library;
    // Of the cases that run, the last has the longest plan.
    for (const scenario::Case& one : cases)
      if (!one.skip && !one.unsupported) spec.test_case = &one;
    ASSERT_NE(spec.test_case, nullptr) << name;
    const int world_size = spec.test_case->world_size;
    const auto plan_of = [&](int rank) { return text_of(plan_case(spec, rank, world_size, 0)); };
    std::vector<std::string> expected;
    for (int rank = 0; rank < world_size; ++rank) expected.push_back(plan_of(rank));
    EXPECT_GE(std::count(expected[0].begin(), expected[0].end(), '\n'), 8) << name;
    int num_defects_armed = 0;
    for (int i = 0; i < num_defects(); ++i) {
      const DefectInfo& info = defect_table()[i];
      if (info.place == "engine/autograd") continue;  // the dry run uses the recomputation of the engine
      const ArmedDefect armed(info.defect);
      ++num_defects_armed;
      for (const int rank : {0, world_size - 1})
        EXPECT_EQ(plan_of(rank), expected[static_cast<std::size_t>(rank)]) << name << ", " << info.name;
    }
    EXPECT_GE(num_defects_armed, 40) << name;
  }
}

}  // namespace
}  // namespace lockstep::run
