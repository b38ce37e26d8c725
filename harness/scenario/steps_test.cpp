// Reading steps: forms, arguments, types, and the rules of single verbs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/scenario/testing.hpp"

namespace lockstep::scenario {
namespace {

using testing::short_errors_of_steps;

TEST(Steps, ChecksForm) {
  EXPECT_EQ(short_errors_of_steps("  - barrier\n"),
            "t.yaml:5:5: a step is a map: write `barrier: ...`, or `barrier: {}`");
  EXPECT_EQ(short_errors_of_steps("  - barrier:\n"),
            "t.yaml:5:5: `barrier` has no value; write `barrier: {}` for none");
  EXPECT_EQ(short_errors_of_steps("  - when: true\n"), "t.yaml:5:5: a step without a verb");
  EXPECT_EQ(short_errors_of_steps("  - seed: 1\n    barrier: {}\n"),
            "t.yaml:6:5: a step has one verb; this step has `seed` already");
  EXPECT_EQ(short_errors_of_steps("  - seed: 1\n    whem: true\n"),
            "t.yaml:6:5: unknown key `whem` in a step; did you mean `when`?");
  EXPECT_EQ(short_errors_of_steps("  - seed: {valeu: 1}\n"),
            "t.yaml:5:5: `seed` needs `value`\n"
            "t.yaml:5:12: unknown argument `valeu` of `seed`; did you mean `value`?");
  EXPECT_EQ(short_errors_of_steps("  - seed: 1\n    as: s\n"), "t.yaml:6:9: `seed` has no result that `as` could name");
  EXPECT_EQ(short_errors_of_steps("  - seed: 1\n    steps: [{seed: 2}]\n"), "t.yaml:6:12: `seed` takes no `steps`");
  EXPECT_EQ(short_errors_of_steps("  - repeat: 2\n"), "t.yaml:5:5: `repeat` needs `steps`");
  EXPECT_EQ(short_errors_of_steps("  - choose: 2\n"), "t.yaml:5:5: `choose` needs `among`");
  EXPECT_EQ(short_errors_of_steps("  - repeat: 0\n    steps: [{seed: 1}]\n"),
            "t.yaml:5:13: times is 0; it must be from 1 to 2147483647");
  EXPECT_EQ(short_errors_of_steps("  - delay: 1e300\n  - delay: {ms: -1}\n  - delay: inf\n"),
            "t.yaml:5:12: ms is 1e+300; it must be from 0 to 3600000\n"
            "t.yaml:6:17: ms is -1; it must be from 0 to 3600000\n"
            "t.yaml:7:12: ms is inf; it must be from 0 to 3600000, and finite");
  // A step with `raises` may be wrong on purpose.
  EXPECT_EQ(short_errors_of_steps("  - delay: 1e300\n    raises: ms is\n"), "");
  EXPECT_EQ(short_errors_of_steps("  - send: 3\n"),
            "t.yaml:5:11: `send` takes its arguments by name: `tensor`, `to`, `mesh`, `async`");
  EXPECT_EQ(
      short_errors_of_steps("  - expect_equal: [1, rank, 3]\n"),
      "t.yaml:5:19: `expect_equal` as a list takes 2 items, got 3; within [] an expression with a comma, bracket or "
      "brace must be quoted");
  EXPECT_EQ(short_errors_of_steps("  - let: 3\n"),
            "t.yaml:5:10: `let` takes names and their expressions: {name: expression}");
}

TEST(Steps, ShowsWhereAnArgumentBelongs) {
  EXPECT_EQ(short_errors_of_steps(
                "  - model: Linear(2, 2)\n    as: m\n  - fully_shard: m\n    reshard_after_forward: false\n"),
            "t.yaml:8:5: `reshard_after_forward` is an argument of `fully_shard`; write it within the verb: "
            "`fully_shard: {modules: m, reshard_after_forward: false}`");
  EXPECT_EQ(short_errors_of_steps("  - model: Sequential(Linear(2, 2), ReLU())\n    device: cpu\n    as: m\n"),
            "t.yaml:6:5: `device` is an argument of `model`; write it within the verb: "
            "`model: {build: \"Sequential(Linear(2, 2), ReLU())\", device: cpu}`");
}

TEST(Steps, ChecksTypesOfArguments) {
  const std::string model = "  - model: Net()\n    as: m\n";
  EXPECT_EQ(short_errors_of_steps("  - seed: 1.5\n"), "t.yaml:5:11: `value`: expected an integer, got 1.5");
  EXPECT_EQ(short_errors_of_steps("  - seed: rank == 0\n"),
            "t.yaml:5:16: `value`: expected an integer, got a condition");
  EXPECT_EQ(short_errors_of_steps("  - seed: 1\n    when: 1\n"),
            "t.yaml:6:11: `when`: expected true, false or a condition, got 1");
  EXPECT_EQ(short_errors_of_steps(model + "  - backward: 3\n"), "t.yaml:7:15: `loss`: expected a tensor, got 3");
  EXPECT_EQ(short_errors_of_steps(model + "  - to: {model: m, dtype: \"'float64'\"}\n"),
            "t.yaml:7:28: `dtype`: expected a type such as float32, got the text 'float64'");
  EXPECT_EQ(short_errors_of_steps(model + "  - optimizer: {type: Adm, model: m, lr: 1}\n    as: o\n"),
            "t.yaml:7:23: `type` cannot be `Adm`; it is one of SGD, Adam, AdamW; did you mean `Adam`?");
  EXPECT_EQ(short_errors_of_steps(model + "  - replicate: m..a\n"),
            "t.yaml:7:16: `m..a` is not a path: it has an empty component");
  EXPECT_EQ(short_errors_of_steps(model + "  - replicate: \"m.[01\"\n"),
            "t.yaml:7:17: `m.[01` is not a path: a `[` is not closed");
  EXPECT_EQ(short_errors_of_steps(model + "  - replicate: parameters(m)\n"),
            "t.yaml:7:16: `parameters(m)` is not a path; write an expression as `${...}`\n"
            "t.yaml:7:16: unknown name `parameters(m)`; no earlier step binds it");
  EXPECT_EQ(short_errors_of_steps(model + "  - replicate: '*.a'\n"),
            "t.yaml:7:17: a path must begin with a name; `*` is a pattern");
  EXPECT_EQ(short_errors_of_steps("  - seed: ${rank}\n"),
            "t.yaml:5:11: unexpected `$`; this is an expression already, so write it without `${}`");
  EXPECT_EQ(short_errors_of_steps("  - observe: [gradients]\n    steps: [{seed: 1}]\n"),
            "t.yaml:5:15: unknown purpose of memory `gradients`; did you mean `gradient`?");
  EXPECT_EQ(short_errors_of_steps(model + "  - optimizer: {type: SGD, lr: 1}\n    as: o\n"),
            "t.yaml:7:5: `optimizer` needs one of `model`, `parameters` and `groups`");
  EXPECT_EQ(short_errors_of_steps("  - write: {file: /a.json, value: rank}\n"),
            "t.yaml:5:19: `write` writes to the case's folder only; a leading `/` is allowed in `read` only");
  EXPECT_EQ(short_errors_of_steps("  - read: ../a.json\n    as: v\n"),
            "t.yaml:5:11: `..` is not allowed in the name of a file");
}

TEST(Steps, ChecksNamesOfCollectives) {
  const std::string window = "  - observe: {}\n    as: w\n    steps: [{barrier: {}}]\n";
  EXPECT_EQ(short_errors_of_steps(window + "  - expect_collectives: {during: w, exactly: {usr: {barier: 1}}}\n"),
            "t.yaml:8:47: unknown family `usr`; did you mean `user`?\n"
            "t.yaml:8:53: unknown collective `barier`; did you mean `barrier`?");
  EXPECT_EQ(short_errors_of_steps(window + "  - expect_collectives: {during: w}\n"),
            "t.yaml:8:5: `expect_collectives` needs `exactly`, `total` or `bytes`");
  EXPECT_EQ(short_errors_of_steps(window + "  - expect_collectives: {during: w, total: 1.5}\n"),
            "t.yaml:8:44: `total`: expected an integer, got 1.5");
  EXPECT_EQ(short_errors_of_steps("  - barrier: {}\n    as: h\n"),
            "t.yaml:5:5: `barrier` gives a handle only with `async: true`");
}

TEST(Steps, DoesNotReportConsequencesOfAnError) {
  EXPECT_EQ(short_errors_of_steps("  - modle: Net()\n    as: m\n  - replicate: m\n"),
            "t.yaml:5:5: unknown verb `modle`; did you mean `model`?");
  EXPECT_EQ(
      short_errors_of_steps("  - let: {a: f(1, 2), b: 3}\n  - seed: a + b\n"),
      "t.yaml:5:15: the expression ends too soon: `(` is not closed; within {} and [] an expression with a comma, "
      "bracket or brace must be quoted");
  EXPECT_EQ(short_errors_of_steps("  - seed: yes\n"),
            "t.yaml:5:11: the plain word `yes` is refused, because YAML 1.1 gives it another meaning; write `true`, or "
            "quote it");
}

}  // namespace
}  // namespace lockstep::scenario
