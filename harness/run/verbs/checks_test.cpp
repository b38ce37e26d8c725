// The check verbs: their evidence, and the messages of failed checks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/run/test_support.hpp"

namespace lockstep::run {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing_support::first_failure;
using testing_support::Ran;
using testing_support::run_steps;
using testing_support::TextOptions;
using verdict::Status;

TEST(CheckVerbs, CountsConditionsApartFromComparisons) {
  const Ran ran = run_steps(R"yaml(
  - let: {a: rank + 1, b: a + 1}
  - expect: b == 2
  - expect: [a < b, "a in [1, 2]"]
)yaml");
  EXPECT_PASS(ran);
  EXPECT_EQ(ran.evidence().conditions, 3);
  EXPECT_EQ(ran.evidence().comparisons, 0);
  EXPECT_EQ(ran.evidence().same_bits, 0);
  EXPECT_EQ(ran.evidence().trivial, 0);
}

TEST(CheckVerbs, FailedConditionShowsLineAndBothSides) {
  const Ran ran = run_steps(R"yaml(
  - let: {a: rank + 3}
  - expect: a == 4
  - expect: a == 3
)yaml");
  EXPECT_EQ(ran.result.status, Status::FAIL);
  EXPECT_THAT(ran.failures(), ElementsAre("expect 4: `a == 4` does not hold: left is 3, right is 4"));
  EXPECT_EQ(ran.result.failure->file, "text.yaml");
  EXPECT_EQ(ran.result.failure->rank, 0);
  EXPECT_EQ(ran.evidence().conditions, 1);
}

TEST(CheckVerbs, NoEvidenceIsInvalid) {
  EXPECT_EQ(run_steps("  - let: {a: 1}\n").result.status, Status::INVALID);
  // Zeros, shared storage and empty tensors are never evidence.
  const Ran ran = run_steps(R"yaml(
  - let: {x: zeros(3), y: ones(2)}
  - expect_equal: [x, 0]
  - expect_equal: [y, y]
  - expect_equal: ["zeros(0)", "zeros(0)"]
  - expect_equal: [y.grad, none]
)yaml");
  EXPECT_EQ(ran.result.status, Status::INVALID);
  EXPECT_EQ(ran.evidence().trivial, 4);
  EXPECT_EQ(ran.evidence().comparisons, 0);
}

// Readings of a window in which nothing happened do not depend on the engine.
TEST(CheckVerbs, EmptyWindowIsTrivial) {
  TextOptions options;
  options.routines =
      "bounded\n---\nroutine: bounded\nsummary: A bound.\nparameters: {peak: integer}\nsteps:\n  - expect: peak < 10\n";
  const Ran ran = run_steps(R"yaml(
  - let: {held: ones(64)}
  - observe: {memory: [gathered]}
    as: gathered
    steps:
      - let: {x: ones(4)}
  - observe: {}
    as: idle
    steps:
      - let: {a: 1}
  - expect: gathered.peak_bytes <= 100
  - let: {peaks: "[gathered.peak_bytes]", later: 3}
  - expect: ["all([p <= 100 for p in peaks])", idle.seconds < 5]
  - let: {peak: "peaks[0] + 1"}
  - expect: peak < 10
  - expect: "not has(counts(idle), 'data_parallel/all_reduce')"
  - expect_equal: [idle.peak_bytes, 272]
  - expect_different: [gathered.peak_bytes, 1]
  - for_each: {name: one, in: peaks}
    steps:
      - expect: one == 0
  - expect_collectives: {during: idle, exactly: {}}
  - expect_collectives: {during: idle, total: 0}
  - use: bounded
    with: {peak: gathered.peak_bytes}
)yaml",
                            options);
  EXPECT_EQ(ran.result.status, Status::INVALID) << first_failure(ran);
  EXPECT_EQ(ran.evidence().trivial, 1 + 2 + 1 + 1 + 1 + 1 + 1 + 1 + 1 + 1);
  EXPECT_EQ(ran.evidence().conditions, 0);
}

TEST(CheckVerbs, WindowWithWorkIsEvidence) {
  const Ran ran = run_steps(R"yaml(
  - let: {held: ones(64)}
  - observe: {memory: [activation]}
    as: run
    steps:
      - let: {x: ones(4)}
  - expect: [run.peak_bytes >= 16, run.seconds < 50]
  - let: {peak: 3}
  - expect: "peak < 10 and not has(counts(run), 'data_parallel/all_reduce')"
  - expect_collectives: {during: run, exactly: {}}
  - expect_collectives: {during: run, total: 0}
)yaml");
  EXPECT_PASS(ran);
  EXPECT_EQ(ran.evidence().trivial, 0);
  EXPECT_EQ(ran.evidence().conditions, 3);
  EXPECT_EQ(ran.evidence().collectives_checked, 2);
}

TEST(CheckVerbs, EqualComparesValuesListsMapsAndModels) {
  const Ran ran = run_steps(R"yaml(
  - seed: 1
  - model: Net()
    as: a
  - copy: a
    as: b
  - expect_equal: [a, b]
  - let: {one: rank + 1}
  - expect_equal: ["[1.0, 'two', [3]]", "[one, 'two', [3]]"]
  - expect_equal: ["{'x': ones(2)}", "{'x': full([2], 1.0)}"]
  - expect_equal: [ones(2) * 3, 3]
)yaml");
  EXPECT_PASS(ran);
  EXPECT_EQ(ran.evidence().comparisons, 6 + 3 + 1 + 1);
  EXPECT_EQ(ran.evidence().elements, 3 * (4 + 2) + 3 + 2 + 2);
  EXPECT_EQ(ran.evidence().same_bits, 11);
  EXPECT_EQ(ran.evidence().bits_required, 0);
}

