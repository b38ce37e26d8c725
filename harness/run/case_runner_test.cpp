#include "harness/run/case_runner.hpp"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/run/test_support.hpp"

namespace lockstep::run {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing_support::Ran;
using testing_support::run_steps;
using testing_support::TextOptions;
using verdict::Status;

// The first failure, or "" when there is none.
std::string failure(const Ran& ran) {
  return ran.result.failure
             ? str(ran.result.failure->check, " ", ran.result.failure->line, ": ", ran.result.failure->message)
             : ran.result.reason;
}

#define EXPECT_PASS(ran) EXPECT_EQ((ran).result.status, Status::PASS) << failure(ran)

TEST(CaseRunner, CountsConditionsApartFromComparisons) {
  const Ran ran = run_steps(R"yaml(
  - let: {a: 1, b: a + 1}
  - expect: b == 2
  - expect: [a < b, "a in [1, 2]"]
)yaml");
  EXPECT_PASS(ran);
  EXPECT_EQ(ran.evidence().conditions, 3);
  EXPECT_EQ(ran.evidence().comparisons, 0);
  EXPECT_EQ(ran.evidence().same_bits, 0);
  EXPECT_EQ(ran.evidence().trivial, 0);
}

TEST(CaseRunner, AConditionThatDoesNotHoldFailsAtItsLineWithBothSides) {
  const Ran ran = run_steps(R"yaml(
  - let: {a: 3}
  - expect: a == 4
  - expect: a == 3
)yaml");
  EXPECT_EQ(ran.result.status, Status::FAIL);
  EXPECT_THAT(ran.failures(), ElementsAre("expect 4: `a == 4` does not hold: left is 3, right is 4"));
  EXPECT_EQ(ran.result.failure->file, "text.yaml");
  EXPECT_EQ(ran.result.failure->rank, 0);
  EXPECT_EQ(ran.evidence().conditions, 1);
}

TEST(CaseRunner, NoEvidenceIsInvalid) {
  EXPECT_EQ(run_steps("  - let: {a: 1}\n").result.status, Status::INVALID);
  // Zeros, shared storage, nothing at all: never evidence.
  const Ran ran = run_steps(R"yaml(
  - let: {x: zeros(3), y: ones(2)}
  - expect_equal: [x, 0]
  - expect_equal: [y, y]
  - expect_equal: ["zeros(0)", "zeros(0)"]
  - expect_equal: [none, none]
)yaml");
  EXPECT_EQ(ran.result.status, Status::INVALID);
  EXPECT_EQ(ran.evidence().trivial, 4);
  EXPECT_EQ(ran.evidence().comparisons, 0);
}

// What a window in which nothing happened shows, it shows whatever the engine does.
TEST(CaseRunner, AnEmptyWindowIsNoEvidence) {
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
  EXPECT_EQ(ran.result.status, Status::INVALID) << failure(ran);
  EXPECT_EQ(ran.evidence().trivial, 1 + 2 + 1 + 1 + 1 + 1 + 1 + 1 + 1 + 1);
  EXPECT_EQ(ran.evidence().conditions, 0);
}

TEST(CaseRunner, AWindowWithWorkIsEvidence) {
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

TEST(CaseRunner, EqualComparesValuesListsMapsAndModels) {
  const Ran ran = run_steps(R"yaml(
  - seed: 1
  - model: Net()
    as: a
  - copy: a
    as: b
  - expect_equal: [a, b]
  - expect_equal: ["[1.0, 'two', [3]]", "[1, 'two', [3]]"]
  - expect_equal: ["{'x': ones(2)}", "{'x': full([2], 1.0)}"]
  - expect_equal: [ones(2) * 3, 3]
)yaml");
  EXPECT_PASS(ran);
  EXPECT_EQ(ran.evidence().comparisons, 6 + 3 + 1 + 1);
  EXPECT_EQ(ran.evidence().elements, 3 * (4 + 2) + 3 + 2 + 2);
  EXPECT_EQ(ran.evidence().same_bits, 11);
  EXPECT_EQ(ran.evidence().bits_required, 0);
}

TEST(CaseRunner, EqualSaysWhereAndWhat) {
  const Ran ran = run_steps(R"yaml(
  - seed: 1
  - model: Net()
    as: a
  - copy: a
    as: b
  - assign: {to: b.fc2.bias, value: 7}
  - expect_equal: [a, b]
  - expect_equal: ["[1, 2]", "[1, 2, 3]"]
  - expect_equal: ["{'a': 1}", "{'b': 1}"]
  - expect_equal: [ones(2), "ones(3)"]
  - expect_equal: [1, true]
)yaml");
  const std::vector<std::string> failures = ran.failures();
  ASSERT_EQ(failures.size(), 5u);
  EXPECT_THAT(failures[0], HasSubstr("expect_equal 9: a.fc2.bias and b.fc2.bias: "));
  EXPECT_THAT(failures[1], HasSubstr("has 2 items"));
  EXPECT_THAT(failures[2], HasSubstr("is 'a', of"));
  EXPECT_THAT(failures[3], HasSubstr("(2)"));
  EXPECT_THAT(failures[4], HasSubstr("true"));
}

TEST(CaseRunner, ChecksSeeTheValuesOfTheirMoment) {
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

TEST(CaseRunner, GradientsAreEqualOrAbsentOnBothSides) {
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

TEST(CaseRunner, DifferentFailsOnEqualAndOnNotANumber) {
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

TEST(CaseRunner, BitsRequiredAsksForThemOfFloat32) {
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

TEST(CaseRunner, TolerancesGrowWithTheLargestOfAll) {
  const Ran ran = run_steps(R"yaml(
  - expect_equal: {actual: "[100.0, 1.05]", expected: "[100.0, 1.0]", rtol: 0, atol: 0, of_largest: 1e-3}
  - expect_equal: {actual: 1.05, expected: 1.0, rtol: 0, atol: 0, of_largest: 1e-3}
  - expect_equal: {actual: 1.05, expected: 1.0, atol: 0.1}
)yaml");
  ASSERT_EQ(ran.failures().size(), 1u);
  EXPECT_THAT(ran.failures()[0], HasSubstr("expect_equal 4"));
}

TEST(CaseRunner, RaisesCountsTheErrorAndGoesOn) {
  const Ran ran = run_steps(R"yaml(
  - let: {x: "ones(2, 3) @ ones(2, 3)"}
    raises: matmul
  - let: {x: 1}
  - expect: x == 1
  - let: {
y: 1 // 0}
    raises: {message: "has no*value", when: rank == 0, within_ms: 10000}
)yaml");
  EXPECT_PASS(ran);
  EXPECT_EQ(ran.evidence().errors_expected, 2);
}

TEST(CaseRunner, RaisesFailsWhenNothingComesOrSomethingElse) {
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
  EXPECT_THAT(failures[0], HasSubstr("let 3: no error came"));
  EXPECT_THAT(failures[1], HasSubstr("index 5 is out of range"));
  EXPECT_THAT(failures[1], HasSubstr("something else"));
  EXPECT_EQ(ran.evidence().errors_expected, 1);
}

TEST(CaseRunner, AnErrorFailsAtItsStepWithTheIteration) {
  const Ran ran = run_steps(R"yaml(
  - repeat: {times: 4, index: i}
    steps:
      - let: {x: "[1, 2][i]"}
  - expect: 1 == i
)yaml");
  EXPECT_EQ(ran.result.status, Status::FAIL);
  EXPECT_EQ(failure(ran), "let 5: index 2 is out of range: the list has 2");
  EXPECT_EQ(ran.result.failure->iteration, 2);
}

TEST(CaseRunner, ANameWhoseStepDidNotRunIsInvalid) {
  const Ran ran = run_steps(R"yaml(
  - let: {x: 1}
    when: rank == 7
  - expect: x == 1
)yaml");
  EXPECT_EQ(ran.result.status, Status::INVALID) << failure(ran);
}

TEST(CaseRunner, ACheckThatNoRankReachesIsInvalidUnlessParametersRuleItOut) {
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

TEST(CaseRunner, RoutinesHaveTheirOwnScope) {
  TextOptions options;
  options.routines =
      "double\n---\nroutine: double\nsummary: Twice.\nparameters:\n  x: any\n  by: {type: integer, default: 2}\n"
      "gives: [twice]\nsteps:\n  - let: {twice: x * by, inner: 5}\n  - expect: twice == 6\n";
  const Ran ran = run_steps(R"yaml(
  - let: {x: 1, inner: 7}
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

TEST(CaseRunner, ControlRunsWhatItShould) {
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

TEST(CaseRunner, OwnModelsAreBuiltAndCalled) {
  TextOptions options;
  options.head = R"yaml(models:
  Twice:
    arguments: {dim: required, scale: 3}
    children: {inner: "Linear(dim, dim)"
}
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

TEST(CaseRunner, TrainingVerbsTrain) {
  const Ran ran = run_steps(R"yaml(
  - seed: 0
  - model: Sequential(Linear(2, 2), ReLU(), Linear(2, 1))
    as: m
  - copy: m
    as: before
  - optimizer: {type: SGD, model: m, lr: 0.5}
    as: opt
  - forward: {loss: "sum(m(ones(3, 2)))"}
  - backward: loss
  - expect: all([p.grad != none for p in parameters(m)])
  - step: opt
  - expect_equal: [m.2.bias, before.2.bias - 0.5 * m.2.bias.grad]
  - zero_grad: opt
  - expect: m.2.bias.grad == none
  - set_gradient: {parameter: m.2.bias, to: 2}
  - expect_equal: [m.2.bias.grad, 2]
  - zero_grad: {of: m, set_to_none: false}
  - expect: m.2.bias.grad != none
  - optimizer: {type: Adam, parameters: [m.0.weight], lr: 1e-2, betas: [0.8, 0.9]}
    as: adam
  - init_optimizer_state: adam
  - expect: len(tensors(adam)) > 0
  - state_dict: adam
    as: state
  - expect: keys(state.state) == ['0.weight'] and state.groups[0].betas == [0.8, 0.9]
  - load_state_dict: {into: adam, state: state}
  - optimizer: {type: SGD, groups: [{parameters: "[m.0.weight]", lr: 1}, {parameters: "[m.0.bias]"}], lr: 0.1}
    as: grouped
  - state_dict: grouped
    as: state
  - expect: "[g.lr for g in state.groups] == [1, 0.1]"
  - set_requires_grad: {parameters: m.0.*, to: false}
  - expect: "[p.requires_grad for p in parameters(m)] == [false, false, true, true]"
  - forward: {y: "m(ones(1, 2))"}
  - backward: {loss: y, gradient: "full([1, 1], 3.0)"}
  - expect_equal: [m.2.bias.grad, 3]
  - set_training: {model: m, to: false}
  - set_parameter: {parameter: m.0.bias, to: m.2.bias}
    when: false
  - set_parameter: {parameter: m.2.bias, to: "full([1], 4.0)"}
  - expect: m.2.bias.requires_grad and m.2.bias.name == '2.bias'
  - expect_equal: [m.2.bias, 4]
  - to: {model: m, dtype: float64}
  - expect: "[p.dtype for p in parameters(m)] == [float64] * 4"
)yaml");
  EXPECT_PASS(ran);
}

TEST(CaseRunner, StateDictsGoOutAndIn) {
  const Ran ran = run_steps(R"yaml(
  - seed: 0
  - model: Net()
    as: m
  - model: Net()
    as: n
  - state_dict: m
    as: state
  - expect: keys(state) == names(m)
  - expect: "state['fc1.weight'].storage == m.fc1.weight.storage"
  - load_state_dict: {into: n, state: state}
  - expect_equal: [n, m]
  - load_state_dict: {into: n, state: "{'fc1.weight': ones(2, 2)}"}
    raises: fc2.weight
  - load_state_dict: {into: n, state: "{'fc1.weight': ones(2, 2)}", strict: false, assign: true}
  - expect_equal: [n.fc1.weight, 1]
  - write: {file: model.safetensors, value: state}
  - read: model.safetensors
    as: back
  - expect_equal: {actual: back, expected: state, bits: true}
  - write: {file: sub/v.json, value: "{'a': [1, 2.5, 'x', none, true]}"}
  - read: sub/v.json
    as: v
  - expect: "v == {'a': [1, 2.5, 'x', none, true]}"
  - let: {up: "'..'", root: "'/x'"}
  - read: ${up}/outside.json
    raises: leads out of its folder
  - read: missing.json
    raises: cannot read
  - write: {file: "${root}.json", value: 1}
    raises: for reading only
)yaml");
  EXPECT_PASS(ran);
}

TEST(CaseRunner, RecordsAreJsonThatReadsBack) {
  const Ran ran = run_steps(R"yaml(
  - let: {x: "tensor([[0.1, 2.0], [3.0, 4.0]])"}
  - record: {losses: "[0.1, 1e300, inf]", t: x, nan: item(sum(zeros(1) / zeros(1))), n: 3}
  - record: {n: 4}
  - record: {big: "zeros(10001)"}
    raises: 10000
)yaml");
  std::map<std::string, std::string> records(ran.outcomes[0].records.begin(), ran.outcomes[0].records.end());
  EXPECT_EQ(records["n"], "4");
  EXPECT_THAT(records["losses"], HasSubstr("[0.1,1e+300,\""));
  EXPECT_THAT(records["t"], HasSubstr("[[0.10000000149011612,2"));
  EXPECT_EQ(records["nan"].front(), '"');
  EXPECT_EQ(records.count("big"), 0u);
}

TEST(CaseRunner, HooksRunTheirStepsWithWhatTheyKnow) {
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

TEST(CaseRunner, AFailureInAHookIsOfTheHooksStep) {
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

TEST(CaseRunner, WindowsSeeMemoryAndTime) {
  const Ran ran = run_steps(R"yaml(
  - observe: [activation]
    as: run
    steps:
      - let: {x: zeros(1024)}
      - delay: {ms: 2, where: host}
  - expect: [run.peak_bytes == 4096, run.seconds >= 0.002]
  - expect: "memory(['activation']) >= 4096"
  - expect_collectives: {during: run, total: 0}
  - delay: 0
  - record_event: current
    as: e
  - wait: e
)yaml");
  EXPECT_PASS(ran);
  EXPECT_EQ(ran.evidence().collectives_checked, 1);
}

TEST(CaseRunner, RunsOnTheSimulatedAccelerator) {
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
