#include "harness/cli/mutate.hpp"

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/cli/step_mutants.hpp"
#include "harness/cli/test_support.hpp"

namespace lockstep::cli {
namespace {

using namespace testing_support;
using scenario::Case;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

// The first sum is checked. Nothing looks at the second.
constexpr const char* summing =
    "ranks: {world_size: [2], launch: [thread]}\n"
    "steps:\n"
    "  - let: {x: \"full([2], rank + 1)\", y: \"full([2], rank + 1)\"}\n"
    "  - all_reduce: {tensor: x, op: sum}\n"
    "  - if: rank >= 0\n"
    "    steps:\n"
    "      - note: a sum\n"
    "        all_reduce:\n"
    "          tensor: y\n"
    "          op: sum\n"
    "  - expect_equal: [x, 3]\n";

class Mutate : public testing::Test {
 protected:
  std::vector<Case> add(const std::string& text) {
    home_.add("sums", text);
    return scenario::expand(library_.load(home_.scenarios() + "/sums.yaml"), {});
  }
  Ended run(const std::vector<Case>& cases, MutateOptions options = {}) {
    return in_child([&] { return mutate(library_, cases, options); });
  }

  Home home_;
  scenario::Library library_{home_.scenarios()};
};

TEST_F(Mutate, FindsTheStepsThatBringAFeatureInBlocksToo) {
  const std::vector<FeatureStep> steps = feature_steps(*add(summing).front().scenario);
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[0].place.line, 6);
  EXPECT_EQ(steps[1].place.line, 10);
}

TEST_F(Mutate, FindsTheStepsOfEveryBranch) {
  const std::vector<Case> cases =
      add("ranks: {world_size: [2], launch: [thread]}\nsteps:\n  - let: {x: \"full([2], rank + 1)\"}\n"
          "  - if: rank > 1\n    steps:\n      - all_reduce: {tensor: x, op: sum}\n"
          "    else:\n      - all_reduce: {tensor: x, op: sum}\n"
          "  - choose: world_size\n    among:\n      1:\n        - all_reduce: {tensor: x, op: max}\n"
          "      2:\n        - all_reduce: {tensor: x, op: max}\n  - expect_equal: [x, 3]\n");
  std::vector<int> lines;
  for (const FeatureStep& step : feature_steps(*cases.front().scenario)) lines.push_back(step.place.line);
  EXPECT_THAT(lines, ElementsAre(8, 10, 14, 16));
}

TEST_F(Mutate, LeavesOutTheLinesOfOneStep) {
  const std::vector<Case> cases = add(summing);
  const std::string text = content_of(home_.scenarios() + "/sums.yaml");
  const std::vector<FeatureStep> steps = feature_steps(*cases.front().scenario);
  const std::string first = without_step(text, steps[0]);
  EXPECT_THAT(first, Not(HasSubstr("tensor: x")));
  EXPECT_THAT(first, HasSubstr("  - let: {left_out: 0}\n  - if: rank >= 0\n"));
  const std::string second = without_step(text, steps[1]);
  EXPECT_THAT(second, HasSubstr("    steps:\n      - let: {left_out: 0}\n\n\n\n  - expect_equal: [x, 3]\n"));
  EXPECT_THAT(second, HasSubstr("tensor: x"));
}

TEST_F(Mutate, LeavesOutCommentsWithinAStep) {
  const std::vector<Case> cases =
      add("ranks: {world_size: [2], launch: [thread]}\nsteps:\n  - let: {x: \"full([2], rank + 1)\"}\n"
          "  - all_reduce:\n# Over all ranks.\n      tensor: x\n      op: sum\n  - expect_equal: [x, 3]\n");
  const std::vector<FeatureStep> steps = feature_steps(*cases.front().scenario);
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_THAT(without_step(content_of(home_.scenarios() + "/sums.yaml"), steps[0]),
              HasSubstr("  - let: {left_out: 0}\n\n\n\n  - expect_equal: [x, 3]\n"));
}

// A run of several scenarios takes a setting that one of them has.
TEST_F(Mutate, TakesSettingsOfOtherScenarios) {
  MutateOptions options;
  options.expand.front().set = {"of_another=2"};
  const Ended ended = run(add(summing), options);
  EXPECT_THAT(ended.out, HasSubstr("2 steps left out: 1 noticed")) << ended.err;
}

// Without the verb the steps of the block run as they are, with the shards.
TEST_F(Mutate, KeepsTheStepsOfFullParameters) {
  const std::vector<Case> cases =
      add("ranks: {world_size: [2], launch: [thread]}\nsteps:\n  - model: Linear(2, 2)\n    as: model\n"
          "  - flat_shard: model\n  - note: full\n    summon_full_parameters:\n      model: model\n    steps:\n"
          "      - expect: model.weight.numel == 4\n");
  const std::vector<FeatureStep> steps = feature_steps(*cases.front().scenario);
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_THAT(without_step(content_of(home_.scenarios() + "/sums.yaml"), steps[2]),
              HasSubstr("  - note: full\n    if: rank >= 0\n\n    steps:\n      - expect: model.weight.numel"));
  const Ended ended = run(cases);
  EXPECT_EQ(ended.code, 1) << ended.out << ended.err;
  EXPECT_THAT(ended.out, HasSubstr("sums.yaml:7 flat_shard\n3 steps left out: 2 noticed"));
}

// A routine with checks is a test, and a delay may change nothing.
TEST_F(Mutate, LeavesRoutinesWithChecksAndDelaysAlone) {
  std::filesystem::create_directories(home_.scenarios() + "/lib");
  const std::string sum =
      "summary: A test.\nparameters: {value: tensor}\nsteps:\n  - all_reduce: {tensor: value, op: sum}\n";
  std::ofstream(home_.scenarios() + "/lib/checked.yaml") << "routine: checked\n"
                                                         << sum << "  - expect_equal: [value, 3]\n";
  std::ofstream(home_.scenarios() + "/lib/summed.yaml") << "routine: summed\n" << sum;
  const std::vector<Case> cases =
      add("ranks: {world_size: [2], launch: [thread]}\nsteps:\n"
          "  - let: {x: \"full([2], rank + 1)\", y: \"full([2], rank + 1)\"}\n  - delay: 1\n"
          "  - use: checked\n    with: {value: x}\n  - use: summed\n    with: {value: y}\n  - expect_equal: [y, 3]\n");
  const std::vector<FeatureStep> steps = feature_steps(*cases.front().scenario);
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_EQ(steps[0].place.line, 9);
}

TEST_F(Mutate, DoesNotReadAStepAmongOthersOnALine) {
  const std::vector<Case> cases =
      add("ranks: {world_size: [2], launch: [thread]}\nsteps:\n  - let: {x: \"ones([2])\"}\n"
          "  - {if: rank >= 0, steps: [{all_reduce: {tensor: x, op: sum}}]}\n  - expect_equal: [x, 2]\n");
  const Ended ended = run(cases);
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.out, HasSubstr("NOT READ"));
}

