#include "harness/scenario/document.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/scenario/testing.hpp"

namespace lockstep::scenario {
namespace {

using testing::errors_of;
using testing::errors_of_steps;
using ::testing::HasSubstr;
using testing::parsed;
using testing::scenario_of;

// Without the lines shown below each error.
std::string short_errors(const std::string& text) {
  const std::string all = errors_of(text);
  std::string out;
  for (std::size_t start = 0; start < all.size();) {
    const std::size_t end = std::min(all.find('\n', start), all.size());
    const std::string line = all.substr(start, end - start);
    if (line.rfind("  ", 0) != 0) out += str(out.empty() ? "" : "\n", line);
    start = end + 1;
  }
  return out;
}
std::string short_errors_of_steps(const std::string& steps, const std::string& head = {}) {
  return short_errors(scenario_of(steps, head));
}

TEST(Document, ReadsEveryKey) {
  const auto scenario = parsed(R"yaml(
scenario: t/all
summary: All keys.
mirrors: {document: test_x.py, test: some_test, number: 7}
see: [https://example.org/1]
ranks: {world_size: [4, 2], launch: [process, thread]}
device: [sim]
parameters: {seed: 42, rate: 0.5, word: none, quoted: 'on', list: [1, a]}
matrix:
  mode: [a, true, 2]
  mesh_kind:
    flat: {shape: [4]}
    hybrid: {shape: [2, 2]}
skip:
  - when: mode == 2 and mesh_kind.label == 'flat'
    reason: not wanted
expect_failure:
  - {when: mode == 'a', reason: known, line: 12, message: "off by*"}
timeout: 2.5
tags: [fast, nightly]
bits: {reported: sums in another order}
plan: {unplanned: depends on the data}
stages:
  - name: save
    steps:
      - seed: seed
  - name: load
    world_size: world_size // 2
    steps:
      - barrier: {}
)yaml");
  EXPECT_EQ(scenario->name, "t/all");
  EXPECT_EQ(scenario->mirrors->document, "test_x.py");
  EXPECT_EQ(scenario->mirrors->number, 7);
  EXPECT_EQ(scenario->ranks.world_sizes, (std::vector<int>{4, 2}));
  EXPECT_EQ(scenario->ranks.launches, (std::vector<Launch>{Launch::process, Launch::thread}));
  EXPECT_EQ(scenario->devices, std::vector<std::string>{"sim"});
  ASSERT_EQ(scenario->parameters.size(), 5u);
  EXPECT_EQ(scenario->parameters[0].value.as_int(), 42);
  EXPECT_TRUE(scenario->parameters[2].value.is_none());
  EXPECT_EQ(scenario->parameters[4].value.text(), "[1,a]");
  ASSERT_EQ(scenario->matrix.size(), 2u);
  EXPECT_TRUE(scenario->matrix[0].values[1].value.is_bool());
  EXPECT_EQ(scenario->matrix[1].values[1].label, "hybrid");
  EXPECT_EQ(scenario->matrix[1].values[1].value.text(), "{label:hybrid,shape:[2,2]}");
  EXPECT_EQ(scenario->skip[0].reason, "not wanted");
  EXPECT_EQ(scenario->expect_failure[0].line, 12);
  EXPECT_EQ(scenario->expect_failure[0].message, "off by*");
  EXPECT_EQ(scenario->timeout, 2.5);
  EXPECT_EQ(scenario->tags, (std::vector<std::string>{"fast", "nightly"}));
  EXPECT_EQ(scenario->bits, Bits::reported);
  EXPECT_EQ(scenario->bits_reason, "sums in another order");
  EXPECT_EQ(scenario->unplanned_reason, "depends on the data");
  ASSERT_EQ(scenario->stages.size(), 2u);
  EXPECT_TRUE(scenario->staged);
  EXPECT_EQ(to_text(*scenario->stages[1].world_size), "world_size // 2");
}

TEST(Document, ReadsArgumentsByTheirType) {
  const auto scenario = parsed(scenario_of(R"yaml(
  - model: Sequential(Linear(2, 2), ReLU())
    as: m
  - replicate: {modules: ["m.${rank}", m], device_id: none, ignored: m.0}
  - optimizer: {type: SGD, model: m, lr: 1e-2}
    as: o
  - let: {x: ["m.0", 2], y: {a: rank + 1}}
  - expect_equal: [x, y]
    note: lists are read in order
  - for_each: {name: [a, b], in: "[[1, 2]]", index: i}
    steps:
      - seed: a + b + i
)yaml"));
  const Steps& steps = scenario->stages[0].steps;
  ASSERT_EQ(steps.size(), 6u);
  EXPECT_EQ(steps[0].verb, Verb::model);
  EXPECT_EQ(steps[0].as, "m");
  EXPECT_EQ(steps[0].place.line, 6);
  EXPECT_EQ(steps[0].place.column, 5);
  EXPECT_EQ(to_text(*steps[0].argument("build")), "Sequential(Linear(2, 2), ReLU())");
  EXPECT_EQ(to_text(*steps[0].argument("device")), "${device}");
  EXPECT_EQ(steps[0].argument("dtype")->name, "float32");

  const Expr& paths = *steps[1].argument("modules");
  ASSERT_EQ(paths.kind, ExprKind::list);
  EXPECT_EQ(paths.children[0]->kind, ExprKind::concat);
  EXPECT_EQ(paths.children[1]->value.as_text(), "m");
  EXPECT_TRUE(steps[1].argument("device_id")->value.is_none());
  EXPECT_EQ(steps[1].argument("mesh")->name, "all_ranks");
  EXPECT_EQ(steps[1].argument("bucket_cap_mb")->value.as_int(), 25);
  EXPECT_TRUE(steps[1].given[0]);
  EXPECT_FALSE(steps[1].given[1]);

  EXPECT_EQ(steps[2].argument("type")->value.as_text(), "SGD");
  EXPECT_EQ(steps[2].argument("lr")->value.as_double(), 0.01);
  EXPECT_EQ(steps[2].argument("groups"), nullptr);
  EXPECT_EQ(to_text(*steps[2].argument("betas")), "[0.9, 0.999]");

  ASSERT_EQ(steps[3].entries.size(), 2u);
  EXPECT_EQ(to_text(*steps[3].entries[0].value), "[m.0, 2]");
  EXPECT_EQ(to_text(*steps[3].entries[1].value), "{'a': rank + 1}");
  EXPECT_EQ(to_text(*steps[4].argument("expected")), "y");
  EXPECT_EQ(steps[4].note, "lists are read in order");
  EXPECT_EQ(steps[5].steps[0].argument("value")->line, 16);
  EXPECT_EQ(steps[5].argument("name")->children.size(), 2u);
}

TEST(Document, ReadsBlocksAndModifiers) {
  const auto scenario = parsed(scenario_of(R"yaml(
  - if: rank == 0
    steps:
      - exit: kill
    else:
      - barrier: {}
        raises: {message: "rank 0 *died", when: world_size > 1, within_ms: 1000}
  - choose: world_size
    among:
      2:
        - seed: 1
      other:
        - seed: 2
    when: rank > 0
)yaml"));
  const Steps& steps = scenario->stages[0].steps;
  EXPECT_EQ(steps[0].steps[0].argument("how")->value.as_text(), "kill");
  const Raises& raises = *steps[0].otherwise[0].raises;
  EXPECT_EQ(raises.message->value.as_text(), "rank 0 *died");
  EXPECT_EQ(to_text(*raises.when), "world_size > 1");
  EXPECT_EQ(raises.within_ms->value.as_int(), 1000);
  ASSERT_EQ(steps[1].among.size(), 2u);
  EXPECT_EQ(steps[1].among[0].label.as_int(), 2);
  EXPECT_EQ(steps[1].among[1].label.as_text(), "other");
  EXPECT_EQ(to_text(*steps[1].when), "rank > 0");
}

TEST(Document, ReadsOwnModels) {
  const auto scenario = parsed(scenario_of("  - model: Two(3)\n    as: m\n  - expect: finite(m.p)\n", R"yaml(models:
  Two:
    arguments: {dim: required, scale: 1.5}
    children: {inner: "Linear(dim, dim)", 1: Part()}
    parameters: {p: "randn(dim, dim)"}
    buffers: {b: zeros(dim)}
    methods:
      part(x, y, factor=scale * 1): inner(x) @ p + b
      forward(x):
        h: part(x, x, factor=2)
        return: relu(h)
  Part:
    forward: x * 2
)yaml"));
  const OwnModel* model = scenario->model("Two");
  ASSERT_NE(model, nullptr);
  EXPECT_TRUE(model->arguments[0].required);
  EXPECT_EQ(model->arguments[1].default_value->value.as_double(), 1.5);
  EXPECT_EQ(model->children[1].name, "1");
  EXPECT_EQ(model->buffers[0].name, "b");
  const OwnMethod* part = model->method("part");
  ASSERT_NE(part, nullptr);
  EXPECT_EQ(part->inputs, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(part->options[0].first, "factor");
  const OwnMethod* forward = model->method("forward");
  ASSERT_EQ(forward->body.size(), 2u);
  EXPECT_EQ(forward->body[0].name, "h");
  EXPECT_EQ(forward->body[1].name, "return");
  EXPECT_EQ(scenario->model("Part")->method("forward")->inputs, std::vector<std::string>{"x"});
}

TEST(Document, ShowsTheLineAndACaret) {
  EXPECT_EQ(errors_of_steps("  - model: Net()\n    as: m\n  - replicat: m\n"),
            "t.yaml:7:5: unknown verb `replicat`; did you mean `replicate`?\n"
            "    - replicat: m\n"
            "      ^");
  EXPECT_EQ(errors_of_steps("  - let:\n      a: >-\n        randn(2,\n        2) + b\n"),
            "t.yaml:8:14: unknown name `b`; no earlier step binds it\n"
            "          2) + b\n"
            "               ^");
}

TEST(Document, ReportsEveryErrorOfAFile) {
  EXPECT_EQ(short_errors_of_steps("  - sead: 1\n  - seed: one\n  - model: Linear(2)\n    as: M\n  - step: {}\n"),
            "t.yaml:5:5: unknown verb `sead`; did you mean `seed`?\n"
            "t.yaml:6:11: unknown name `one`; no earlier step binds it\n"
            "t.yaml:7:12: Linear needs the argument `out`\n"
            "t.yaml:8:9: `M` is no name: lower-case letters, digits and _ only, a letter first\n"
            "t.yaml:9:5: `step` needs `optimizer`");
}

TEST(Document, NamesWhatIsMissingOrUnknownInAFile) {
  EXPECT_EQ(short_errors("scenario: t/one\n"),
            "t.yaml:1:1: a scenario needs `summary`\n"
            "t.yaml:1:1: a scenario needs `ranks`, such as `ranks: {world_size: [2]}`\n"
            "t.yaml:1:1: a scenario needs `steps` or `stages`, one of the two");
  EXPECT_EQ(short_errors("- a\n"), "t.yaml:1:1: a scenario must be a map, got a list");
  EXPECT_EQ(short_errors("hello\n"), "t.yaml:1:1: a scenario must be a map, got a single value");
  const std::string step = "  - barrier: {}\n";
  EXPECT_EQ(short_errors_of_steps(step, "martix: {a: [1]}\n"),
            "t.yaml:4:1: unknown key `martix` in a scenario; did you mean `matrix`?");
  EXPECT_EQ(short_errors_of_steps(step, "device: [cpu, gpu]\n"),
            "t.yaml:4:9: unknown device `gpu`; did you mean `cpu`?");
  EXPECT_EQ(short_errors_of_steps(step, "timeout: 0\n"),
            "t.yaml:4:10: `timeout` must be a number of seconds, above 0 and at most 86400");
  EXPECT_EQ(short_errors_of_steps(step, "bits: maybe\n"), "t.yaml:4:7: `bits` is `required`, or `{reported: reason}`");
  EXPECT_EQ(short_errors_of_steps(step, "matrix: {a: 3}\n"),
            "t.yaml:4:13: `a` must be a list of values or a map of labelled ones, got a single value");
  EXPECT_EQ(short_errors_of_steps(step, "matrix: {a: [1, 1]}\n"), "t.yaml:4:17: the value 1 of `a` stands twice");
  EXPECT_EQ(short_errors_of_steps(step, "matrix: {rank: [1]}\n"),
            "t.yaml:4:10: `rank` is a variable or type and cannot be a parameter or matrix name");
  EXPECT_EQ(short_errors_of_steps(step, "parameters: {a: 1}\nmatrix: {a: [1]}\n"),
            "t.yaml:5:10: `a` is a parameter already");
  EXPECT_EQ(short_errors_of_steps(step, "skip:\n  - {when: rank == 0, reason: r}\n"),
            "t.yaml:5:12: unknown name `rank`; no earlier step binds it");
  EXPECT_EQ(short_errors_of_steps(step, "skip:\n  - {when: 'item(world_size) == 1', reason: r}\n"),
            "t.yaml:5:13: `item` cannot be called before launch; plain functions can");
  EXPECT_EQ(short_errors_of_steps(step, "skip:\n  - {when: true}\n"), "t.yaml:5:5: an item of `skip` needs `reason`");
  EXPECT_EQ(short_errors("scenario: a\nsummary: b\nranks: {world_size: [2, 0, 2], launch: fork}\nsteps: []\n"),
            "t.yaml:3:25: `world_size` must be 1 to 65536\n"
            "t.yaml:3:28: the world size 2 stands twice\n"
            "t.yaml:3:40: unknown launch `fork`; known here: process, thread\n"
            "t.yaml:4:8: `steps` must hold at least one step");
}

TEST(Document, ShowsTheFormOfAStepWithAnArgumentBesideItsVerb) {
  EXPECT_EQ(short_errors_of_steps(
                "  - model: Linear(2, 2)\n    as: m\n  - fully_shard: m\n    reshard_after_forward: false\n"),
            "t.yaml:8:5: `reshard_after_forward` is an argument of `fully_shard` and stands within it: "
            "`fully_shard: {modules: m, reshard_after_forward: false}`");
  EXPECT_EQ(short_errors_of_steps("  - model: Sequential(Linear(2, 2), ReLU())\n    device: cpu\n    as: m\n"),
            "t.yaml:6:5: `device` is an argument of `model` and stands within it: "
            "`model: {build: \"Sequential(Linear(2, 2), ReLU())\", device: cpu}`");
}

TEST(Document, FindsTheNearestWordInAnyCase) {
  EXPECT_EQ(nearest_word("Adamw", {"SGD", "Adam", "AdamW"}), "AdamW");
  EXPECT_EQ(nearest_word("linear", {"Linear", "LayerNorm"}), "Linear");
  EXPECT_EQ(nearest_word("RELU", {"GELU", "ReLU"}), "ReLU");
}

TEST(Document, ChecksTheFormOfSteps) {
  EXPECT_EQ(short_errors_of_steps("  - barrier\n"),
            "t.yaml:5:5: a step is a map: write `barrier: ...`, or `barrier: {}`");
  EXPECT_EQ(short_errors_of_steps("  - barrier:\n"),
            "t.yaml:5:5: `barrier` has no value; write `barrier: {}` for none");
  EXPECT_EQ(short_errors_of_steps("  - when: true\n"), "t.yaml:5:5: a step without a verb");
  EXPECT_EQ(short_errors_of_steps("  - seed: 1\n    barrier: {}\n"),
            "t.yaml:6:5: a step has one verb; this one has `seed` already");
  EXPECT_EQ(short_errors_of_steps("  - seed: 1\n    whem: true\n"),
            "t.yaml:6:5: unknown key `whem` in a step; did you mean `when`?");
  EXPECT_EQ(short_errors_of_steps("  - seed: {valeu: 1}\n"),
            "t.yaml:5:5: `seed` needs `value`\n"
            "t.yaml:5:12: unknown argument `valeu` of `seed`; did you mean `value`?");
  EXPECT_EQ(short_errors_of_steps("  - seed: 1\n    as: s\n"), "t.yaml:6:9: `seed` gives nothing that `as` could name");
  EXPECT_EQ(short_errors_of_steps("  - seed: 1\n    steps: [{seed: 2}]\n"), "t.yaml:6:12: `seed` takes no `steps`");
  EXPECT_EQ(short_errors_of_steps("  - repeat: 2\n"), "t.yaml:5:5: `repeat` needs `steps`");
  EXPECT_EQ(short_errors_of_steps("  - choose: 2\n"), "t.yaml:5:5: `choose` needs `among`");
  EXPECT_EQ(short_errors_of_steps("  - repeat: 0\n    steps: [{seed: 1}]\n"),
            "t.yaml:5:13: times is 0; it must be from 1 to 2147483647");
  EXPECT_EQ(short_errors_of_steps("  - delay: 1e300\n  - delay: {ms: -1}\n  - delay: inf\n"),
            "t.yaml:5:12: ms is 1e+300; it must be from 0 to 3600000\n"
            "t.yaml:6:17: ms is -1; it must be from 0 to 3600000\n"
            "t.yaml:7:12: ms is inf; it must be from 0 to 3600000, and finite");
  // A step that must raise may be meant to be wrong.
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

TEST(Document, ChecksTypesOfArguments) {
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
  EXPECT_EQ(short_errors_of_steps(model + "  - replicate: m..a\n"), "t.yaml:7:16: `m..a` is no path: an empty part");
  EXPECT_EQ(short_errors_of_steps(model + "  - replicate: \"m.[01\"\n"),
            "t.yaml:7:17: `m.[01` is no path: a `[` is not closed");
  EXPECT_EQ(short_errors_of_steps(model + "  - replicate: parameters(m)\n"),
            "t.yaml:7:16: `parameters(m)` is no path; an expression in its place stands in `${...}`\n"
            "t.yaml:7:16: unknown name `parameters(m)`; no earlier step binds it");
  EXPECT_EQ(short_errors_of_steps(model + "  - replicate: '*.a'\n"),
            "t.yaml:7:17: a path begins with a name: `*` is a pattern");
  EXPECT_EQ(short_errors_of_steps("  - seed: ${rank}\n"),
            "t.yaml:5:11: unexpected `$`; this is an expression already, so write it without `${}`");
  EXPECT_EQ(short_errors_of_steps("  - observe: [gradients]\n    steps: [{seed: 1}]\n"),
            "t.yaml:5:15: unknown purpose of memory `gradients`; did you mean `gradient`?");
  EXPECT_EQ(short_errors_of_steps(model + "  - optimizer: {type: SGD, lr: 1}\n    as: o\n"),
            "t.yaml:7:5: `optimizer` needs one of `model`, `parameters` and `groups`");
  EXPECT_EQ(short_errors_of_steps("  - write: {file: /a.json, value: rank}\n"),
            "t.yaml:5:19: `write` writes to the case's folder only; a leading `/` is for reading");
  EXPECT_EQ(short_errors_of_steps("  - read: ../a.json\n    as: v\n"), "t.yaml:5:11: `..` is refused in files");
}

TEST(Document, ChecksCollectivesByName) {
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

TEST(Document, RefusesChecksThatShowNothing) {
  EXPECT_THAT(errors_of_steps("  - expect: 1 == 1\n"), HasSubstr("t.yaml:5:15: a condition of constants alone"));
  EXPECT_THAT(errors_of_steps("  - expect: world_size > n\n", "parameters: {n: 1}\n"), HasSubstr("constants alone"));
  EXPECT_THAT(errors_of_steps("  - expect: [rank >= 0, 'len([1]) == 1']\n"),
              HasSubstr("t.yaml:5:35: a condition of constants"));
  EXPECT_EQ(errors_of_steps("  - expect: rank >= 0\n"), "");
  EXPECT_THAT(errors_of_steps("  - barrier: {}\n    raises: '**'\n"),
              HasSubstr("t.yaml:6:13: the message under `raises` fits any error"));
  EXPECT_THAT(errors_of_steps("  - barrier: {}\n    raises: {message: ''}\n"), HasSubstr("fits any error"));
  EXPECT_THAT(errors_of_steps("  - barrier: {}\n    raises: {when: true}\n"), HasSubstr("`raises` needs `message`"));
}

TEST(Document, FollowsNamesThroughTheSteps) {
  EXPECT_EQ(short_errors_of_steps("  - seed: n\n  - let: {n: 1}\n"),
            "t.yaml:5:11: `n` is used before it is bound; line 6 binds it");
  EXPECT_EQ(short_errors_of_steps("  - let: {number: 1}\n  - seed: nubmer\n"),
            "t.yaml:6:11: unknown name `nubmer`; did you mean `number`?");
  EXPECT_EQ(errors_of_steps("  - repeat: {times: 2, index: i}\n    steps: [{let: {a: i}}]\n  - seed: a + i\n"), "");
  EXPECT_EQ(short_errors_of_steps("  - let: {a: 1, b: a + c, c: 2}\n"),
            "t.yaml:5:24: `c` is used before it is bound; line 5 binds it");
  EXPECT_EQ(short_errors_of_steps("  - drop: a\n"), "t.yaml:5:11: unknown name `a`; no earlier step binds it");
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
  // Stages are fresh ranks.
  EXPECT_EQ(short_errors(
                "scenario: a\nsummary: b\nranks: {world_size: 2}\nstages:\n  - name: one\n    steps: [{let: {a: 1}}]\n"
                "  - name: two\n    steps: [{seed: a}]\n"),
            "t.yaml:8:20: unknown name `a`; no earlier step binds it");
}

TEST(Document, DoesNotBlameWhatFollowsFromAnError) {
  EXPECT_EQ(short_errors_of_steps("  - modle: Net()\n    as: m\n  - replicate: m\n"),
            "t.yaml:5:5: unknown verb `modle`; did you mean `model`?");
  EXPECT_EQ(
      short_errors_of_steps("  - let: {a: f(1, 2), b: 3}\n  - seed: a + b\n"),
      "t.yaml:5:15: the expression ends too soon: `(` is not closed; within {} and [] an expression with a comma, "
      "bracket or brace must be quoted");
  EXPECT_EQ(
      short_errors_of_steps("  - seed: yes\n"),
      "t.yaml:5:11: the plain word `yes` is refused, as YAML 1.1 reads it in its own way; write `true`, or quote it");
}

TEST(Document, ChecksCalls) {
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

TEST(Document, LetsOnlyStepsThatBindCommunicate) {
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

TEST(Document, ChecksOwnModels) {
  const auto with_model = [](const std::string& model) {
    return short_errors_of_steps("  - barrier: {}\n", str("models:\n", model));
  };
  EXPECT_EQ(with_model("  Own: {children: {a: 'Linear(2, 2)'}}\n"),
            "t.yaml:5:3: the model `Own` needs `forward` or `methods`");
  EXPECT_EQ(with_model("  own: {forward: x}\n"),
            "t.yaml:5:3: `own` is no name of a model: letters, digits and _ only, an upper-case letter first");
  EXPECT_EQ(with_model("  Own: {forward: y}\n"), "t.yaml:5:18: unknown name `y`; no earlier step binds it");
  EXPECT_EQ(with_model("  Own: {forward: x, methods: {forward(x): x}}\n"),
            "t.yaml:5:18: `forward` stands under `methods` already");
  EXPECT_EQ(with_model("  Own: {methods: {f: x}}\n"),
            "t.yaml:5:19: a method is written `name(inputs, option=default): expression`");
  EXPECT_EQ(with_model("  Own:\n    methods:\n      forward(x):\n        return: x\n        h: x\n"),
            "t.yaml:8:9: the last of a method's names must be `return`\nt.yaml:8:9: `return` must stand last");
  EXPECT_EQ(with_model("  Own: {children: {a: Own()}, forward: a(x)}\n"),
            "t.yaml:5:3: the model `Own` is a part of itself");
  EXPECT_EQ(with_model("  Own: {methods: {f(x): g(x), g(x): f(x)}}\n"),
            "t.yaml:5:19: the method `f` of `Own` calls itself\nt.yaml:5:31: the method `g` of `Own` calls itself");
  EXPECT_EQ(with_model("  Own: {arguments: {a: required}, parameters: {a: zeros(2)}, forward: x}\n"),
            "t.yaml:5:48: the model `Own` has `a` already, in line 5");
  EXPECT_EQ(with_model("  Own: {child: {}, forward: x}\n"),
            "t.yaml:5:9: unknown key `child` in a model; did you mean `children`?");
}

TEST(Document, ChecksHooks) {
  const std::string model = "  - model: Net()\n    as: m\n";
  EXPECT_EQ(errors_of_steps(model + "  - hook: {modules: m, at: before_forward}\n    steps: [{let: {seen: inputs}}]\n"
                                    "  - expect: len(seen) == 1\n"),
            "");
  EXPECT_EQ(short_errors_of_steps(model + "  - let: {a: inputs}\n"),
            "t.yaml:7:14: unknown name `inputs`; no earlier step binds it");
  EXPECT_EQ(short_errors_of_steps(model + "  - hook: {modules: m, at: after_step}\n    steps: [{seed: 1}]\n"),
            "t.yaml:7:5: `at: after_step` goes with `optimizer`");
  EXPECT_EQ(short_errors_of_steps(model + "  - hook: {at: after_step}\n    steps: [{seed: 1}]\n"),
            "t.yaml:7:5: `hook` needs one of `modules`, `parameters` and `optimizer`");
  EXPECT_EQ(
      short_errors_of_steps(
          model + "  - repeat: {times: 2, index: i}\n    steps:\n"
                  "      - hook: {modules: 'm.fc${i + 1}', at: before_forward}\n        steps: [{seed: i}]\n"),
      "t.yaml:10:24: a hook looks `i` up when it runs, after the loop has moved on; bind another name to its value "
      "with `let`");
}

TEST(Document, ChecksEntriesOfALabelledMatrix) {
  const std::string head = "matrix: {mode: {all: {recurse: true}, some: {recurse: false, depth: 2}}}\n";
  EXPECT_EQ(errors_of_steps("  - seed: mode.depth if mode.label == 'some' and mode.recurse else 1\n", head), "");
  EXPECT_EQ(short_errors_of_steps("  - seed: mode.detph\n", head),
            "t.yaml:6:16: `mode` has no entry `detph`; did you mean `depth`?");
}

}  // namespace
}  // namespace lockstep::scenario
