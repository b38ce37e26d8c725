// The vocabulary of the scenario language and the engine agree: the models that it builds, and the settings that
// applied() shows.
#include "harness/scenario/vocabulary.hpp"

#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "engine/nn/build.hpp"
#include "harness/run/test_support.hpp"

namespace lockstep::run {
namespace {

TEST(Vocabulary, ListsTheModelsThatTheEngineBuilds) {
  std::vector<std::string> stated, built;
  for (const scenario::ModelSpec& model : scenario::built_in_models()) {
    std::string text = str(model.name, "(");
    for (const std::string& argument : model.arguments) text += str(argument, " ");
    stated.push_back(text + ")");
  }
  for (const nn::BuilderInfo& info : nn::builders()) {
    std::string text = str(info.name, "(");
    for (const nn::ArgumentInfo& argument : info.arguments)
      text += str(argument.name, argument.required ? "" : "?", " ");
    built.push_back(text + (info.variadic ? "... )" : ")"));
  }
  std::sort(stated.begin(), stated.end());
  std::sort(built.begin(), built.end());
  EXPECT_EQ(stated, built);
}

struct AppliedVerb {
  std::string verb, steps;                     // the steps apply it to `m`
  std::set<std::string> others;                // arguments that are no settings
  std::map<std::string, std::string> renamed;  // settings under another name
};

// A condition per setting that applied(m) must show.
std::string conditions(const std::string& api, const std::vector<std::string>& settings) {
  std::string text;
  for (const std::string& setting : settings)
    text += str("  - expect: has(applied(m)['", api, "'], '", setting, "')\n");
  return text;
}

TEST(Vocabulary, AppliedShowsEveryArgumentOfTheParallelVerbs) {
  const std::vector<AppliedVerb> verbs = {
      {"replicate", "  - replicate: m\n", {"modules"}, {{"device_id", "device_ids"}}},
      {"fully_shard", "  - fully_shard: m\n", {"modules"}, {}},
      {"flat_shard", "  - flat_shard: m\n", {"modules"}, {}},
      {"activation_checkpoint", "  - activation_checkpoint: m\n", {"modules"}, {}},
      {"tensor_parallel",
       "  - mesh: {shape: [2], names: [tp]}\n    as: tp\n"
       "  - tensor_parallel: {model: model, mesh: tp, plan: \"{'0': colwise()}\"}\n",
       {"model"},
       {{"plan", "style"}}},
  };
  for (const AppliedVerb& one : verbs) {
    std::vector<std::string> settings;
    for (const scenario::ArgumentSpec& argument : scenario::find_verb(one.verb)->arguments) {
      if (one.others.contains(argument.name)) continue;
      const auto renamed = one.renamed.find(argument.name);
      settings.push_back(renamed == one.renamed.end() ? argument.name : renamed->second);
    }
    ASSERT_FALSE(settings.empty());
    testing_support::TextOptions options;
    options.world_size = 2;
    const std::string model = "  - model: Sequential(Linear(4, 4))\n    as: model\n  - let: {m: model.0}\n";
    const auto ran = testing_support::run_steps(model + one.steps + conditions(one.verb, settings), options);
    EXPECT_PASS(ran) << one.verb;
  }
}

// Of "given?, wanted?, keep_sharded=": given, wanted, keep_sharded.
std::vector<std::string> arguments_of(std::string_view signature) {
  std::vector<std::string> names(1);
  for (const char c : signature) {
    if (c == ',') names.emplace_back();
    if (std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_') names.back() += c;
  }
  return names;
}

TEST(Vocabulary, AppliedShowsEveryArgumentOfTheStyles) {
  const std::vector<std::pair<std::string, std::string>> styles = {
      {"colwise", "colwise()"},
      {"rowwise", "rowwise()"},
      {"sequence_parallel", "sequence_parallel()"},
      {"prepare_input", "prepare_input(replicate(), replicate())"},
      {"prepare_output", "prepare_output(replicate(), replicate())"}};
  for (const auto& [name, call] : styles) {
    testing_support::TextOptions options;
    options.world_size = 2;
    const std::string steps =
        str("  - model: Sequential(", name == "sequence_parallel" ? "LayerNorm(4)" : "Linear(4, 4)",
            ")\n    as: model\n  - let: {m: model.0}\n  - mesh: {shape: [2], names: [tp]}\n"
            "    as: tp\n  - tensor_parallel: {model: model, mesh: tp, plan: \"{'0': ",
            call, "}\"}\n");
    const std::vector<std::string> settings = arguments_of(scenario::find_function(name)->signature);
    const auto ran = testing_support::run_steps(steps + conditions("tensor_parallel", settings), options);
    EXPECT_PASS(ran) << name;
  }
}

}  // namespace
}  // namespace lockstep::run
