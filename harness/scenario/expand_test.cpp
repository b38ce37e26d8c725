#include "harness/scenario/expand.hpp"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/scenario/testing.hpp"

namespace lockstep::scenario {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::parsed;
using testing::scenario_of;

constexpr const char* step = "  - barrier: {}\n";

std::vector<std::string> ids(const std::vector<Case>& cases) {
  std::vector<std::string> out;
  for (const Case& one : cases) out.push_back(one.id);
  return out;
}

template <class Action>
std::string error_of(Action action) {
  try {
    action();
  } catch (const Error& error) {
    return error.message();
  }
  return "none";
}

TEST(Expand, VariesTheFirstNameSlowest) {
  const auto scenario = parsed(
      "scenario: t/m\nsummary: s\nranks: {world_size: [4, 2], launch: [process, thread]}\n"
      "matrix: {a: [1, none], b: {x: {v: [1, 2]}, y: {v: 3}}}\nsteps:\n  - seed: 1\n");
  EXPECT_THAT(
      ids(expand(scenario, {})),
      ElementsAre(
          "a=1,b=x,world_size=4,launch=process,device=cpu", "a=1,b=x,world_size=4,launch=thread,device=cpu",
          "a=1,b=x,world_size=2,launch=process,device=cpu", "a=1,b=x,world_size=2,launch=thread,device=cpu",
          "a=1,b=y,world_size=4,launch=process,device=cpu", "a=1,b=y,world_size=4,launch=thread,device=cpu",
          "a=1,b=y,world_size=2,launch=process,device=cpu", "a=1,b=y,world_size=2,launch=thread,device=cpu",
          "a=none,b=x,world_size=4,launch=process,device=cpu", "a=none,b=x,world_size=4,launch=thread,device=cpu",
          "a=none,b=x,world_size=2,launch=process,device=cpu", "a=none,b=x,world_size=2,launch=thread,device=cpu",
          "a=none,b=y,world_size=4,launch=process,device=cpu", "a=none,b=y,world_size=4,launch=thread,device=cpu",
          "a=none,b=y,world_size=2,launch=process,device=cpu", "a=none,b=y,world_size=2,launch=thread,device=cpu"));
  const std::vector<Case> cases = expand(scenario, {});
  EXPECT_EQ(cases[0].params_json()[0], std::pair(std::string("a"), std::string("1")));
  EXPECT_EQ(cases[8].params_json()[0].second, "null");
  EXPECT_EQ(cases[0].params_json()[1].second, "\"x\"");
  EXPECT_EQ(cases[0].params[1].second.find("v")->text(), "[1,2]");
}

TEST(Expand, MakesDistinctIds) {
  const auto scenario = parsed(scenario_of(step, "matrix: {a: [1, '1', true, 'true', 1.0, [1, x], 'b c']}\n"));
  std::vector<std::string> values;
  for (const Case& one : expand(scenario, {})) values.push_back(one.id.substr(2, one.id.find(",world") - 2));
  EXPECT_THAT(values, ElementsAre("1", "'1'", "true", "'true'", "1.0", "[1,x]", "b c"));
}

TEST(Expand, FindsEveryCaseByItsOwnId) {
  const auto scenario = parsed(
      scenario_of(step, "matrix: {a: ['StridedShard(0, 2)', 'a,b', 'one, two and three', [x, 'y, z'], 'b c']}\n"));
  for (const Case& one : expand(scenario, {})) {
    ExpandOptions options;
    options.only = one.id;
    EXPECT_THAT(ids(expand(scenario, options)), ElementsAre(one.id));
  }
}

TEST(Expand, EvaluatesRulesBeforeLaunch) {
  const auto scenario = parsed(scenario_of(step, R"yaml(parameters: {limit: 2}
matrix:
  mode: {one: {n: 1}, three: {n: 3}}
  flag: [false, true]
skip:
  - when: mode.n > limit and not flag
    reason: too many
  - when: count([flag, mode.label == 'one']) == 2
    reason: covered
expect_failure:
  - when: flag and launch == 'process'
    reason: known
    line: 12
    message: off by one
)yaml"));
  const std::vector<Case> cases = expand(scenario, {});
  ASSERT_EQ(cases.size(), 4u);
  EXPECT_EQ(cases[0].skip, std::nullopt);
  EXPECT_EQ(cases[1].skip, "covered");
  EXPECT_EQ(cases[2].skip, "too many");
  EXPECT_EQ(cases[3].skip, std::nullopt);
  ASSERT_TRUE(cases[3].expect_failure);
  EXPECT_EQ(cases[3].expect_failure->reason, "known");
  EXPECT_EQ(cases[3].expect_failure->line, 12);
  EXPECT_FALSE(cases[0].expect_failure);
  ExpandOptions options;
  options.set = {"limit=3"};
  EXPECT_EQ(expand(scenario, options)[2].skip, std::nullopt);
  options.launch = Launch::thread;
  EXPECT_FALSE(expand(scenario, options)[3].expect_failure);
}

TEST(Expand, EvaluatesRulesForEachLaunchAndWorldSize) {
  const auto scenario = parsed(
      "scenario: t/m\nsummary: s\nranks: {world_size: [2, 3], launch: [process, thread]}\n"
      "skip: [{when: \"launch == 'thread' and world_size == 3\", reason: large}]\n"
      "expect_failure: [{when: launch == 'process', reason: known}]\nsteps:\n  - seed: 1\n");
  std::vector<std::string> skipped, failing;
  for (const Case& one : expand(scenario, {})) {
    if (one.skip) skipped.push_back(one.id);
    if (one.expect_failure) failing.push_back(one.id);
  }
  EXPECT_THAT(skipped, ElementsAre("world_size=3,launch=thread,device=cpu"));
  EXPECT_THAT(failing, ElementsAre("world_size=2,launch=process,device=cpu", "world_size=3,launch=process,device=cpu"));
}

TEST(Expand, EvaluatesExpectedFailuresAndEvidence) {
  const auto scenario =
      parsed(scenario_of(step,
                         "matrix: {n: [3]}\nevidence: {comparisons: 2 * n, rtol: 0.5}\nexpect_failure:\n"
                         "  - {when: n == 3, reason: r, verdict: HANG, rank: 1, also: ['rank 0: a*', 'rank 2: b'],\n"
                         "     flight_recorder: waits}\n"));
  const Case one = expand(scenario, {}).at(0);
  EXPECT_THAT(one.evidence, ElementsAre(std::pair("comparisons", 6.0), std::pair("rtol", 0.5)));
  ASSERT_TRUE(one.expect_failure);
  EXPECT_EQ(one.expect_failure->verdict, "HANG");
  EXPECT_EQ(one.expect_failure->rank, 1);
  EXPECT_THAT(one.expect_failure->also.value(), ElementsAre("rank 0: a*", "rank 2: b"));
  EXPECT_EQ(one.expect_failure->flight_recorder, "waits");
  const auto text = parsed(scenario_of(step, "matrix: {n: ['a']}\nevidence: {elements: n}\n"));
  EXPECT_THAT(error_of([&] { expand(text, {}); }), HasSubstr("`elements` must be a number"));
}

TEST(Expand, ReportsPlaceOfBrokenRule) {
  const auto scenario = parsed(scenario_of(step, "matrix: {n: [0]}\nskip:\n  - {when: 1 // n == 1, reason: r}\n"));
  EXPECT_EQ(error_of([&] { expand(scenario, {}); }), "t.yaml:6:14: division by zero in 1 // 0");
  const auto number = parsed(scenario_of(step, "matrix: {n: [3]}\nskip:\n  - {when: n, reason: r}\n"));
  EXPECT_EQ(error_of([&] { expand(number, {}); }), "t.yaml:6:12: `when` must be a boolean, got integer 3");
}

TEST(Expand, KeepsTypesOfSettings) {
  const auto scenario = parsed(scenario_of(step, "parameters: {i: 1, d: 0.5, b: true, t: word, l: [1], n: none}\n"));
  const auto value = [&](const std::string& setting, std::size_t index) {
    ExpandOptions options;
    options.set = {setting};
    return expand(scenario, options)[0].parameters[index].second;
  };
  EXPECT_EQ(value("i=-7", 0).as_int(), -7);
  EXPECT_TRUE(value("d=2", 1).is_double());
  EXPECT_EQ(value("d=1e-3", 1).as_double(), 1e-3);
  EXPECT_EQ(value("b=false", 2).as_bool(), false);
  EXPECT_EQ(value("t=7", 3).as_text(), "7");
  EXPECT_EQ(value("t=a=b", 3).as_text(), "a=b");
  EXPECT_EQ(value("l=[2, x]", 4).text(), "[2,x]");
  EXPECT_EQ(value("n=3", 5).as_int(), 3);
  EXPECT_EQ(error_of([&] { value("i=1.5", 0); }), "--set i=1.5: `i` is an integer, 1 in the file");
  EXPECT_EQ(error_of([&] { value("b=1", 0); }), "--set b=1: `b` is true or false, true in the file");
  EXPECT_EQ(error_of([&] { value("l=3", 0); }), "--set l=3: `l` is a list, [1] in the file");
  EXPECT_EQ(error_of([&] { value("k=3", 0); }), "--set: t/one has no parameter `k`; known here: i, d, b, t, l, n");
  EXPECT_EQ(error_of([&] { value("i", 0); }), "--set: `i` is not of the form NAME=VALUE");
}

TEST(Expand, ChoosesCasesAndSizes) {
  const auto scenario = parsed(scenario_of(step, "matrix: {a: [1, 2], l: [[1, 2], x]}\n"));
  ExpandOptions options;
  options.only = "a=2,l=[1,2]";
  EXPECT_THAT(ids(expand(scenario, options)), ElementsAre("a=2,l=[1,2],world_size=2,launch=process,device=cpu"));
  options.only = "b=2";
  EXPECT_EQ(error_of([&] { expand(scenario, options); }),
            "--case: `b` is not a matrix name of t/one; known here: a, l, world_size, launch, device");
  options.only = "a";
  EXPECT_EQ(error_of([&] { expand(scenario, options); }), "--case: `a` is not of the form key=value");
  options = {};
  options.world_size = 3;
  EXPECT_EQ(expand(scenario, options)[0].world_size, 3);
  EXPECT_THAT(expand(scenario, options)[0].repro(), HasSubstr(" --world-size 3"));
  options.world_size = 0;
  EXPECT_EQ(error_of([&] { expand(scenario, options); }), "--world-size must be from 1 to 65536, got 0");
}

TEST(Expand, ChoosesTheDevice) {
  const auto anywhere = parsed(scenario_of(step));
  const auto elsewhere = parsed(scenario_of(step, "device: [cuda, sim]\n"));
  EXPECT_EQ(expand(anywhere, {})[0].device, "cpu");
  EXPECT_EQ(expand(elsewhere, {})[0].device, "sim");
  ExpandOptions options;
  options.device = "cpu";
  EXPECT_EQ(expand(elsewhere, options)[0].skip, "runs on cuda, sim, not on cpu");
  options.device = "cuda";
  EXPECT_EQ(expand(anywhere, options)[0].unsupported, "this build has no cuda device");
  options.missing_devices = {{"cuda", "no driver (install one)"}};
  EXPECT_EQ(expand(anywhere, options)[0].unsupported, "no driver (install one)");
  options.device = "gpu";
  EXPECT_EQ(error_of([&] { expand(anywhere, options); }), "unknown device `gpu`; did you mean `cpu`?");
  options = {};
  options.available_devices = {"cpu"};
  EXPECT_EQ(expand(elsewhere, options)[0].unsupported, "this build has none of the devices cuda, sim");
  options = {};
  options.only = "device=sim";
  EXPECT_EQ(expand(anywhere, options)[0].device, "sim");
}

TEST(Expand, EvaluatesWorldSizesOfStages) {
  const auto scenario = parsed(
      "scenario: t/s\nsummary: s\nranks: {world_size: [4, 1]}\nskip:\n  - {when: world_size == 1, reason: r}\nstages:\n"
      "  - name: one\n    steps: [{seed: 1}]\n  - name: two\n    world_size: world_size // 2\n    steps: [{seed: "
      "1}]\n");
  const std::vector<Case> cases = expand(scenario, {});
  EXPECT_EQ(cases[0].stages[0].world_size, 4);
  EXPECT_EQ(cases[0].stages[1].world_size, 2);
  EXPECT_EQ(cases[0].stages[1].name, "two");
  EXPECT_EQ(cases[1].skip, "r");
  ExpandOptions options;
  options.world_size = 8;
  EXPECT_EQ(expand(scenario, options)[0].stages[1].world_size, 4);
}

TEST(Expand, LimitsNumberOfCases) {
  std::string head = "matrix:\n";
  for (char name = 'a'; name < 'e'; ++name) head += str("  ", name, ": [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]\n");
  EXPECT_EQ(expand(parsed(scenario_of(step, head)), {}).size(), 10000u);
  head += "  e: [1, 2]\n";
  EXPECT_EQ(error_of([&] { expand(parsed(scenario_of(step, head)), {}); }),
            "t.yaml:9:3: the matrix has more than 10000 cases");
}

TEST(Expand, ExpandsAllScenarios) {
  const auto one = parsed(scenario_of(step, "parameters: {seed: 1}\nmatrix: {a: [1, 2]}\ntags: [fast]\n"));
  const auto two =
      parsed("scenario: t/two\nsummary: s\nranks: {world_size: [2]}\ntimeout: 5\ndeadline: 0.5\nsteps:\n  - seed: 1\n");
  ExpandOptions options;
  EXPECT_EQ(expand_all({one, two}, options).size(), 3u);
  EXPECT_EQ(expand_all({one, two}, options)[2].timeout, 5);
  EXPECT_EQ(expand_all({one, two}, options)[2].deadline, 0.5);
  EXPECT_EQ(expand_all({one, two}, options)[0].deadline, std::nullopt);
  options.timeout = 7;
  EXPECT_EQ(expand_all({one, two}, options)[2].timeout, 7);
  options = {};
  options.set = {"seed=7"};
  const std::vector<Case> cases = expand_all({one, two}, options);
  EXPECT_EQ(cases[0].parameters[0].second.as_int(), 7);
  EXPECT_EQ(cases[0].repro(), "lockstep run t/one --case 'a=1,world_size=2,launch=process,device=cpu' --set 'seed=7'");
  EXPECT_EQ(cases[2].repro(), "lockstep run t/two --case 'world_size=2,launch=process,device=cpu'");
  options.set = {"sead=7"};
  EXPECT_EQ(error_of([&] {
              expand_all({one, two}, options);
            }),
            "--set: no chosen scenario has the parameter `sead`; did you mean `seed`?");
  options = {};
  options.only = "a=2";
  EXPECT_EQ(expand_all({one, two}, options).size(), 1u);
  options.only = "a=3";
  EXPECT_EQ(error_of([&] { expand_all({one, two}, options); }), "--case: no case matches a=3");
  options.only = "c=3";
  EXPECT_THAT(error_of([&] {
                expand_all({one, two}, options);
              }),
              HasSubstr("no chosen scenario has the matrix name `c`"));
  options = {};
  options.tags = {"fast"};
  EXPECT_EQ(expand_all({one, two}, options).size(), 2u);
  options.tags = {"slow"};
  EXPECT_EQ(error_of([&] { expand_all({one, two}, options); }), "--tag: no scenario has the tag slow");
  options = {};
  options.shard = std::pair(2, 2);
  EXPECT_THAT(ids(expand_all({one, two}, options)), ElementsAre("a=2,world_size=2,launch=process,device=cpu"));
  options.shard = std::pair(3, 2);
  EXPECT_EQ(error_of([&] { expand_all({one, two}, options); }), "--shard 3/2 must be I/N with I from 1 to N");
}

// ---- files that exceed the limits of evaluation ----

constexpr const char* ten_thousand_cases =
    "matrix: {a: [0,1,2,3,4,5,6,7,8,9], b: [0,1,2,3,4,5,6,7,8,9], c: [0,1,2,3,4,5,6,7,8,9], d: "
    "[0,1,2,3,4,5,6,7,8,9]}\n";

std::string rule(const std::string& when) { return str("skip: [{when: \"", when, "\", reason: r}]\n"); }

TEST(ExpandBudget, EvaluatesRuleOncePerValuesOfItsNames) {
  // 10,000 evaluations of 10,000 steps each would take many seconds.
  const auto scenario = parsed(scenario_of(step, str(ten_thousand_cases, rule("sum([i for i in range(10000)]) < a"))));
  const std::vector<Case> cases = expand(scenario, {});
  ASSERT_EQ(cases.size(), 10000u);
  EXPECT_EQ(std::count_if(cases.begin(), cases.end(), [](const Case& one) { return one.skip.has_value(); }), 0);
  const auto some = parsed(scenario_of(step, str(ten_thousand_cases, rule("a == 3 and world_size == 2"))));
  const std::vector<Case> skipped = expand(some, {});
  EXPECT_EQ(std::count_if(skipped.begin(), skipped.end(), [](const Case& one) { return one.skip.has_value(); }), 1000);
  EXPECT_FALSE(skipped[2999].skip);
  EXPECT_TRUE(skipped[3000].skip);
  EXPECT_TRUE(skipped[3999].skip);
  EXPECT_FALSE(skipped[4000].skip);
}

TEST(ExpandBudget, StopsSlowExpressionAtItsPlace) {
  const ExprPtr expr =
      parse_expression("sum([sum([j for j in range(10000)]) for i in range(100)])", Place{"t.yaml", 3, 5});
  Budget budget({.seconds = 0.02, .of = "the rules"});
  const BudgetScope scope(budget);
  const std::string message = error_of([&] { evaluate_constant(*expr, {}, "t.yaml"); });
  EXPECT_THAT(message, HasSubstr("t.yaml:3:"));
  EXPECT_THAT(message, HasSubstr("the rules may take 0.02 s, and this time is used up"));
}

TEST(ExpandBudget, StopsGrowingListsAndTextsAtTheirPlace) {
  for (const char* when : {"len([range(10000) for i in range(10000)]) == 1",
                           "len([[range(10000) for i in range(10000)] for j in range(10000)]) == 1",
                           "[sum([range(10000) for i in range(10000)])] == []"}) {
    const auto scenario = parsed(scenario_of(step, rule(when)));
    const std::string message = error_of([&] { expand(scenario, {}); });
    EXPECT_THAT(message, HasSubstr("t.yaml:4:")) << when;
    EXPECT_THAT(message, HasSubstr("of the 256 MiB that the rules and cases of a scenario may use")) << when;
  }
  std::string sum = "t";
  for (int i = 0; i < 480; ++i) sum += "+t";
  const auto text = parsed(
      scenario_of(step, str("parameters: {t: ", std::string(900'000, 'x'), "}\n", rule(str("len(", sum, ") == 1")))));
  EXPECT_THAT(error_of([&] { expand(text, {}); }), HasSubstr("t.yaml:5:"));
}

TEST(ExpandBudget, ShortensValuesInMessages) {
  const auto scenario = parsed(scenario_of(step, rule("[[[range(1000) for i in range(100)] for j in range(10)]][0]")));
  const std::string message = error_of([&] { expand(scenario, {}); });
  EXPECT_THAT(message, HasSubstr("must be a boolean, got list [[[0,1,2,"));
  EXPECT_LT(message.size(), 300u);
}

TEST(ExpandBudget, SharesValuesBetweenCases) {
  std::string items = "0";
  for (int i = 1; i < 9900; ++i) items += str(",", i);
  const auto scenario = parsed(scenario_of(step, str("parameters: {t: [", items, "]}\n", ten_thousand_cases)));
  const std::vector<Case> cases = expand(scenario, {});
  EXPECT_EQ(&cases.front().parameters[0].second.as_list(), &cases.back().parameters[0].second.as_list());
  // Ids are texts: 10,000 ids of 50,000 characters each are refused.
  std::string matrix = ten_thousand_cases;
  matrix.insert(matrix.find('{') + 1, str("t: [[", items, "]], "));
  const auto ids = parsed(scenario_of(step, matrix));
  EXPECT_THAT(error_of([&] { expand(ids, {}); }), HasSubstr("cases needs"));
}

TEST(ShellQuoted, KeepsEveryCharacter) {
  EXPECT_EQ(shell_quoted("a b$"), "'a b$'");
  EXPECT_EQ(shell_quoted("it's"), "'it'\\''s'");
  EXPECT_EQ(shell_quoted("it's\\a\nb\x7f"), "$'it\\'s\\\\a\\012b\\177'");
}

TEST(Expand, PrefersLimitsOfCommandLine) {
  const auto scenario = parsed(scenario_of(step, "limits: {memory_mb: 100, output_mb: 5}\n"));
  EXPECT_EQ(expand(scenario, {})[0].memory_mb, 100);
  EXPECT_EQ(expand(scenario, {})[0].output_mb, 5);
  ExpandOptions options;
  options.memory_mb = 7;
  options.output_mb = 8;
  const Case one = expand(scenario, options)[0];
  EXPECT_EQ(one.memory_mb, 7);
  EXPECT_EQ(one.output_mb, 8);
  EXPECT_THAT(one.repro(), HasSubstr(" --memory-mb 7 --output-mb 8"));
  const Case plain = expand(parsed(scenario_of(step)), {})[0];
  EXPECT_EQ(plain.memory_mb, std::nullopt);
  EXPECT_EQ(plain.output_mb, limits::output_mb);
  for (const char* wrong : {"limits: 3\n", "limits: {memory: 3}\n", "limits: {memory_mb: 0}\n",
                            "limits: {output_mb: 99999999}\n", "limits: {memory_mb: 1.5}\n"})
    EXPECT_THAT(testing::errors_of_steps(step, wrong), HasSubstr("t.yaml:4:")) << wrong;
}

TEST(Expand, PrefersTheOrderOfSumsOfTheCommandLine) {
  EXPECT_EQ(expand(parsed(scenario_of(step)), {})[0].sum_order, SumOrder::fixed);
  const auto scenario = parsed(scenario_of(step, "sum_order: library\n"));
  EXPECT_EQ(expand(scenario, {})[0].sum_order, SumOrder::library);
  ExpandOptions options;
  options.sum_order = SumOrder::fixed;
  const Case one = expand(scenario, options)[0];
  EXPECT_EQ(one.sum_order, SumOrder::fixed);
  EXPECT_THAT(one.repro(), HasSubstr(" --sum-order fixed"));
  for (const char* wrong : {"sum_order: any\n", "sum_order: [fixed]\n"})
    EXPECT_THAT(testing::errors_of_steps(step, wrong), HasSubstr("`sum_order` must be `fixed` or `library`")) << wrong;
}

}  // namespace
}  // namespace lockstep::scenario
