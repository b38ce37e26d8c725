#include "harness/scenario/document.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/scenario/testing.hpp"

namespace lockstep::scenario {
namespace {

using testing::errors_of_steps;
using testing::parsed;
using testing::scenario_of;
using testing::short_errors;
using testing::short_errors_of_steps;

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

TEST(Document, ReadsArgumentsByType) {
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

TEST(Document, ReadsModels) {
  const auto scenario = parsed(scenario_of("  - model: Two(3)\n    as: m\n  - expect: finite(m.p)\n", R"yaml(models:
  Two:
    arguments: {dim: required, scale: 1.5}
    children: {inner: "Linear(dim, dim)", 1: Part()}
    parameters: {p: "randn(dim, dim)"}
    buffers: {b: zeros(dim)}
    non_persistent_buffers: {n: ones(2)}
    methods:
      part(x, y, factor=scale * 1): inner(x) @ p + b
      forward(x):
        h: part(x, x, factor=2)
        return: relu(h)
  Part:
    forward: x * 2
)yaml"));
  const ModelDefinition* model = scenario->model("Two");
  ASSERT_NE(model, nullptr);
  EXPECT_TRUE(model->arguments[0].required);
  EXPECT_EQ(model->arguments[1].default_value->value.as_double(), 1.5);
  EXPECT_EQ(model->children[1].name, "1");
  EXPECT_EQ(model->buffers[0].name, "b");
  ASSERT_EQ(model->non_persistent_buffers.size(), 1u);
  EXPECT_EQ(model->non_persistent_buffers[0].name, "n");
  const MethodDefinition* part = model->method("part");
  ASSERT_NE(part, nullptr);
  EXPECT_EQ(part->inputs, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(part->options[0].first, "factor");
  const MethodDefinition* forward = model->method("forward");
  ASSERT_EQ(forward->body.size(), 2u);
  EXPECT_EQ(forward->body[0].name, "h");
  EXPECT_EQ(forward->body[1].name, "return");
  EXPECT_EQ(scenario->model("Part")->method("forward")->inputs, std::vector<std::string>{"x"});
}

TEST(Document, ShowsLineAndCaret) {
  EXPECT_EQ(errors_of_steps("  - model: Net()\n    as: m\n  - replicat: m\n"),
            "t.yaml:7:5: unknown verb `replicat`; did you mean `replicate`?\n"
            "    - replicat: m\n"
            "      ^");
  EXPECT_EQ(errors_of_steps("  - let:\n      a: >-\n        randn(2,\n        2) + b\n"),
            "t.yaml:8:14: unknown name `b`; no earlier step binds it\n"
            "          2) + b\n"
            "               ^");
}

TEST(Document, ReportsEveryError) {
  EXPECT_EQ(short_errors_of_steps("  - sead: 1\n  - seed: one\n  - model: Linear(2)\n    as: M\n  - step: {}\n"),
            "t.yaml:5:5: unknown verb `sead`; did you mean `seed`?\n"
            "t.yaml:6:11: unknown name `one`; no earlier step binds it\n"
            "t.yaml:7:12: Linear needs the argument `out`\n"
            "t.yaml:8:9: `M` is not a name; use lower-case letters, digits and _, with a letter first\n"
            "t.yaml:9:5: `step` needs `optimizer`");
}

TEST(Document, NamesMissingAndUnknownKeys) {
  EXPECT_EQ(short_errors("scenario: t/one\n"),
            "t.yaml:1:1: a scenario needs `summary`\n"
            "t.yaml:1:1: a scenario needs `ranks`, such as `ranks: {world_size: [2]}`\n"
            "t.yaml:1:1: a scenario needs either `steps` or `stages`");
  EXPECT_EQ(short_errors("- a\n"), "t.yaml:1:1: a scenario must be a map, got a list");
  EXPECT_EQ(short_errors("hello\n"), "t.yaml:1:1: a scenario must be a map, got a single value");
  const std::string step = "  - barrier: {}\n";
  EXPECT_EQ(short_errors_of_steps(step, "martix: {a: [1]}\n"),
            "t.yaml:4:1: unknown key `martix` in a scenario; did you mean `matrix`?");
  EXPECT_EQ(short_errors_of_steps(step, "device: [cpu, gpu]\n"),
            "t.yaml:4:9: unknown device `gpu`; did you mean `cpu`?");
  EXPECT_EQ(short_errors_of_steps(step, "timeout: 0\n"),
            "t.yaml:4:10: `timeout` must be a number of seconds, above 0 and at most 86400");
  EXPECT_EQ(short_errors_of_steps(step, "deadline: 86401\n"),
            "t.yaml:4:11: `deadline` must be a number of seconds, above 0 and at most 86400");
  EXPECT_EQ(short_errors_of_steps(step, "bits: maybe\n"),
            "t.yaml:4:7: `bits` must be `required` or `{reported: reason}`");
  EXPECT_EQ(short_errors_of_steps(step, "matrix: {a: 3}\n"),
            "t.yaml:4:13: `a` must be a list of values or a map of labelled values, got a single value");
  EXPECT_EQ(short_errors_of_steps(step, "matrix: {a: [1, 1]}\n"), "t.yaml:4:17: the value 1 of `a` occurs twice");
  EXPECT_EQ(short_errors_of_steps(step, "matrix: {a: [[1], ['1']]}\n"),
            "t.yaml:4:19: two values of `a` have the name [1] in cases; give them labels, such as {one: {value: ...}}");
  for (const char* values : {"[['a,b'], [a, b]]", "['[1]', [1]]", "[{label: a, x: 1}, {label: a, x: 2}]"})
    EXPECT_THAT(short_errors_of_steps(step, str("matrix: {a: ", values, "}\n")),
                ::testing::HasSubstr("two values of `a` have the name "));
  EXPECT_EQ(short_errors_of_steps(step, "matrix: {rank: [1]}\n"),
            "t.yaml:4:10: `rank` is a variable or type and cannot be a parameter or matrix name");
  EXPECT_EQ(short_errors_of_steps(step, "parameters: {a: 1}\nmatrix: {a: [1]}\n"),
            "t.yaml:5:10: `a` is a parameter already");
  EXPECT_EQ(short_errors_of_steps(step, "skip:\n  - {when: rank == 0, reason: r}\n"),
            "t.yaml:5:12: unknown name `rank`; no earlier step binds it");
  EXPECT_EQ(short_errors_of_steps(step, "skip:\n  - {when: 'item(world_size) == 1', reason: r}\n"),
            "t.yaml:5:13: `item` cannot be called before launch; only plain functions can");
  EXPECT_EQ(short_errors_of_steps(step, "skip:\n  - {when: true}\n"), "t.yaml:5:5: an item of `skip` needs `reason`");
  EXPECT_EQ(short_errors_of_steps(step, "expect_failure:\n  - {when: true, reason: r, line: 4294967303}\n"),
            "t.yaml:5:35: `line` must be from 1 to 1000000");
  EXPECT_EQ(short_errors_of_steps(step, "expect_failure:\n  - {when: true, reason: r, line: 0}\n"),
            "t.yaml:5:35: `line` must be from 1 to 1000000");
  EXPECT_EQ(short_errors_of_steps(step, "expect_failure:\n  - {when: true, reason: r, rank: 4294967296}\n"),
            "t.yaml:5:35: `rank` must be from 0 to 1000000");
  EXPECT_EQ(short_errors("scenario: a\nsummary: b\nranks: {world_size: [2, 0, 2], launch: fork}\nsteps: []\n"),
            "t.yaml:3:25: `world_size` must be from 1 to 65536\n"
            "t.yaml:3:28: the world size 2 occurs twice\n"
            "t.yaml:3:40: unknown launch `fork`; known here: process, thread\n"
            "t.yaml:4:8: `steps` must hold at least one step");
}

TEST(Document, FindsNearestWordInAnyCase) {
  EXPECT_EQ(nearest_word("Adamw", {"SGD", "Adam", "AdamW"}), "AdamW");
  EXPECT_EQ(nearest_word("linear", {"Linear", "LayerNorm"}), "Linear");
  EXPECT_EQ(nearest_word("RELU", {"GELU", "ReLU"}), "ReLU");
}

}  // namespace
}  // namespace lockstep::scenario
