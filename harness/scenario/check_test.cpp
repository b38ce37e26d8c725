// Checks across the steps of a file: names, calls, evidence, models and hooks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/scenario/testing.hpp"

namespace lockstep::scenario {
namespace {

using testing::errors_of_steps;
using ::testing::HasSubstr;
using testing::short_errors;
using testing::short_errors_of_steps;

TEST(Check, FollowsNamesThroughSteps) {
  EXPECT_EQ(short_errors_of_steps("  - seed: n\n  - let: {n: 1}\n"),
            "t.yaml:5:11: `n` is used before it is bound; line 6 binds it");
  EXPECT_EQ(short_errors_of_steps("  - let: {number: 1}\n  - seed: nubmer\n"),
            "t.yaml:6:11: unknown name `nubmer`; did you mean `number`?");
  EXPECT_EQ(errors_of_steps("  - repeat: {times: 2, index: i}\n    steps: [{let: {a: i}}]\n  - seed: a + i\n"), "");
  EXPECT_EQ(short_errors_of_steps("  - let: {a: 1, b: a + c, c: 2}\n"),
            "t.yaml:5:24: `c` is used before it is bound; line 5 binds it");
  EXPECT_EQ(short_errors_of_steps("  - drop: a\n"), "t.yaml:5:11: unknown name `a`; no earlier step binds it");
  EXPECT_EQ(short_errors_of_steps("  - drop: n\n", "parameters: {n: 1}\n"),
            "t.yaml:6:11: `n` is known before launch and cannot be dropped");
  EXPECT_EQ(short_errors_of_steps("  - let: {world_size: 3}\n"),
            "t.yaml:5:11: `world_size` is a variable and cannot be bound");
  EXPECT_EQ(short_errors_of_steps("  - let: {n: 3}\n", "parameters: {n: 1}\n"),
            "t.yaml:6:11: `n` is a parameter or matrix name and cannot be bound");
  EXPECT_EQ(short_errors_of_steps("  - let: {if: 3}\n"),
            "t.yaml:5:11: `if` is a word of the language and cannot be a name");
  EXPECT_EQ(short_errors_of_steps("  - let: {a: sum}\n"), "t.yaml:5:14: `sum` is a function; call it: `sum(...)`");
  EXPECT_EQ(errors_of_steps("  - let: {sum: 3}\n  - seed: sum\n"), "");
  EXPECT_EQ(errors_of_steps("  - let: {a: '[x for x in range(3) if x > 1]'}\n"), "");
  EXPECT_EQ(short_errors_of_steps("  - let: {a: '[x for x in x]'}\n"),
            "t.yaml:5:27: unknown name `x`; no earlier step binds it");
  EXPECT_THAT(errors_of_steps("  - let: {a: '[x for x, x in [[1, 2]]]'}\n"), HasSubstr("`x` follows `for` twice"));
  EXPECT_THAT(errors_of_steps("  - for_each: {name: [a, b], in: '[[1, 2]]', index: a}\n    steps: [{seed: a}]\n"),
              HasSubstr("the loop binds `a` twice"));
  // Stages run on newly launched ranks, so names are not kept.
  EXPECT_EQ(short_errors(
                "scenario: a\nsummary: b\nranks: {world_size: 2}\nstages:\n  - name: one\n    steps: [{let: {a: 1}}]\n"
                "  - name: two\n    steps: [{seed: a}]\n"),
            "t.yaml:8:20: unknown name `a`; no earlier step binds it");
}

TEST(Check, RefusesChecksWithoutEvidence) {
  EXPECT_THAT(errors_of_steps("  - expect: 1 == 1\n"), HasSubstr("t.yaml:5:15: a condition of constants only"));
  EXPECT_THAT(errors_of_steps("  - expect: world_size > n\n", "parameters: {n: 1}\n"), HasSubstr("constants only"));
  EXPECT_THAT(errors_of_steps("  - expect: [rank >= 0, 'len([1]) == 1']\n"),
              HasSubstr("t.yaml:5:35: a condition of constants"));
  EXPECT_EQ(errors_of_steps("  - expect: rank >= 0\n"), "");
  EXPECT_THAT(errors_of_steps("  - expect_equal: [2, 2]\n"), HasSubstr("t.yaml:5:20: a comparison of constants only"));
  EXPECT_THAT(errors_of_steps("  - expect_equal: {actual: n, expected: \"[1, world_size]\"}\n", "parameters: {n: 1}\n"),
              HasSubstr("a comparison of constants only"));
  EXPECT_THAT(errors_of_steps("  - expect_different: [\"len('ab')\", 3]\n"), HasSubstr("constants only"));
  EXPECT_THAT(errors_of_steps("  - expect_across: {value: 3}\n"), HasSubstr("constants only"));
  EXPECT_EQ(errors_of_steps("  - let: {a: rank}\n  - expect_equal: [2, a]\n  - expect_different: [a, 3]\n"), "");
  // Keywords and names of comprehensions may be spelled as names that depend on the run.
  EXPECT_EQ(errors_of_steps("  - let: {x: rank}\n  - expect: round(x=x) == 3\n"
                            "  - expect: \"x == sum([x for x in range(3)])\"\n"),
            "");
  EXPECT_THAT(errors_of_steps("  - expect: \"3 == sum([x for x in range(3)])\"\n"), HasSubstr("constants only"));
  EXPECT_EQ(errors_of_steps("  - expect_equal: [ones(2), 1]\n  - expect_across: {value: rank, same: false}\n"), "");
  EXPECT_THAT(errors_of_steps("  - barrier: {}\n    raises: '**'\n"),
              HasSubstr("t.yaml:6:13: the message under `raises` matches every error"));
  EXPECT_THAT(errors_of_steps("  - barrier: {}\n    raises: {message: ''}\n"), HasSubstr("matches every error"));
  EXPECT_THAT(errors_of_steps("  - barrier: {}\n    raises: {when: true}\n"), HasSubstr("`raises` needs `message`"));
}

TEST(Check, FollowsConstantsThroughLet) {
  EXPECT_THAT(errors_of_steps("  - let: {a: 2}\n  - expect: a == 2\n"),
              HasSubstr("t.yaml:6:15: a condition of constants only"));
  EXPECT_THAT(errors_of_steps("  - forward: {a: n + 1, b: \"[a, world_size]\"}\n  - expect_equal: [\"[3, 2]\", b]\n",
                              "parameters: {n: 2}\n"),
              HasSubstr("a comparison of constants only"));
  EXPECT_THAT(errors_of_steps("  - let: {a: {b: 1}}\n  - if: rank == 0\n    steps: [{expect_across: {value: a.b}}]\n"),
              HasSubstr("a comparison of constants only"));
  // The run decides about these names, or about their values.
  const std::string one = "  - let: {a: 1}\n";
  const std::string hooked = "  - model: Net()\n    as: m\n  - hook: {modules: m, at: before_forward}\n";
  for (const std::string& binding : std::vector<std::string>{
           "  - let: {a: rank}\n", "  - let: {a: ones(2)}\n", one + "    when: rank == 0\n",
           "  - let: {a: 1 / 0}\n    raises: zero\n", "  - if: rank == 0\n    steps: [{let: {a: 1}}]\n",
           one + "  - repeat: rank + 1\n    steps: [{let: {a: a + 1}}]\n", hooked + "    steps: [{let: {a: 1}}]\n",
           one + hooked + "    steps: [{let: {a: a + 1}}]\n"})
    EXPECT_EQ(errors_of_steps(binding + "  - expect: a == 1\n"), "") << binding;
  // A hook's own name hides a constant.
  EXPECT_EQ(errors_of_steps("  - let: {inputs: 1}\n" + hooked + "    steps: [{expect: len(inputs) == 1}]\n"), "");
}

TEST(Check, RefusesComparisonsOfMatrixNamesWithValuesOfAnotherType) {
  const std::string matrix = "matrix: {form: [none, wrapper], n: [1, '2']}\n";
  EXPECT_EQ(short_errors_of_steps("  - barrier: {}\n    when: form != 'none'\n", matrix),
            "t.yaml:7:19: `form` is never 'none'; its value is none, of another type");
  EXPECT_EQ(short_errors_of_steps("  - barrier: {}\n    when: \"'1' == n or n in [1, 2]\"\n", matrix),
            "t.yaml:7:12: `n` is never '1'; its value is 1, of another type\n"
            "t.yaml:7:33: `n` is never 2; its value is '2', of another type");
  EXPECT_EQ(short_errors_of_steps("  - barrier: {}\n", matrix + "skip: [{when: form == 'none', reason: r}]\n"),
            "t.yaml:5:23: `form` is never 'none'; its value is none, of another type");
  const std::string well = "  - barrier: {}\n    when: form != none and n == 1.0 and form in ['wrapper', none]\n";
  EXPECT_EQ(errors_of_steps(well, matrix), "");
  // A matrix may lose a value without a change of its conditions.
  EXPECT_EQ(errors_of_steps("  - barrier: {}\n    when: form == 'inner' or n == 3\n", matrix), "");
  // Other names of the same text hide it, and a label is no value.
  EXPECT_EQ(errors_of_steps("  - let: {a: \"[n == '1' for n in ['1']]\"}\n", matrix), "");
  const std::string own = "models: {Own: {arguments: {n: 3}, methods: {forward(form): form == 'none' or n == '1'}}}\n";
  EXPECT_EQ(errors_of_steps("  - barrier: {}\n", matrix + own), "");
  const std::string labels = "matrix: {kind: {none: {x: 1}, b: {x: 2}}}\n";
  EXPECT_EQ(errors_of_steps("  - barrier: {}\n    when: kind == 'none'\n", labels), "");
}

TEST(Check, ChecksCalls) {
  EXPECT_EQ(short_errors_of_steps("  - let: {a: rndn(2)}\n"),
            "t.yaml:5:14: unknown function `rndn`; did you mean `randn`?");
  EXPECT_EQ(short_errors_of_steps("  - let: {a: 'randn(2, dtyp=float64)'}\n"),
            "t.yaml:5:15: unknown argument `dtyp` of randn(); did you mean `dtype`?");
  EXPECT_EQ(short_errors_of_steps("  - let: {a: abs()}\n"), "t.yaml:5:14: abs(x) needs at least 1 argument, got 0");
  EXPECT_EQ(short_errors_of_steps("  - let: {a: 'abs(1, 2)'}\n"),
            "t.yaml:5:15: abs(x) takes at most 1 argument, got 2");
  EXPECT_EQ(short_errors_of_steps("  - let: {a: 'sum(rank, x=1)'}\n"),
            "t.yaml:5:15: the argument `x` of sum() is given twice");
  EXPECT_EQ(short_errors_of_steps("  - let: {a: Net()}\n"),
            "t.yaml:5:14: `Net` builds a module, which only `model` and `children` do");
  EXPECT_EQ(short_errors_of_steps("  - model: Nte()\n    as: m\n"),
            "t.yaml:5:12: unknown model `Nte`; did you mean `Net`?");
  EXPECT_EQ(short_errors_of_steps("  - model: Sequential(Linear(2, 2, bais=false))\n    as: m\n"),
            "t.yaml:5:23: unknown argument `bais` of Linear; did you mean `bias`?");
  EXPECT_EQ(short_errors_of_steps("  - model: Net\n    as: m\n"),
            "t.yaml:5:12: `Net` builds a module; call it: `Net(...)`");
}

TEST(Check, RefusesChangesInPlaceOutsideLetAndForward) {
  EXPECT_EQ(errors_of_steps("  - let: {x: ones(4)}\n"
                            "  - let: {y: \"add_(x, 1)\"}\n"
                            "  - forward: {z: zero_(y)}\n"
                            "  - expect_equal: [z, x]\n"),
            "");
  const std::string where = "changes a tensor, which only `let` and `forward` do; name its value there first";
  EXPECT_THAT(errors_of_steps("  - let: {x: ones(4)}\n  - expect_equal: [zero_(x), x]\n"),
              HasSubstr("t.yaml:6:20: zero_() " + where));
  EXPECT_THAT(errors_of_steps("  - let: {x: ones(4)}\n  - backward: sum(relu_(x))\n"), HasSubstr("relu_() " + where));
  // A bound name leaves the function of its spelling callable.
  EXPECT_THAT(errors_of_steps("  - let: {x: ones(4), zero_: 3}\n  - expect_equal: [zero_(x), x]\n"),
              HasSubstr("t.yaml:6:20: zero_() " + where + ", or rename `zero_` if it is a module"));
}

TEST(Check, RefusesCommunicationOutsideLetAndForward) {
  EXPECT_EQ(errors_of_steps("  - let: {x: ones(4)}\n"
                            "  - let: {y: full_tensor(x)}\n"
                            "  - forward: {z: \"redistribute(x, [shard(0)])\"}\n"
                            "  - expect_equal: [y, x]\n"),
            "");
  const std::string where = "communicates, which only `let` and `forward` do; name its value there first";
  EXPECT_THAT(errors_of_steps("  - let: {x: ones(4)}\n  - expect_equal: [full_tensor(x), x]\n"),
              HasSubstr("t.yaml:6:20: full_tensor() " + where));
  EXPECT_THAT(errors_of_steps("  - let: {x: ones(4)}\n  - backward: sum(redistribute(x, []))\n"),
              HasSubstr("redistribute() " + where));
  EXPECT_THAT(errors_of_steps("  - let: {x: ones(4)}\n    when: item(full_tensor(x)) == 0\n"),
              HasSubstr("full_tensor() " + where));
  EXPECT_EQ(errors_of_steps("  - model: Own()\n    as: m\n  - forward: {y: \"m(ones(2))\"}\n  - expect_equal: [y, y]\n",
                            "models: {Own: {parameters: {w: ones(2)}, forward: full_tensor(w) * x}}\n"),
            "");
}

TEST(Check, ChecksModels) {
  const auto with_model = [](const std::string& model) {
    return short_errors_of_steps("  - barrier: {}\n", str("models:\n", model));
  };
  EXPECT_EQ(with_model("  Own: {children: {a: 'Linear(2, 2)'}}\n"),
            "t.yaml:5:3: the model `Own` needs `forward` or `methods`");
  EXPECT_EQ(with_model("  own: {forward: x}\n"),
            "t.yaml:5:3: `own` is not a name for a model; use letters, digits and _, with an upper-case letter first");
  EXPECT_THAT(with_model("  Own: {methods: {'forward(x, x)': x}}\n"), HasSubstr("`forward` has two inputs `x`"));
  EXPECT_THAT(with_model("  Own: {methods: {'forward(x, x=1)': x}}\n"), HasSubstr("`forward` has two inputs `x`"));
  EXPECT_EQ(with_model("  Own: {forward: y}\n"), "t.yaml:5:18: unknown name `y`; no earlier step binds it");
  EXPECT_EQ(with_model("  Own: {forward: x, methods: {forward(x): x}}\n"),
            "t.yaml:5:18: `forward` is defined under `methods` too; keep one of them");
  EXPECT_EQ(with_model("  Own: {methods: {f: x}}\n"),
            "t.yaml:5:19: a method is written `name(inputs, option=default): expression`");
  EXPECT_EQ(with_model("  Own:\n    methods:\n      forward(x):\n        return: x\n        h: x\n"),
            "t.yaml:8:9: the last name of a method must be `return`\nt.yaml:8:9: `return` must be last");
  EXPECT_EQ(with_model("  Own: {children: {a: Own()}, forward: a(x)}\n"),
            "t.yaml:5:3: the model `Own` contains itself");
  EXPECT_EQ(with_model("  Own: {methods: {f(x): g(x), g(x): f(x)}}\n"),
            "t.yaml:5:19: the method `f` of `Own` calls itself\nt.yaml:5:31: the method `g` of `Own` calls itself");
  EXPECT_EQ(with_model("  Own: {arguments: {a: required}, parameters: {a: zeros(2)}, forward: x}\n"),
            "t.yaml:5:48: the model `Own` has `a` already, in line 5");
  EXPECT_EQ(with_model("  Own: {child: {}, forward: x}\n"),
            "t.yaml:5:9: unknown key `child` in a model; did you mean `children`?");
}

TEST(Check, ChecksHooks) {
  const std::string model = "  - model: Net()\n    as: m\n";
  EXPECT_EQ(errors_of_steps(model + "  - hook: {modules: m, at: before_forward}\n    steps: [{let: {seen: inputs}}]\n"
                                    "  - expect: len(seen) == 1\n"),
            "");
  EXPECT_EQ(short_errors_of_steps(model + "  - let: {a: inputs}\n"),
            "t.yaml:7:14: unknown name `inputs`; no earlier step binds it");
  EXPECT_EQ(short_errors_of_steps(model + "  - hook: {modules: m, at: after_step}\n    steps: [{seed: 1}]\n"),
            "t.yaml:7:5: `at: after_step` needs `optimizer`");
  EXPECT_EQ(short_errors_of_steps(model + "  - hook: {at: after_step}\n    steps: [{seed: 1}]\n"),
            "t.yaml:7:5: `hook` needs one of `modules`, `parameters` and `optimizer`");
  EXPECT_EQ(
      short_errors_of_steps(
          model + "  - repeat: {times: 2, index: i}\n    steps:\n"
                  "      - hook: {modules: 'm.fc${i + 1}', at: before_forward}\n        steps: [{seed: i}]\n"),
      "t.yaml:10:24: a hook looks up `i` when it runs, after the loop has changed it; bind its value to another name "
      "with `let`");
}

TEST(Check, RefusesNamesOfEachLoopAroundAHook) {
  const std::string steps =
      "  - model: Net()\n    as: m\n"
      "  - for_each: {name: i, in: '[1, 2]'}\n    steps:\n"
      "      - for_each: {name: [j, k], in: '[[0, 1]]', index: n}\n        steps:\n"
      "          - let: {own: i + j}\n"
      "          - if: j == 0\n            steps:\n"
      "              - hook: {modules: 'm.fc${i}', at: before_forward}\n"
      "                steps: [{seed: i}, {seed: j}, {seed: k}, {seed: n}, {seed: own}]\n"
      "      - hook: {modules: m, at: before_forward}\n        steps: [{seed: i}]\n"
      "  - let: {i: 3}\n"  // no name of a loop any more
      "  - hook: {modules: m, at: after_forward}\n    steps: [{seed: i}]\n";
  const auto refused = [](const std::string& place, const std::string& name) {
    return str("t.yaml:", place, ": a hook looks up `", name,
               "` when it runs, after the loop has changed it; bind its value to another name with `let`");
  };
  EXPECT_EQ(short_errors_of_steps(steps),
            str(refused("15:32", "i"), "\n", refused("15:43", "j"), "\n", refused("15:54", "k"), "\n",
                refused("15:65", "n"), "\n", refused("17:24", "i")));
}

TEST(Check, ChecksEntriesOfLabelledMatrix) {
  const std::string head = "matrix: {mode: {all: {recurse: true}, some: {recurse: false, depth: 2}}}\n";
  EXPECT_EQ(errors_of_steps("  - seed: mode.depth if mode.label == 'some' and mode.recurse else 1\n", head), "");
  EXPECT_EQ(short_errors_of_steps("  - seed: mode.detph\n", head),
            "t.yaml:6:16: `mode` has no entry `detph`; did you mean `depth`?");
}

}  // namespace
}  // namespace lockstep::scenario
