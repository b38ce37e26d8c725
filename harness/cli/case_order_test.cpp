#include "harness/cli/case_order.hpp"

#include <algorithm>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/cli/test_support.hpp"

namespace lockstep::cli {
namespace {

using scenario::Case;
using testing::ElementsAre;
using testing::IsEmpty;
using testing_support::of_scenario;

std::vector<std::string> names(const std::vector<Case>& cases) {
  std::vector<std::string> list;
  for (const Case& one : cases) list.push_back(one.scenario->name + one.id);
  return list;
}

TEST(SpreadOrder, BeginsWithTheEndsAndTheMiddles) {
  EXPECT_THAT(spread_order(0), IsEmpty());
  EXPECT_THAT(spread_order(1), ElementsAre(0));
  EXPECT_THAT(spread_order(2), ElementsAre(0, 1));
  EXPECT_THAT(spread_order(9), ElementsAre(0, 8, 4, 2, 6, 1, 3, 5, 7));
}

TEST(SpreadOrder, HasEveryNumberOnce) {
  for (int num = 0; num < 70; ++num) {
    std::vector<int> order = spread_order(num);
    std::sort(order.begin(), order.end());
    ASSERT_EQ(order.size(), static_cast<std::size_t>(num));
    for (int i = 0; i < num; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
  }
}

TEST(OnePerScenarioInTurn, TakesTheScenariosInTurn) {
  std::vector<Case> cases;
  for (const char* id : {"1", "2", "3"}) cases.push_back(of_scenario("b", id));
  for (const char* id : {"1", "2"}) cases.push_back(of_scenario("a", id));
  EXPECT_THAT(names(one_per_scenario_in_turn(cases)), ElementsAre("a1", "b1", "a2", "b3", "b2"));
}

TEST(OnePerScenarioInTurn, LeavesOutCasesThatCannotRun) {
  std::vector<Case> cases = {of_scenario("a", "1"), of_scenario("a", "2"), of_scenario("a", "3")};
  cases[0].skip = "a reason";
  cases[1].unsupported = "no such device";
  EXPECT_THAT(names(one_per_scenario_in_turn(cases)), ElementsAre("a3"));
}

// They show a defect by a pass.
TEST(OnePerScenarioInTurn, KeepsCasesThatMustFail) {
  std::vector<Case> cases = {of_scenario("a", "1"), of_scenario("b", "1")};
  cases[0].expect_failure.emplace();
  EXPECT_THAT(names(one_per_scenario_in_turn(cases)), ElementsAre("a1", "b1"));
}

TEST(LikelyCatchersFirst, KeepsTheOrderWhereNothingIsKnown) {
  const std::vector<Case> cases = {of_scenario("a", "1"), of_scenario("b", "1"), of_scenario("c", "1")};
  EXPECT_THAT(names(likely_catchers_first(cases, {}, {})), ElementsAre("a1", "b1", "c1"));
}

TEST(LikelyCatchersFirst, TakesThoseThatCaughtMoreAndThoseWithHigherScoresInTurns) {
  const std::vector<Case> cases = {of_scenario("a", "1"), of_scenario("b", "1"), of_scenario("c", "1"),
                                   of_scenario("d", "1"), of_scenario("d", "2")};
  // By catches: c1 b1 d1 a1 d2. By score: d1 d2 b1 a1 c1.
  EXPECT_THAT(
      names(likely_catchers_first(cases, {{&cases[3], 1}, {&cases[2], 4}, {&cases[1], 1}}, {{"d", 2.5}, {"b", 1.0}})),
      ElementsAre("c1", "d1", "b1", "d2", "a1"));
}

}  // namespace
}  // namespace lockstep::cli
