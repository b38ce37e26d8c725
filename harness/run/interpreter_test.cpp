// How the interpreter walks steps: scopes, routines, loops, branches, hooks.
#include "harness/run/interpreter.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/run/test_support.hpp"

namespace lockstep::run {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing_support::Ran;
using testing_support::run_steps;
using testing_support::TextOptions;
using verdict::Status;

TEST(Interpreter, RoutinesHaveTheirOwnScope) {
  TextOptions options;
  options.routines =
      "double\n---\nroutine: double\nsummary: Twice.\nparameters:\n  x: any\n  by: {type: integer, default: 2}\n"
      "gives: [twice]\nsteps:\n  - let: {twice: x * by, inner: 5}\n  - expect: twice == 6\n";
  const Ran ran = run_steps(R"yaml(
  - let: {x: rank + 1, inner: rank + 7}
  - use: double
    with: {x: 3}
    as: {twice: six}
  - expect: [six == 6, x == 1, inner == 7]
)yaml",
                            options);
  EXPECT_PASS(ran);
  EXPECT_EQ(ran.evidence().conditions, 4);
  const Ran wrong = run_steps(R"yaml(
  - use: double
    with: {x: 4}
    as: {twice: eight}
  - expect: eight == 8
)yaml",
                              options);
  EXPECT_EQ(wrong.result.status, Status::FAIL);
  EXPECT_EQ(wrong.outcomes[0].failures[0].scenario_line, 3);
}

TEST(Interpreter, TheDefaultNoneFitsEveryType) {
  for (const char* type :
       {"any", "integer", "number", "boolean", "tensor", "model", "modules", "optimizer", "mesh", "list", "map"}) {
    TextOptions options;
    options.routines = str("absent\n---\nroutine: absent\nsummary: Nothing is given.\nparameters:\n  x: {type: ", type,
                           ", default: none}\nsteps:\n  - expect_equal: [\"full([2], 1 if x == none else 2)\", 1]\n");
    const Ran ran = run_steps("\n  - use: absent\n", options);
    EXPECT_PASS(ran) << type;
  }
}

TEST(Interpreter, ARoutineTakesThePathsOfModules) {
  TextOptions options;
  options.routines =
      "drawn\n---\nroutine: drawn\nsummary: Draws the parameters of modules again.\nparameters:\n  parts: modules\n"
      "steps:\n  - reset_parameters: parts\n  - expect: len(parts) == 2\n";
  for (const char* parts : {"m.*", "[m.0, m.1]", "[m.*, m.0]", "\"${[m.0, m.1]}\""}) {
    const Ran ran = run_steps(str("\n  - seed: 1\n  - model: Sequential(Linear(2, 2), Linear(2, 2))\n    as: m\n"
                                  "  - let: {before: \"[clone(m.0.weight), clone(m.1.bias)]\"}\n"
                                  "  - use: drawn\n    with: {parts: ",
                                  parts,
                                  "}\n  - expect_different: [m.0.weight, \"before[0]\"]\n"
                                  "  - expect_different: [m.1.bias, \"before[1]\"]\n"),
                              options);
    EXPECT_PASS(ran) << parts;
  }
}

// A caller passes on an argument that it was not given itself.
TEST(Interpreter, NoneIsNoArgumentWhereItIsTheDefault) {
  for (const char* type : {"integer", "number", "boolean", "tensor", "model", "optimizer", "mesh", "list", "map"}) {
    TextOptions options;
    const auto routine = [type](const char* preset) {
      return str("absent\n---\nroutine: absent\nsummary: Nothing is given.\nparameters:\n  x: {type: ", type, preset,
                 "}\nsteps:\n  - expect_equal: [\"full([2], 1 if x == none else 2)\", 1]\n");
    };
    const std::string steps = "\n  - let: {given: none}\n  - use: absent\n    with: {x: given}\n";
    options.routines = routine(", default: none");
    const Ran ran = run_steps(steps, options);
    EXPECT_PASS(ran) << type;
    options.routines = routine("");
    EXPECT_THAT(run_steps(steps, options).outcomes[0].failures[0].message, HasSubstr(str("is of type ", type))) << type;
  }
}

// A routine ties a parameter of a model that it does not get.
TEST(Interpreter, ATieInARoutineKeepsTheNameOfTheParameter) {
  TextOptions options;
  options.routines =
      "tie\n---\nroutine: tie\nsummary: Ties a weight.\nparameters: {t: tensor, m: model}\n"
      "steps:\n  - set_parameter: {parameter: m.1.weight, to: t}\n";
  const Ran ran = run_steps(R"yaml(
  - model: Sequential(Linear(2, 2))
    as: a
  - model: Sequential(Linear(2, 2), Linear(2, 2))
    as: b
  - use: tie
    with: {t: a.0.weight, m: b}
  - expect: "[a.0.weight.name, b.1.weight.name] == ['0.weight', '0.weight']"
)yaml",
                            options);
  EXPECT_PASS(ran);
}

