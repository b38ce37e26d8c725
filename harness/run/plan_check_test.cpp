// The plan and the run agree on cases that train, and the plan sees it when they do not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/core/defects.hpp"
#include "harness/run/test_support.hpp"

namespace lockstep::run {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing_support::Ran;
using testing_support::run_steps;
using testing_support::TextOptions;

TextOptions ranks(int world_size) {
  TextOptions options;
  options.world_size = world_size;
  return options;
}

// What the plan says of rank 0.
std::vector<std::string> plan_failures(const Ran& ran) {
  std::vector<std::string> found;
  for (const std::string& text : ran.failures())
    if (text.starts_with("plan ")) found.push_back(text);
  return found;
}

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

class ArmedDefect {
 public:
  explicit ArmedDefect(Defect defect) { arm_defect(defect); }
  ~ArmedDefect() { arm_defect(Defect::none); }
};

TEST(PlanCheck, AReplicatedModuleDoesWhatIsPlanned) {
  EXPECT_THAT(plan_failures(run_steps(replicated_steps, ranks(2))), IsEmpty());
}

TEST(PlanCheck, ABucketThatIsNotSentIsSeen) {
  const ArmedDefect armed(Defect::replicate_bucket_not_sent);
  const std::vector<std::string> found = plan_failures(run_steps(replicated_steps, ranks(2)));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_THAT(found[0], HasSubstr("data_parallel/all_reduce over dp of 2 in backward for net"));
  EXPECT_THAT(found[0], HasSubstr("planned 7 of"));
  EXPECT_THAT(found[0], HasSubstr("observed 4 of"));
}

TEST(PlanCheck, WhatDependsOnValuesNeedsAReason) {
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
  EXPECT_THAT(plan_failures(run_steps(steps, unplanned)), IsEmpty());
}

TEST(PlanCheck, ValuesThatNoStepNeedsAreNotAsked) {
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
  EXPECT_THAT(plan_failures(ran), IsEmpty());
}

TEST(PlanCheck, AStepThatMustFailIsNoPartOfThePlan) {
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
  EXPECT_THAT(plan_failures(ran), IsEmpty());
}

}  // namespace
}  // namespace lockstep::run