TEST_F(Mutate, ReportsTheStepThatNothingChecks) {
  MutateOptions options;
  options.results_file = home_ / "steps.jsonl";
  const Ended ended = run(add(summing), options);
  EXPECT_EQ(ended.code, 1) << ended.out << ended.err;
  EXPECT_THAT(ended.out, HasSubstr("sums.yaml:10 all_reduce\n"));
  EXPECT_THAT(ended.out, HasSubstr("2 steps left out: 1 noticed, 0 excused, 1 unnoticed, 0 wrongly excused"));
  EXPECT_THAT(content_of(options.results_file), HasSubstr("\"line\":6,\"verb\":\"all_reduce\",\"sight\":\"noticed\""));
}

TEST_F(Mutate, FindsTheRoutinesBesideAScenario) {
  std::filesystem::create_directories(home_ / "own/lib");
  std::ofstream(home_ / "own/lib/own_sum.yaml") << "routine: own_sum\nsummary: A test.\nparameters: {value: tensor}\n"
                                                   "steps:\n  - all_reduce: {tensor: value, op: sum}\n";
  std::ofstream(home_ / "own/own.yaml") << "scenario: own\nsummary: A test.\n"
                                           "ranks: {world_size: [2], launch: [thread]}\nsteps:\n"
                                           "  - let: {x: \"full([2], rank + 1)\", y: \"full([2], rank + 1)\"}\n"
                                           "  - use: own_sum\n    with: {value: x}\n"
                                           "  - all_reduce: {tensor: y, op: sum}\n  - expect_equal: [x, 3]\n";
  const Ended ended = run(scenario::expand(library_.load(home_ / "own/own.yaml"), {}));
  EXPECT_EQ(ended.code, 1) << ended.out << ended.err;
  EXPECT_THAT(ended.out, HasSubstr("own.yaml:8 all_reduce\n"));
  EXPECT_THAT(ended.out, HasSubstr("2 steps left out: 1 noticed, 0 excused, 1 unnoticed"));
}

TEST_F(Mutate, AcceptsAReasonAndRefusesAWrongOne) {
  std::string text = summing;
  text.replace(text.find("note: a sum"), 11, "note: \"unseen: nothing reads y\"");
  Ended ended = run(add(text));
  EXPECT_EQ(ended.code, 0) << ended.out << ended.err;
  EXPECT_THAT(ended.out, HasSubstr("1 noticed, 1 excused, 0 unnoticed"));
  text += "  - expect_equal: [y, 3]\n";
  ended = run(add(text));
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.out, HasSubstr("NOT EXCUSED"));
  EXPECT_THAT(ended.out, HasSubstr("sums.yaml:10 all_reduce (expect_equal)\n"));
}

// Without the sum the values are equal.
TEST_F(Mutate, NoticesAStepByTheCaseThatMustFail) {
  const Ended ended =
      run(add("ranks: {world_size: [2], launch: [thread]}\n"
              "expect_failure: [{when: true, reason: on purpose}]\nsteps:\n"
              "  - let: {x: \"full([2], rank + 1)\"}\n  - all_reduce: {tensor: x, op: sum}\n"
              "  - expect_equal: [x, rank + 1]\n"));
  EXPECT_EQ(ended.code, 0) << ended.out << ended.err;
  EXPECT_THAT(ended.out, HasSubstr("1 step left out: 1 noticed"));
}

// Only the first case checks the first sum, and it passes. Only the second case checks the second sum, and it fails.
TEST_F(Mutate, FailsForACaseThatFailsAsItIs) {
  const Ended ended =
      run(add("ranks: {world_size: [2], launch: [thread]}\nmatrix: {kind: [a, b]}\nsteps:\n"
              "  - let: {x: \"full([2], rank + 1)\", y: \"full([2], rank + 1)\"}\n"
              "  - all_reduce: {tensor: x, op: sum}\n  - all_reduce: {tensor: y, op: sum}\n"
              "  - {expect_equal: [x, 3], when: kind == 'a'}\n  - {expect_equal: [y, 4], when: kind == 'b'}\n"));
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.out, HasSubstr("sums does not pass as it is (expect_equal)\n"));
}

TEST_F(Mutate, FailsForAScenarioThatFailsAsItIs) {
  std::string text = summing;
  text += "  - expect_equal: [x, 4]\n";
  const Ended ended = run(add(text));
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.out, HasSubstr("sums does not pass as it is (expect_equal)\n"));
}

}  // namespace
}  // namespace lockstep::cli
