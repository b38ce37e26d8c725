#include "harness/run/case_runner.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/run/test_support.hpp"

namespace lockstep::run {
namespace {

using ::testing::HasSubstr;
using testing_support::first_failure;
using testing_support::Ran;
using testing_support::run_steps;
using testing_support::TextOptions;
using verdict::Status;

TEST(CaseRunner, RaisesCountsExpectedError) {
  const Ran ran = run_steps(R"yaml(
  - let: {x: "ones(2, 3) @ ones(2, 3)"}
    raises: matmul
  - let: {x: 1}
  - expect: x == 1
  - let:
      y: 1 // 0
    raises: {message: "has no*value", when: rank == 0, within_ms: 10000}
)yaml");
  EXPECT_PASS(ran);
  EXPECT_EQ(ran.evidence().errors_expected, 2);
}

TEST(CaseRunner, RaisesFailsWithoutErrorOrWithAnother) {
  const Ran ran = run_steps(R"yaml(
  - let: {x: 1}
    raises: never
  - let: {x: "[1][5]"}
    raises: something else
  - let: {x: "[1][5]"}
    raises: "out of*range"
)yaml");
  const std::vector<std::string> failures = ran.failures();
  ASSERT_EQ(failures.size(), 2u);
  EXPECT_THAT(failures[0], HasSubstr("let 3: no error was raised"));
  EXPECT_THAT(failures[1], HasSubstr("index 5 is out of range"));
  EXPECT_THAT(failures[1], HasSubstr("something else"));
  EXPECT_EQ(ran.evidence().errors_expected, 1);
}

TEST(CaseRunner, ErrorFailsAtItsStepWithIteration) {
  const Ran ran = run_steps(R"yaml(
  - repeat: {times: 4, index: i}
    steps:
      - let: {x: "[1, 2][i]"}
  - expect: 1 == i
)yaml");
  EXPECT_EQ(ran.result.status, Status::FAIL);
  EXPECT_EQ(first_failure(ran), "let 5: index 2 is out of range: the list has 2");
  EXPECT_EQ(ran.result.failure->iteration, 2);
}

TEST(CaseRunner, UnboundNameIsInvalid) {
  const Ran ran = run_steps(R"yaml(
  - let: {x: 1}
    when: rank == 7
  - expect: x == 1
)yaml");
  EXPECT_EQ(ran.result.status, Status::INVALID) << first_failure(ran);
}

TEST(CaseRunner, UnreachedCheckIsInvalidUnlessParametersExcludeIt) {
  const std::string steps = R"yaml(
  - let: {chosen: part == 'a', late: rank + 1}
  - expect: late == 1
  - expect: late == 2
    when: SOME
)yaml";
  TextOptions options;
  options.head = "matrix: {part: [b]}\n";
  const auto with = [&](const std::string& condition) {
    std::string text = steps;
    text.replace(text.find("SOME"), 4, condition);
    return run_steps(text, options);
  };
  EXPECT_EQ(with("late == 2").result.status, Status::INVALID);
  EXPECT_PASS(with("part == 'a'"));
  EXPECT_PASS(with("chosen"));
  EXPECT_PASS(with("world_size > 1"));
}

TEST(CaseRunner, RunsOnSimulatedAccelerator) {
  TextOptions options;
  options.device = "sim";
  const Ran ran = run_steps(R"yaml(
  - seed: 0
  - model: Net()
    as: m
  - forward: {loss: "sum(m(ones(1, 2)))"}
  - backward: loss
  - expect: [m.fc1.weight.device == 'sim', m.fc1.weight.grad.device == 'sim', device_index == 0]
  - delay: 1
  - let: {x: "ones(2, 2, device='cpu')"}
  - expect: x.device == 'cpu'
  - expect_equal: ["to(x, 'sim')", 1]
)yaml",
                            options);
  EXPECT_PASS(ran);
}

}  // namespace
}  // namespace lockstep::run