TEST(Interpreter, RunsLoopsAndBranches) {
  const Ran ran = run_steps(R"yaml(
  - let: {seen: []}
  - for_each: {name: [a, b], in: "[[1, 2], [3, 4]]", index: k}
    steps:
      - let: {seen: "seen + [a * b + k]"}
  - repeat: 2
    steps:
      - let: {seen: "seen + [0]"}
  - if: len(seen) == 4
    steps:
      - let: {seen: "seen + ['then']"}
    else:
      - let: {seen: "seen + ['else']"}
  - choose: len(seen)
    among:
      4:
        - let: {seen: "[]"}
      5:
        - let: {seen: "seen + [true]"}
  - expect: "seen == [2, 13, 0, 0, 'then', true]"
  - choose: 9
    among:
      1:
        - let: {seen: 1}
    raises: no branch for 9
  - for_each: {name: x, in: "[x for x in seen if false]"}
    steps:
      - let: {y: x}
    raises: empty
  - drop: seen
  - let: {seen: 1}
)yaml");
  EXPECT_PASS(ran);
  EXPECT_EQ(ran.evidence().errors_expected, 2);
}

TEST(Interpreter, BuildsAndCallsModelsOfTheScenario) {
  TextOptions options;
  options.head = R"yaml(models:
  Twice:
    arguments: {dim: required, scale: 3}
    children:
      inner: Linear(dim, dim)
    parameters: {gain: "full([dim], 2.0)"}
    buffers: {shift: ones(dim)}
    methods:
      forward(x, extra=none):
        h: inner(inner(x)) * gain + shift
        return: h * scale if extra == none else h + extra
      half(x): inner(x) / 2
)yaml";
  const Ran ran = run_steps(R"yaml(
  - seed: 3
  - model: Twice(2)
    as: m
  - let:
      x: ones(1, 2)
      w: m.inner
  - expect_equal: [m(x), (w(w(x)) * m.gain + m.shift) * 3]
  - expect_equal: ["m(x, extra=x)", w(w(x)) * m.gain + m.shift + x]
  - expect_equal: [m.half(x), w(x) / 2]
  - expect_equal: [names(m), "['gain', 'inner.weight', 'inner.bias']"]
  - expect: m.gain.requires_grad and not m.shift.requires_grad
  - forward: {loss: sum(m(x))}
  - backward: loss
  - expect: m.inner.weight.grad != none and m.gain.grad.shape == [2]
  - copy: m
    as: n
  - expect_equal: [m, n]
  - assign: {to: n.gain, value: 1}
  - expect_different: [m.gain, n.gain]
)yaml",
                            options);
  EXPECT_PASS(ran);
}

TEST(Interpreter, HooksRunTheirStepsWithTheirNames) {
  const Ran ran = run_steps(R"yaml(
  - seed: 0
  - model: Net()
    as: m
  - optimizer: {type: SGD, model: m, lr: 1}
    as: opt
  - let: {seen: []}
  - hook: {modules: m.fc1, at: before_forward}
    steps:
      - let: {seen: "seen + ['before', path(module), inputs[0].shape, keys(named_inputs), recomputing]"}
  - hook: {modules: m.fc*, at: after_forward}
    steps:
      - let: {seen: "seen + [outputs.shape]"}
  - hook: {parameters: m.fc3.bias, at: after_gradient}
    steps:
      - let: {seen: "seen + [parameter.name]"}
  - hook: {modules: m.fc2, at: before_backward}
    steps:
      - let: {seen: "seen + ['back']"}
  - hook: {optimizer: opt, at: after_step}
    steps:
      - let: {seen: "seen + ['stepped']"}
      - expect: len(seen) > 5
  - forward: {loss: "sum(m(ones(1, 2)))"}
  - expect: "seen == ['before', 'fc1', [1, 2], [], false, [1, 2], [1, 2], [1, 2]]"
  - let: {seen: []}
  - backward: loss
  - expect: "seen == ['fc3.bias', 'back'] or seen == ['back', 'fc3.bias']"
  - let: {seen: "[1, 2, 3, 4, 5]"}
  - step: opt
  - expect: "seen[-1] == 'stepped'"
)yaml");
  EXPECT_PASS(ran);
}

TEST(Interpreter, FailureInHookIsReportedAtItsStep) {
  const Ran ran = run_steps(R"yaml(
  - model: Net()
    as: m
  - hook: {modules: m.fc2, at: after_forward}
    steps:
      - expect: outputs == none
      - let: {x: "[1][4]"}
  - let: {y: "m(ones(1, 2))"}
  - expect: y != none
)yaml");
  EXPECT_THAT(ran.failures(), ElementsAre(HasSubstr("expect 7: "), HasSubstr("let 8: index 4")));
}

}  // namespace
}  // namespace lockstep::run
