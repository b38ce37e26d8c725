// The models in the vocabulary of the scenario language are those that the engine builds.
#include "harness/scenario/vocabulary.hpp"

#include <algorithm>

#include <gtest/gtest.h>

#include "engine/nn/build.hpp"

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

}  // namespace
}  // namespace lockstep::run
