// The results of a case, merged from its ranks and stages.
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/verdict/judge_test_support.hpp"

namespace lockstep::verdict {
namespace {

using namespace testing_support;
using testing::ElementsAre;

CollectiveCount row(std::string operation, std::int64_t count, std::int64_t bytes) {
  return {"data_parallel", std::move(operation), "dp", 2, "backward", count, bytes, -1, ""};
}

TEST(MergeCollectives, GivesOneRowWhereRanksAgree) {
  RankOutcome a = good(0), b = good(1);
  a.collectives = {row("all_reduce", 2, 176), row("broadcast", 1, 8)};
  b.collectives = {row("broadcast", 1, 8), row("all_reduce", 2, 176)};
  const auto rows = merge_collectives({a, b}, "");
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].operation, "all_reduce");
  EXPECT_EQ(rows[0].count, 2);
  EXPECT_EQ(rows[0].bytes, 176);
  EXPECT_EQ(rows[0].rank, -1);
  EXPECT_EQ(rows[1].operation, "broadcast");
}

TEST(MergeCollectives, GivesARowPerRankWhereTheyDiffer) {
  RankOutcome a = good(0), b = good(1), c = good(2);
  a.collectives = {row("send", 1, 8), row("all_reduce", 2, 176)};
  b.collectives = {row("receive", 1, 8), row("all_reduce", 2, 180)};
  c.collectives = {row("all_reduce", 2, 176)};
  const auto rows = merge_collectives({a, b, c}, "second");
  std::vector<std::string> texts;
  for (const auto& r : rows) {
    EXPECT_EQ(r.stage, "second");
    texts.push_back(r.operation + " " + std::to_string(r.rank) + " " + std::to_string(r.bytes));
  }
  EXPECT_THAT(texts,
              ElementsAre("send 0 8", "all_reduce 0 176", "all_reduce 1 180", "all_reduce 2 176", "receive 1 8"));
}

TEST(MergeCollectives, TellsNumbersOfTheSameBytesApart) {
  RankOutcome a = good(0), b = good(1);
  a.collectives = {row("all_reduce", 2, 32)};
  b.collectives = {row("all_reduce", 1, 32)};
  const auto rows = merge_collectives({a, b}, "");
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[1].rank, 1);
  EXPECT_EQ(rows[1].count, 1);
}

TEST(MergeCollectives, TakesTheRanksThatHandedInAnOutcome) {
  std::vector<RankOutcome> ranks;
  for (const RankStatus status : {RankStatus::finished, RankStatus::failed, RankStatus::invalid, RankStatus::exited,
                                  RankStatus::exited, RankStatus::killed, RankStatus::unsupported}) {
    RankOutcome& one = ranks.emplace_back(good(static_cast<int>(ranks.size())));
    one.status = status;
    one.end_expected = one.rank != 4;
    one.collectives = {row("all_reduce", one.rank + 1, 8)};
  }
  std::vector<int> reporting;
  for (const CollectiveCount& each : merge_collectives(ranks, "")) reporting.push_back(each.rank);
  EXPECT_THAT(reporting, ElementsAre(0, 1, 2, 3));
}

TEST(MergeRanks, ListsTheCollectivesOfEachStage) {
  RankOutcome a = good(0);
  a.collectives = {row("all_reduce", 2, 176), row("broadcast", 1, 8)};
  const CaseResult judged = judge({}, check_at(9), {{"none", {}}, {"save", {a}}, {"load", {a}}});
  std::vector<std::string> texts;
  for (const CollectiveCount& each : judged.collectives) texts.push_back(each.stage + " " + each.operation);
  EXPECT_THAT(texts, ElementsAre("save all_reduce", "save broadcast", "load all_reduce", "load broadcast"));
}

TEST(MergeCollectives, IgnoresARankThatWasKilled) {
  RankOutcome a = good(0), b = ended(1, RankStatus::killed, 3);
  a.collectives = {row("all_reduce", 2, 176)};
  const auto rows = merge_collectives({a, b}, "");
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].rank, -1);
}

TEST(MergeRanks, KeepsThePlanOfTheFirstRankOfEachStage) {
  RankOutcome a = good(0), b = good(1);
  a.plan = {{"data_parallel", "all_reduce", "dp", 2, "backward", 2, 176, false, 2, 176, ""}};
  b.plan = {{"data_parallel", "all_reduce", "dp", 2, "backward", 9, 9, false, 9, 9, ""}};
  a.plan.push_back({"data_parallel", "broadcast", "dp", 2, "forward", 1, 8, false, 1, 8, ""});
  const CaseResult row = judge({}, {}, {{"first", {a, b}}, {"second", {a}}});
  ASSERT_EQ(row.plan.size(), 4u);
  EXPECT_EQ(row.plan[0].stage, "first");
  EXPECT_EQ(row.plan[1].operation, "broadcast");
  EXPECT_EQ(row.plan[2].stage, "second");
  EXPECT_EQ(row.plan[0].planned, 2);
}

