#include "harness/cli/case_relevance.hpp"

#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::cli {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

scenario::Case case_of(const std::string& name, const std::string& text) {
  auto written = std::make_shared<scenario::Scenario>();
  written->name = name;
  if (!text.empty()) {
    written->path = testing::TempDir() + "relevance_" + name + ".yaml";
    std::ofstream(written->path) << text;
  }
  scenario::Case one;
  one.scenario = written;
  return one;
}

TEST(Stems, AreTheFirstLettersOfLongWordsInLowerCase) {
  EXPECT_THAT(stems_of("Reduced: an all_reduce, reduces 12 of 128"), ElementsAre("128", "all", "reduc"));
  EXPECT_THAT(stems_of(""), IsEmpty());
}

TEST(CaseRelevance, FindsWordsInNamesAndTexts) {
  const CaseRelevance relevance({case_of("clipping", "norm"), case_of("summon", "written back"), case_of("plain", "")});
  EXPECT_THAT(relevance.scores("what was WRITTEN is lost"), ElementsAre(Pair("summon", testing::Gt(0.0))));
  EXPECT_THAT(relevance.scores("clipped twice"), ElementsAre(Pair("clipping", testing::Gt(0.0))));
  EXPECT_THAT(relevance.scores("plainly"), ElementsAre(Pair("plain", testing::Gt(0.0))));
  EXPECT_THAT(relevance.scores("nothing of it"), IsEmpty());
}

TEST(CaseRelevance, RareWordsAndWordsOfNamesCountMore) {
  const CaseRelevance relevance(
      {case_of("first", "common rare"), case_of("second", "common other"), case_of("third", "first words")});
  const auto scores = relevance.scores("common rare first");
  EXPECT_GT(scores.at("first"), scores.at("second"));
  const auto named = relevance.scores("first");
  EXPECT_GT(named.at("first"), named.at("third"));
}

}  // namespace
}  // namespace lockstep::cli