TEST(CheckVerbs, EqualReportsPlaceAndDifference) {
  const Ran ran = run_steps(R"yaml(
  - seed: 1
  - model: Net()
    as: a
  - copy: a
    as: b
  - assign: {to: b.fc2.bias, value: 7}
  - expect_equal: [a, b]
  - let: {one: rank + 1}
  - expect_equal: ["[one, 2]", "[1, 2, 3]"]
  - expect_equal: ["{'a': one}", "{'b': 1}"]
  - expect_equal: [ones(2), "ones(3)"]
  - expect_equal: [one, true]
)yaml");
  const std::vector<std::string> failures = ran.failures();
  ASSERT_EQ(failures.size(), 5u);
  EXPECT_THAT(failures[0], HasSubstr("expect_equal 9: a.fc2.bias and b.fc2.bias: "));
  EXPECT_THAT(failures[1], HasSubstr("has 2 items"));
  EXPECT_THAT(failures[2], HasSubstr("is 'a', of"));
  EXPECT_THAT(failures[3], HasSubstr("(2)"));
  EXPECT_THAT(failures[4], HasSubstr("true"));
}

TEST(CheckVerbs, CompareValuesOfTheirStep) {
  const Ran ran = run_steps(R"yaml(
  - let: {x: ones(3), y: ones(3)}
  - expect_equal: [x, y]
  - assign: {to: x, value: 5}
  - expect_different: [x, y]
  - expect_equal: [x, y]
)yaml");
  ASSERT_EQ(ran.failures().size(), 1u);
  EXPECT_THAT(ran.failures()[0], HasSubstr("expect_equal 7: "));
  EXPECT_EQ(ran.evidence().comparisons, 3);
}

TEST(CheckVerbs, EqualRequiresGradientsOnBothSidesOrNeither) {
  const Ran ran = run_steps(R"yaml(
  - seed: 1
  - model: Net()
    as: a
  - copy: a
    as: b
  - forward: {loss: "sum(a(ones(1, 2)))"}
  - backward: loss
  - expect_equal: [a, b]
  - expect_equal: {actual: a, expected: b, gradients: false}
  - forward: {loss: "sum(b(ones(1, 2)))"}
  - backward: loss
  - expect_equal: [a, b]
)yaml");
  ASSERT_EQ(ran.failures().size(), 1u);
  EXPECT_THAT(ran.failures()[0], HasSubstr("a.fc1.weight.grad is there, b.fc1.weight.grad is none"));
}

TEST(CheckVerbs, DifferentFailsOnEqualAndOnNotANumber) {
  const Ran ran = run_steps(R"yaml(
  - let: {x: ones(3), nan: "zeros(3) / zeros(3)"}
  - expect_different: [x, 1]
  - expect_different: [x, nan]
  - expect_different: [x, 2]
  - expect_equal: [nan, nan]
)yaml");
  const std::vector<std::string> failures = ran.failures();
  ASSERT_EQ(failures.size(), 3u);
  EXPECT_THAT(failures[0], HasSubstr("expect_different 4: x and 1 agree"));
  EXPECT_THAT(failures[1], HasSubstr("not-a-number"));
  EXPECT_THAT(failures[2], HasSubstr("expect_equal 7"));
}

TEST(CheckVerbs, NoteIsShownButIsNoExpectedMessage) {
  const auto run_expecting = [](const char* message) {
    TextOptions options;
    options.head = str("expect_failure: [{when: true, reason: known, message: ", message, "}]\n");
    return run_steps("  - let: {x: ones(3)}\n  - expect_equal: [x, 2]\n    note: the sizes do not fit\n", options);
  };
  const Ran noted = run_expecting("the sizes do not fit");
  EXPECT_EQ(noted.result.status, Status::FAIL);
  EXPECT_THAT(noted.result.failure->message, HasSubstr(" [the sizes do not fit]"));
  EXPECT_EQ(run_expecting("3 of 3").result.status, Status::XFAIL);
}

TEST(CheckVerbs, BitsRequiredAppliesToFloat32) {
  const std::string steps = R"yaml(
  - let: {x: "full([3], 1.0)", y: "full([3], 1.0000001)"}
  - expect_equal: [x, y]
  - expect_equal: ["to(x, float64)", "to(x, float64) + 1e-9"]
)yaml";
  EXPECT_PASS(run_steps(steps));
  TextOptions options;
  options.head = "bits: required\n";
  const Ran ran = run_steps(steps, options);
  ASSERT_EQ(ran.failures().size(), 1u);
  EXPECT_THAT(ran.failures()[0], HasSubstr("bits"));
  EXPECT_EQ(ran.evidence().bits_required, 1);
}

TEST(CheckVerbs, ToleranceScalesWithLargestElement) {
  const Ran ran = run_steps(R"yaml(
  - let: {x: rank + 1.05}
  - expect_equal: {actual: "[100.0, x]", expected: "[100.0, 1.0]", rtol: 0, atol: 0, of_largest: 1e-3}
  - expect_equal: {actual: x, expected: 1.0, rtol: 0, atol: 0, of_largest: 1e-3}
  - expect_equal: {actual: x, expected: 1.0, atol: 0.1}
)yaml");
  ASSERT_EQ(ran.failures().size(), 1u);
  EXPECT_THAT(ran.failures()[0], HasSubstr("expect_equal 5"));
}

}  // namespace
}  // namespace lockstep::run