TEST(MergeRanks, GivesTheReasonWhyAPlanWasNotJudged) {
  RankOutcome judged = good(0), idle = good(0), silent = good(1), early = good(1);
  judged.plan_verdict = {true, ""};
  idle.plan_verdict = {false, std::string(nothing_to_plan)};
  early.plan_verdict = {false, "unplanned: a reason"};
  const auto verdict_of = [](std::vector<StageOutcomes> stages) { return judge({}, {}, stages).plan_verdict.value(); };
  EXPECT_TRUE(verdict_of({{"", {judged, judged}}}).is_judged);
  EXPECT_TRUE(verdict_of({{"save", {idle, silent}}, {"load", {judged, judged}}}).is_judged);
  EXPECT_EQ(verdict_of({{"", {idle, silent}}}).reason, nothing_to_plan);
  EXPECT_EQ(verdict_of({{"", {idle, silent}}}).kind(), "nothing to plan");
  EXPECT_FALSE(verdict_of({{"", {idle, silent}}}).is_judged);
  RankOutcome other = good(0);
  other.plan_verdict = {false, "unplanned: another reason"};
  EXPECT_EQ(verdict_of({{"", {other, early}}}).reason, "unplanned: another reason");
  EXPECT_EQ(verdict_of({{"save", {early}}, {"load", {other}}}).reason, "unplanned: a reason (stage save)");
  EXPECT_EQ(verdict_of({{"", {judged, silent}}}).reason, "ended early: rank 1");
  EXPECT_EQ(verdict_of({{"", {judged, early}}}).reason, "unplanned: a reason");
  EXPECT_EQ(verdict_of({{"save", {judged, early}}, {"load", {judged}}}).reason, "unplanned: a reason (stage save)");
  EXPECT_FALSE(verdict_of({{"save", {judged, early}}, {"load", {judged}}}).is_judged);
}

TEST(MergeRanks, ListsWhatThePlanLeavesOutOnce) {
  RankOutcome a = good(0), b = good(1), c = good(0);
  a.plan_verdict = {true, "", {"x", "y"}};
  b.plan_verdict = {true, "", {"y", "z"}};
  c.plan_verdict = {true, "", {"w", "x"}};
  EXPECT_THAT(judge({}, {}, {{"save", {a, b}}, {"load", {c}}}).plan_verdict->left_out, ElementsAre("x", "y", "z", "w"));
}

TEST(MergeRanks, AddsTheCostOfPlanningOverRanksAndStages) {
  RankOutcome a = good(0), b = good(1);
  a.planning = {0.25, 1.0, 1};
  b.planning = {0.5, 2.0, 0};
  const PlanningCost cost = judge({}, {}, {{"save", {a, b}}, {"load", {a}}}).planning;
  EXPECT_EQ(cost.seconds, 1.0);
  EXPECT_EQ(cost.rank_seconds, 4.0);
  EXPECT_EQ(cost.num_dry_runs, 2);
}

TEST(MergeRanks, KeepsThePeakOfMemoryOverRanksAndStages) {
  RankOutcome a = good(0), b = good(1), c = good(0);
  a.memory = {{"parameter", 100}, {"peak_total", 300}};
  b.memory = {{"parameter", 120}, {"peak_total", 250}, {"gathered", 7}};
  c.memory = {{"parameter", 500}};
  const CaseResult staged = judge(CaseResult{}, check_at(9), {{"save", {a, b}}, {"load", {c}}});
  EXPECT_EQ(staged.memory, (MemoryPeaks{{"gathered", 7}, {"parameter", 500}, {"peak_total", 300}}));
  ASSERT_EQ(staged.stage_memory.size(), 2u);
  EXPECT_EQ(staged.stage_memory[0].first, "save");
  EXPECT_EQ(staged.stage_memory[0].second.at("parameter"), 120);
  EXPECT_EQ(staged.stage_memory[1].second, (MemoryPeaks{{"parameter", 500}}));
  EXPECT_TRUE(judge(CaseResult{}, check_at(9), {{"", {a}}}).stage_memory.empty());
}

TEST(MergeRanks, GivesOneEntryPerRankForARecord) {
  RankOutcome a = good(0), b = good(1);
  a.records = {{"losses", "[1.5]"}};
  b.records = {{"losses", "[2.5]"}, {"extra", "true"}};
  const CaseResult row = judge_ranks({a, b});
  EXPECT_THAT(row.records.at("losses"), ElementsAre("[1.5]", "[2.5]"));
  EXPECT_THAT(row.records.at("extra"), ElementsAre("null", "true"));
}

}  // namespace
}  // namespace lockstep::verdict
