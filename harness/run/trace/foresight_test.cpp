#include "harness/run/trace/foresight.hpp"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "engine/core/text.hpp"
#include "harness/scenario/library.hpp"

namespace lockstep::run {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// "line:column message" of each error. Lines count from the first line of `steps`.
std::vector<std::string> errors_of(const std::string& steps, const std::string& head = "") {
  scenario::Library library("/nowhere");
  library.add_routine("shard_layer",
                      "routine: shard_layer\nsummary: Shards one layer.\nparameters: {model: model, layer: text}\n"
                      "steps:\n  - fully_shard: model.${layer}\n");
  library.add_routine("redraw",
                      "routine: redraw\nsummary: Draws parameters again.\nparameters: {parts: modules}\n"
                      "steps:\n  - reset_parameters: parts\n");
  const auto scenario = library.load_text(
      str("steps:\n", steps, "scenario: test/text\nsummary: A test.\nranks: {world_size: [2]}\n", head), "text.yaml");
  scenario::Diagnostics found;
  check_before_launch(scenario::expand(scenario, {}), found);
  std::vector<std::string> texts;
  for (const scenario::Diagnostic& item : found.sorted())
    texts.push_back(str(item.place.line - 1, ":", item.place.column, " ", item.message));
  return texts;
}

constexpr const char* model = "  - {model: \"Sequential(Linear(2, 2), ReLU(), Linear(2, 2))\", as: m}\n";

TEST(Foresight, ReportsPathsThatMatchNothing) {
  EXPECT_THAT(errors_of(str(model, R"yaml(  - fully_shard: [m.0, m.3, m]
  - set_requires_grad: {parameters: m.0.wieght, to: false}
  - prefetch: {module: m.0, forward: "m.${1 + 3}"}
  - expect: m.0.bias.grad == none
)yaml")),
              ElementsAre("2:24 the path `m.3` matches no module; did you mean `m.0`?",
                          "3:37 the path `m.0.wieght` matches no parameter; did you mean `m.0.weight`?",
                          testing::StartsWith("4:39 the path `m.4` matches no module")));
}

TEST(Foresight, ReportsUnknownMembersOfModules) {
  EXPECT_THAT(errors_of(str(model, "  - expect_equal: [m.0.weigth, m.2.weight]\n")),
              ElementsAre(HasSubstr("has no `weigth`; did you mean `weight`?")));
  // An operand that may not be evaluated is not checked.
  EXPECT_THAT(errors_of(str(model, "  - expect: world_size == 2 or m.0.weigth == none\n")), IsEmpty());
}

TEST(Foresight, ReportsWrongEvents) {
  EXPECT_THAT(errors_of(str(model, R"yaml(  - fully_shard: m
  - observe: {}
    as: run
    steps:
      - forward: {y: "m(ones(2, 2))"}
  - expect_events: {during: run, model: m, never: [reduce m.0, unshart 0]}
  - expect_events: {during: run, model: m, kinds: [reduc], exactly: "${['unshard 0', 'unshard 7']}"}
)yaml")),
              ElementsAre(HasSubstr("`m.0` of the event `reduce m.0` is no path below `m`; did you mean `0`?"),
                          HasSubstr("unknown kind of event `unshart`; did you mean `unshard`?"),
                          HasSubstr("unknown kind of event `reduc`"), HasSubstr("`7` of the event `unshard 7`")));
}

TEST(Foresight, FollowsLoopsBranchesCopiesAndRoutines) {
  EXPECT_THAT(
      errors_of(str(model, R"yaml(  - copy: m
    as: n
  - let: {first: m.0, layers: ["0", "2"]}
  - repeat: {times: 2, index: i}
    steps:
      - unshard: m.${2 * i}
      - reshard: n.${i + 2}
  - for_each: {name: one, in: layers}
    steps:
      - unshard: first.${one}
  - if: world_size == 3
    steps:
      - unshard: m.8
    else:
      - unshard: m.9
  - use: shard_layer
    with: {model: n, layer: "4"}
  - expect: rank < 2
)yaml")),
      ElementsAre(testing::AllOf(HasSubstr("`model.4` matches no module"), HasSubstr("(used by text.yaml:18:5)")),
                  HasSubstr("`n.3`"), HasSubstr("`first.0`"), HasSubstr("`first.2`"), HasSubstr("`m.9`")));
}

TEST(Foresight, FollowsPathsOfModulesIntoRoutines) {
  EXPECT_THAT(errors_of(str(model, R"yaml(  - use: redraw
    with: {parts: m.*}
  - use: redraw
    with: {parts: [m.0, m.2]}
  - use: redraw
    with: {parts: [m.0, m.7]}
  - expect: rank < 2
)yaml")),
              ElementsAre(HasSubstr("the path `m.7` matches no module")));
}

// A path or condition that depends on a run may be correct.
TEST(Foresight, SkipsStepsThatDependOnARun) {
  EXPECT_THAT(errors_of(str(model, R"yaml(  - unshard: m.7
    raises: matches no module
  - forward: {y: "m(ones(2, 2))"}
  - let: {at: "int(item(sum(y)))", name: "'7'"}
  - unshard: m.${at}
  - unshard: m.8
    when: m.0.weight.grad != none
  - if: at == 1
    steps:
      - let: {name: "'0'"}
  - unshard: m.${name}
  - hook: {modules: m.0, at: before_forward}
    steps:
      - let: {later: "'9'"}
  - let: {later: "'5'"}
  - unshard: m.${later}
  - repeat: at
    steps:
      - let: {name: "'6'"}
  - unshard: m.${name}
  - expect: at == 1
)yaml")),
              IsEmpty());
}

TEST(Foresight, ReportsCasesWithoutAnyCheck) {
  EXPECT_THAT(errors_of("  - let: {x: ones(2)}\n"), ElementsAre(HasSubstr("no step checks anything")));
  const std::string some = "  - {expect: rank < 2, when: kind == 'a'}\n";
  EXPECT_THAT(errors_of(some, "matrix: {kind: [a]}\n"), IsEmpty());
  EXPECT_THAT(errors_of(some, "matrix: {kind: [a, b]}\n"),
              ElementsAre(HasSubstr("no step checks anything in the case [kind=b")));
  EXPECT_THAT(errors_of(some, "matrix: {kind: [a, b]}\nskip: [{when: kind == 'b', reason: none}]\n"), IsEmpty());
  EXPECT_THAT(errors_of("  - {barrier: all_ranks, raises: never}\n"), IsEmpty());
}

TEST(Foresight, CountsChecksOfTheBranchesThatRun) {
  const auto silent = ElementsAre(HasSubstr("no step checks anything"));
  const auto block = [](const std::string& head) {
    return str("  - ", head, "\n    steps:\n      - expect: rank < 2\n");
  };
  const std::string otherwise = "    else:\n      - barrier: all_ranks\n";
  EXPECT_THAT(errors_of(block("if: world_size > 8")), silent);
  EXPECT_THAT(errors_of(str(block("if: world_size > 8"), otherwise)), silent);
  EXPECT_THAT(errors_of(str(block("if: world_size == 2"), otherwise)), IsEmpty());
  const std::string in_else =
      "  - if: world_size == 2\n    steps:\n      - barrier: all_ranks\n    else:\n      - expect: rank < 2\n";
  EXPECT_THAT(errors_of(in_else), silent);
  EXPECT_THAT(errors_of(block("repeat: 2\n    when: world_size > 8")), silent);
  EXPECT_THAT(
      errors_of(
          "  - if: world_size > 8\n    steps:\n      - repeat: 2\n        steps:\n          - expect: rank < 2\n"),
      silent);
  const std::string chosen =
      "  - choose: kind\n    among:\n      a:\n        - barrier: all_ranks\n      b:\n        - expect: rank < 2\n";
  EXPECT_THAT(errors_of(chosen, "matrix: {kind: [a]}\n"), silent);
  EXPECT_THAT(errors_of(chosen, "matrix: {kind: [b]}\n"), IsEmpty());
  // Either branch may run.
  const std::string drawn = "  - let: {drawn: item(sum(randn(2)))}\n";
  EXPECT_THAT(errors_of(str(drawn, block("if: drawn > 0"), otherwise)), IsEmpty());
}

TEST(Foresight, SkipsCasesThatMustFail) {
  EXPECT_THAT(errors_of(str(model, "  - unshard: m.7\n"), "expect_failure: [{when: true, reason: no such layer}]\n"),
              IsEmpty());
}

}  // namespace
}  // namespace lockstep::run
