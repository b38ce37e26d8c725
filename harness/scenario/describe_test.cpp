#include "harness/scenario/describe.hpp"

#include <cstdlib>
#include <fstream>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "harness/scenario/testing.hpp"

namespace lockstep::scenario {
namespace {

using ::testing::HasSubstr;

TEST(Vocabulary, ParsesSignatures) {
  const VerbSpec& reduce = spec_of(Verb::all_reduce);
  EXPECT_EQ(reduce.name, "all_reduce");
  EXPECT_EQ(reduce.result, "handle");
  ASSERT_EQ(reduce.arguments.size(), 4u);
  EXPECT_EQ(reduce.arguments[1].type, ArgType::choice);
  EXPECT_EQ(reduce.arguments[1].choices, (std::vector<std::string>{"sum", "mean", "max", "min", "product"}));
  EXPECT_EQ(reduce.arguments[2].default_text, "all_ranks");
  EXPECT_EQ(reduce.alone(), nullptr);
  EXPECT_EQ(spec_of(Verb::seed).alone()->name, "value");
  EXPECT_TRUE(spec_of(Verb::let).free_names);
  EXPECT_EQ(spec_of(Verb::expect_equal).num_in_order, 2);
  EXPECT_EQ(spec_of(Verb::optimizer).arguments[6].default_text, "[0.9, 0.999]");
  const FunctionSpec& range = spec_of(Function::range);
  EXPECT_EQ(range.min_positional, 1);
  EXPECT_EQ(range.max_positional, 3);
  EXPECT_EQ(spec_of(Function::zeros).max_positional, -1);
  EXPECT_EQ(spec_of(Function::zeros).keywords, (std::vector<std::string>{"dtype", "device"}));
}

TEST(Vocabulary, OrdersTablesAsEnumerations) {
  for (std::size_t i = 0; i < verbs().size(); ++i) EXPECT_EQ(static_cast<std::size_t>(verbs()[i].id), i);
  for (const FunctionSpec& spec : functions()) EXPECT_EQ(&spec_of(spec.id), &spec);
  for (const VerbSpec& spec : verbs()) {
    EXPECT_EQ(find_verb(spec.name), &spec);
    int alone = 0;
    for (const ArgumentSpec& argument : spec.arguments) alone += argument.alone ? 1 : 0;
    EXPECT_LE(alone, 1) << spec.name;
    // Defaults are parsed only when a step omits the argument; this test finds mistakes in them.
    if (spec.free_names || spec.id == Verb::use) continue;
    for (const ArgumentSpec& argument : spec.arguments) {
      if (argument.has_default() && !is_literal(argument.type)) {
        EXPECT_NO_THROW(parse_expression(argument.default_text, Place{})) << spec.name << " " << argument.name;
      }
    }
  }
  // The choices of `at` and the rows of hook_points() are the same.
  const VerbSpec& hook = spec_of(Verb::hook);
  const std::vector<std::string>& places = hook.arguments[*hook.index_of("at")].choices;
  ASSERT_EQ(places.size(), hook_points().size());
  for (std::size_t i = 0; i < places.size(); ++i) EXPECT_EQ(places[i], hook_points()[i].name);
}

TEST(Schema, ContainsTheVocabulary) {
  const nlohmann::json parsed = nlohmann::json::parse(schema());
  EXPECT_EQ(parsed["$schema"], "http://json-schema.org/draft-07/schema#");
  EXPECT_EQ(parsed["then"]["$ref"], "#/definitions/routine");
  EXPECT_EQ(parsed["else"]["$ref"], "#/definitions/scenario");
  const nlohmann::json& scenario = parsed["definitions"]["scenario"];
  EXPECT_EQ(scenario["required"], nlohmann::json({"scenario", "summary", "ranks"}));
  for (const KeySpec& key : scenario_keys())
    EXPECT_TRUE(scenario["properties"].contains(std::string(key.name))) << key.name;
  const nlohmann::json& routine = parsed["definitions"]["routine"];
  EXPECT_EQ(routine["required"], nlohmann::json({"routine", "summary", "steps"}));
  EXPECT_EQ(routine["properties"].size(), routine_keys().size());
  const nlohmann::json& step = parsed["definitions"]["step"];
  EXPECT_EQ(step["oneOf"].size(), verbs().size());
  for (const VerbSpec& spec : verbs()) EXPECT_TRUE(step["properties"].contains(std::string(spec.name))) << spec.name;
  for (const std::string& name : step_modifiers()) EXPECT_TRUE(step["properties"].contains(name)) << name;
  EXPECT_EQ(step["properties"].size(), verbs().size() + step_modifiers().size());
  EXPECT_EQ(step["dependencies"]["repeat"], nlohmann::json({"steps"}));
  // Every $ref names a definition.
  const std::string text = schema();
  const std::string mark = "#/definitions/";
  for (std::size_t at = text.find(mark); at != std::string::npos; at = text.find(mark, at + 1)) {
    const std::size_t start = at + mark.size();
    const std::string name = text.substr(start, text.find('"', start) - start);
    EXPECT_TRUE(parsed["definitions"].contains(name)) << name;
  }
}

TEST(Reference, ContainsTheVocabulary) {
  const std::string page = reference();
  for (const VerbSpec& spec : verbs()) {
    EXPECT_THAT(page, HasSubstr(str("| `", spec.name, "` |")));
    for (const ArgumentSpec& argument : spec.arguments)
      EXPECT_THAT(page, HasSubstr(str(argument.name, argument.optional ? "?: " : ": ")));
  }
  for (const FunctionSpec& spec : functions())
    EXPECT_THAT(page, HasSubstr(str("| `", spec.name, "(", spec.signature, ")` |")));
  for (const KeySpec& key : scenario_keys()) EXPECT_THAT(page, HasSubstr(str("| `", key.name, "`")));
  for (const HookPointSpec& point : hook_points()) EXPECT_THAT(page, HasSubstr(str("| `", point.name, "` |")));
}

// The examples on the page must be valid.
TEST(Reference, ShowsValidExamples) {
  const std::string page = reference();
  const std::string open = "```yaml\n";
  int scenarios = 0;
  int routines = 0;
  for (std::size_t at = page.find(open); at != std::string::npos; at = page.find(open, at + 1)) {
    const std::size_t start = at + open.size();
    const std::string text = page.substr(start, page.find("```", start) - start);
    if (text.starts_with("scenario:")) {
      EXPECT_EQ(testing::errors_of(text), "");
      ++scenarios;
    } else if (text.starts_with("routine:")) {
      Library library("/nowhere");
      EXPECT_NO_THROW(library.add_routine("average_gradients", text));
      ++routines;
    } else if (text.starts_with("models:")) {
      EXPECT_EQ(testing::errors_of_steps("  - model: Gated(4)\n    as: m\n", text), "");
    }
  }
  EXPECT_EQ(scenarios, 1);
  EXPECT_EQ(routines, 1);
}

TEST(Reference, IsUpToDate) {
  std::ifstream stream(LOCKSTEP_SOURCE_DIR "/scenarios/REFERENCE.md");
  std::stringstream text;
  text << stream.rdbuf();
  if (std::getenv("LOCKSTEP_WRITE_REFERENCE") != nullptr) {
    std::ofstream(LOCKSTEP_SOURCE_DIR "/scenarios/REFERENCE.md") << reference();
    return;
  }
  EXPECT_TRUE(text.str() == reference()) << "scenarios/REFERENCE.md is out of date; run "
                                            "`lockstep reference > scenarios/REFERENCE.md`";
}

}  // namespace
}  // namespace lockstep::scenario
