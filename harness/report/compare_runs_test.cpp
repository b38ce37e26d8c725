#include "harness/report/compare_runs.hpp"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "engine/core/error.hpp"
#include "engine/core/text.hpp"
#include "harness/report/results_test_support.hpp"

namespace lockstep::report {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using verdict::CaseResult;
using verdict::Status;

CaseResult row(const std::string& scenario, Status status = Status::PASS) {
  CaseResult r;
  r.scenario = scenario;
  r.case_id = "world_size=2";
  r.world_size = 2;
  r.status = status;
  r.seconds = 1.0;
  r.evidence = verdict::Evidence{4, 0, 40, 4, 4, 0.0, {1e-6, 1e-5, 0}, 2, 0, 1};
  r.collectives = {{"data_parallel", "all_reduce", "dp", 2, "backward", 2, 176, -1, ""}};
  r.memory = {{"peak_total", 10000}};
  return r;
}

ResultsFile file_of(std::vector<CaseResult> cases) {
  ResultsFile file;
  file.path = "x.jsonl";
  file.run.machine = {{"cpu", "some"}, {"cores", "2"}};
  file.cases = std::move(cases);
  file.summary = verdict::Summary{};
  return file;
}

RunComparison between(CaseResult before, CaseResult after) {
  return compare_runs(file_of({std::move(before)}), file_of({std::move(after)}));
}

std::vector<std::string> texts(const RunComparison& comparison) {
  std::vector<std::string> out;
  for (const Change& change : comparison.changes) {
    out.push_back(str(name_of(change.weight), " ", change.what, " ", change.text));
  }
  return out;
}

TEST(CompareRuns, FindsNothingBetweenEqualRuns) {
  const RunComparison same = between(row("a"), row("a"));
  EXPECT_THAT(same.changes, IsEmpty());
  EXPECT_THAT(same.warnings, IsEmpty());
  EXPECT_EQ(same.num_compared, 1);
  EXPECT_EQ(same.exit_code(), 0);
  EXPECT_EQ(to_text(same), "1 case in both, 0 changed; 0 changes for the worse, 0 for the better, 0 other\n");
}

TEST(CompareRuns, OrdersVerdicts) {
  const auto weight = [](Status before, Status after) {
    const RunComparison c = between(row("a", before), row("a", after));
    EXPECT_EQ(c.changes.size(), 1u);
    return c.changes.at(0).weight;
  };
  for (Status bad : {Status::FAIL, Status::XPASS, Status::HANG, Status::CRASH, Status::INVALID, Status::MISSING}) {
    EXPECT_EQ(weight(Status::PASS, bad), Weight::worse);
    EXPECT_EQ(weight(Status::SKIP, bad), Weight::worse);
    EXPECT_EQ(weight(bad, Status::PASS), Weight::better);
  }
  EXPECT_EQ(weight(Status::PASS, Status::SKIP), Weight::worse);
  EXPECT_EQ(weight(Status::PASS, Status::UNSUPPORTED), Weight::worse);
  EXPECT_EQ(weight(Status::PASS, Status::XFAIL), Weight::worse);
  EXPECT_EQ(weight(Status::XFAIL, Status::PASS), Weight::better);
  EXPECT_EQ(weight(Status::FAIL, Status::CRASH), Weight::other);
  EXPECT_EQ(weight(Status::MISSING, Status::FAIL), Weight::worse) << "nothing shows that it failed before";
  EXPECT_EQ(weight(Status::FAIL, Status::MISSING), Weight::other);
  EXPECT_EQ(weight(Status::SKIP, Status::UNSUPPORTED), Weight::other);
}

TEST(CompareRuns, GivesTheReasonOfAVerdictInOneLine) {
  CaseResult bad = row("a", Status::FAIL);
  bad.failure = verdict::Failure{};
  bad.failure->file = "a.yaml";
  bad.failure->line = 3;
  bad.failure->message = "1 of 2\n  more";
  const RunComparison c = between(row("a"), bad);
  EXPECT_THAT(texts(c), ElementsAre("worse verdict PASS -> FAIL: a.yaml:3: 1 of 2"));
  EXPECT_EQ(c.exit_code(), 1);
  EXPECT_EQ(to_text(c),
            "worse   verdict     a [world_size=2]: PASS -> FAIL: a.yaml:3: 1 of 2\n"
            "1 case in both, 1 changed; 1 change for the worse, 0 for the better, 0 other\n");
}

TEST(CompareRuns, FindsMissingAndNewCases) {
  const RunComparison c =
      compare_runs(file_of({row("a"), row("b")}), file_of({row("b"), row("c"), row("d", Status::FAIL)}));
  EXPECT_THAT(texts(c), ElementsAre("worse gone was PASS, is not in the new file", "worse new FAIL", "other new PASS"));
  EXPECT_EQ(c.num_worse, 2);
  EXPECT_EQ(c.num_changed, 0);
}

TEST(CompareRuns, CountsAPlanThatSaysLessAsWorse) {
  CaseResult judged = row("a");
  judged.plan_verdict = verdict::PlanVerdict{true, ""};
  judged.plan = {{"data_parallel", "all_reduce", "dp", 2, "backward", 2, 64, false, 2, 64, ""}};
  CaseResult not_judged = judged;
  not_judged.plan_verdict = verdict::PlanVerdict{false, "ended early: rank 1"};
  EXPECT_THAT(texts(between(judged, not_judged)), ElementsAre("worse plan is not judged now: ended early: rank 1"));
  EXPECT_THAT(texts(between(not_judged, judged)), ElementsAre("better plan is judged now"));
  CaseResult less = judged;
  less.plan_verdict->left_out = {"start_up: drawn"};
  EXPECT_THAT(texts(between(judged, less)), ElementsAre("worse plan collectives that it leaves out 0 -> 1"));
  CaseResult without = judged;
  without.plan.clear();
  EXPECT_THAT(texts(between(judged, without)),
              ElementsAre("worse plan data_parallel/all_reduce in backward, group of 2 is not planned now"));
  CaseResult other = judged;
  other.plan[0].planned = 1;
  EXPECT_THAT(texts(between(judged, other)),
              ElementsAre("worse plan data_parallel/all_reduce in backward, group of 2: observed beyond the plan 0 -> "
                          "1, bytes 0 -> 0"));
}

TEST(CompareRuns, CountsMoreCollectivesOrBytesAsWorse) {
  CaseResult more = row("a");
  more.collectives[0].count = 3;
  more.collectives[0].bytes = 264;
  EXPECT_THAT(texts(between(row("a"), more)),
              ElementsAre("worse collectives data_parallel/all_reduce in backward, group of 2 along dp: count 2 -> 3, "
                          "bytes 176 -> 264"));
  EXPECT_EQ(between(more, row("a")).changes.at(0).weight, Weight::better);
  CaseResult bytes = row("a");
  bytes.collectives[0].bytes = 180;
  EXPECT_THAT(
      texts(between(row("a"), bytes)),
      ElementsAre("worse collectives data_parallel/all_reduce in backward, group of 2 along dp: bytes 176 -> 180"));
  CaseResult other = row("a");
  other.collectives[0].operation = "reduce_scatter";
  const RunComparison replaced = between(row("a"), other);
  EXPECT_THAT(
      texts(replaced),
      ElementsAre("worse collectives data_parallel/all_reduce in backward, group of 2 along dp: count 2 -> 0, "
                  "bytes 176 -> 0; the new run issues none of this kind",
                  "worse collectives data_parallel/reduce_scatter in backward, group of 2 along dp: count 0 -> 2, "
                  "bytes 0 -> 176"));
}

TEST(CompareRuns, ComparesRowsPerRankWithARowForAllRanks) {
  CaseResult split = row("a");
  split.collectives = {{"data_parallel", "all_reduce", "dp", 2, "backward", 2, 176, 0, ""},
                       {"data_parallel", "all_reduce", "dp", 2, "backward", 2, 176, 1, ""}};
  EXPECT_THAT(between(row("a"), split).changes, IsEmpty());
  split.collectives[1].bytes = 200;
  EXPECT_THAT(
      texts(between(row("a"), split)),
      ElementsAre("worse collectives data_parallel/all_reduce in backward, group of 2 along dp, rank 1: bytes 176 "
                  "-> 200"));
}

TEST(CompareRuns, ComparesRanksThatHaveNoRow) {
  CaseResult all = row("a"), first_only = row("a");
  first_only.collectives = {{"data_parallel", "all_reduce", "dp", 2, "backward", 2, 176, 0, ""}};
  EXPECT_THAT(
      texts(between(first_only, all)),
      ElementsAre("worse collectives data_parallel/all_reduce in backward, group of 2 along dp, rank 1: count 0 -> 2, "
                  "bytes 0 -> 176"));
  EXPECT_EQ(between(all, first_only).changes.at(0).weight, Weight::better);
  EXPECT_THAT(between(first_only, first_only).changes, IsEmpty());
}

TEST(CompareRuns, ComparesEachRepetition) {
  CaseResult more = row("a");
  more.collectives[0].count = 3;
  const RunComparison c = compare_runs(file_of({row("a")}), file_of({row("a"), more, more}));
  EXPECT_THAT(texts(c),
              ElementsAre("worse collectives data_parallel/all_reduce in backward, group of 2 along dp: count 2 -> 3, "
                          "in a repetition"));
  EXPECT_EQ(c.exit_code(), 1);
  EXPECT_THAT(compare_runs(file_of({row("a"), more}), file_of({row("a"), more})).changes, IsEmpty());
  EXPECT_THAT(compare_runs(file_of({row("a"), more}), file_of({row("a"), row("a")})).changes, IsEmpty());
  EXPECT_THAT(texts(compare_runs(file_of({row("a")}), file_of({more, more}))),
              ElementsAre("worse collectives data_parallel/all_reduce in backward, group of 2 along dp: count 2 -> 3"))
      << "once";
}

TEST(CompareRuns, FindsAWorseRepetitionAfterEqualOnes) {
  CaseResult plain = row("a");
  plain.evidence.conditions = 3;
  CaseResult more = plain, less = plain;
  more.collectives[0].count = 3;
  less.evidence.conditions = 1;
  for (const auto& [worse, text] : {std::pair(more, "count 2 -> 3"), std::pair(less, "conditions 3 -> 1")})
    for (std::size_t at = 1; at < 5; ++at) {
      std::vector<CaseResult> after(5, plain);
      after[at] = worse;
      const RunComparison c = compare_runs(file_of({plain, plain}), file_of(std::move(after)));
      EXPECT_THAT(texts(c), ElementsAre(testing::EndsWith(str(text, ", in a repetition")))) << at;
      EXPECT_EQ(c.exit_code(), 1);
    }
}

// Each of the new rows is compared with few of the old ones.
TEST(CompareRuns, ComparesManyRepetitionsInShortTime) {
  CaseResult more = row("a");
  more.collectives[0].count = 3;
  std::vector<CaseResult> before(5'000, row("a"));
  before.back() = more;
  std::vector<CaseResult> after(5'000, more);
  after.front() = row("a");
  EXPECT_THAT(compare_runs(file_of(std::move(before)), file_of(std::move(after))).changes, IsEmpty());
}

TEST(CompareRuns, CountsLostEvidenceBitsAndToleranceAsWorse) {
  CaseResult after = row("a");
  after.evidence = verdict::Evidence{3, 1, 30, 2, 2, 1e-7, {1e-5, 1e-5, 1e-3}, 1, 0, 0};
  EXPECT_THAT(
      texts(between(row("a"), after)),
      ElementsAre("worse evidence comparisons 4 -> 3", "worse evidence elements compared 40 -> 30",
                  "worse evidence collectives checked 2 -> 1", "worse evidence expected errors 1 -> 0",
                  "worse bits comparisons whose bits differ 0 -> 1 (of 3, largest difference 1e-07)",
                  "worse bits comparisons that require the same bits 4 -> 2",
                  "worse tolerance loosest rtol 1e-06 -> 1e-05", "worse tolerance loosest of_largest 0 -> 0.001"));
  const RunComparison back = between(after, row("a"));
  EXPECT_EQ(back.num_worse, 0);
  EXPECT_EQ(back.changes.size(), 8u);
  EXPECT_EQ(back.exit_code(), 0);
}

TEST(CompareRuns, CountsLostConditionsAsWorse) {
  CaseResult before = row("a"), after = row("a");
  before.evidence.conditions = 3;
  after.evidence.conditions = 1;
  EXPECT_THAT(texts(between(before, after)), ElementsAre("worse evidence conditions 3 -> 1"));
}

// Older files without the field count a condition as a comparison of one element with the same bits.
TEST(CompareRuns, ComparesWithAnOlderFileThatCountsConditionsAsComparisons) {
  CaseResult before = row("a"), after = row("a");
  before.evidence.conditions_apart = false;
  after.evidence = verdict::Evidence{1, 0, 37, 1, 4, 0.0, {1e-6, 1e-5, 0}, 2, 0, 1};
  after.evidence.conditions = 3;
  EXPECT_THAT(texts(between(before, after)), ElementsAre());
  EXPECT_THAT(texts(between(after, before)), ElementsAre());
  after.evidence.conditions = 2;
  EXPECT_THAT(texts(between(before, after)),
              ElementsAre("worse evidence comparisons 4 -> 3", "worse evidence elements compared 40 -> 39"));
}

TEST(CompareRuns, ShowsMemoryWithoutChangingTheExitCode) {
  CaseResult after = row("a");
  after.memory["peak_total"] = 20480;
  const RunComparison c = between(row("a"), after);
  EXPECT_THAT(texts(c), ElementsAre("other memory peak 9.77 KiB -> 20 KiB"));
  EXPECT_EQ(c.exit_code(), 0);
  after.memory["peak_total"] = 10100;
  EXPECT_THAT(between(row("a"), after).changes, IsEmpty());
}

std::vector<CaseResult> timed(const std::vector<double>& seconds) {
  std::vector<CaseResult> rows;
  for (std::size_t i = 0; i < seconds.size(); ++i) {
    rows.push_back(row(str("s", i)));
    rows.back().seconds = seconds[i];
  }
  return rows;
}

RunComparison times(const std::vector<double>& before, const std::vector<double>& after) {
  CompareRunsOptions options;
  options.time_gates = true;
  return compare_runs(file_of(timed(before)), file_of(timed(after)), options);
}

TEST(CompareRuns, CountsTimesOnlyWithTimeGates) {
  const RunComparison shown = compare_runs(file_of(timed({1.0})), file_of(timed({2.5})));
  EXPECT_THAT(texts(shown), ElementsAre("other time 1 s -> 2.5 s, 2.5 times"));
  EXPECT_EQ(shown.exit_code(), 0);
  EXPECT_EQ(times({1.0}, {2.5}).exit_code(), 1);
}

TEST(CompareRuns, NeverCountsAnAbsenceAsBetter) {
  CaseResult before = row("a"), after = row("a");
  before.collectives = {{"data_parallel", "all_reduce", "dp", 2, "backward", 4, 64, -1, ""}};
  before.evidence.comparisons = 4;
  before.evidence.same_bits = 2;
  after.evidence = before.evidence;
  after.evidence.comparisons = 2;
  after.evidence.same_bits = 2;
  const RunComparison gone = compare_runs(file_of({before}), file_of({after}));
  EXPECT_THAT(texts(gone), testing::Contains(testing::HasSubstr("worse collectives data_parallel/all_reduce")));
  EXPECT_THAT(texts(gone), testing::Contains("worse evidence comparisons 4 -> 2"));
  EXPECT_THAT(texts(gone), testing::Not(testing::Contains(testing::StartsWith("better"))));
  after.collectives = before.collectives;
  after.collectives[0].count = 2;
  after.collectives[0].bytes = 32;
  after.evidence = before.evidence;
  EXPECT_THAT(texts(compare_runs(file_of({before}), file_of({after}))),
              ElementsAre(testing::StartsWith("better collectives")));
}

TEST(CompareRuns, ShowsOnlyLargeChangesOfTime) {
  EXPECT_THAT(times({1.0}, {1.9}).changes, IsEmpty());
  EXPECT_THAT(texts(times({1.0}, {2.5})), ElementsAre("worse time 1 s -> 2.5 s, 2.5 times"));
  EXPECT_THAT(texts(times({2.5}, {1.0})), ElementsAre("better time 2.5 s -> 1 s, 0.4 times"));
  // Ten times as long, but below time_floor.
  EXPECT_THAT(times({0.01}, {0.1}).changes, IsEmpty());
}

TEST(CompareRuns, ShowsTheDriftOfTheRunAsOneChange) {
  const std::vector<double> before(10, 1.0);
  const RunComparison slower = times(before, std::vector<double>(10, 3.0));
  EXPECT_THAT(texts(slower), ElementsAre("worse time all 10 cases together: 10 s -> 30 s, 3 times"));
  EXPECT_EQ(slower.changes[0].scenario, "");
  // All cases are a little slower and one is far slower; only that one is shown.
  std::vector<double> after(10, 1.3);
  after[4] = 4.0;
  const RunComparison one = times(before, after);
  EXPECT_THAT(texts(one), ElementsAre("worse time 1 s -> 4 s, 4 times"));
  EXPECT_EQ(one.changes[0].scenario, "s4");
}

TEST(CompareRuns, NeedsALargerChangeInANoisyRun) {
  const std::vector<double> before(9, 1.0);
  const std::vector<double> noisy{0.5, 0.6, 0.7, 0.9, 1.0, 1.1, 1.4, 1.7, 2.2};
  EXPECT_THAT(times(before, noisy).changes, IsEmpty());
}

TEST(CompareRuns, TakesTheShortestTimeAndTheWorstVerdictOfRepetitions) {
  CaseResult slow = row("a");
  slow.seconds = 9.0;
  EXPECT_THAT(compare_runs(file_of({row("a")}), file_of({slow, row("a"), slow})).changes, IsEmpty());
  const RunComparison flaky = compare_runs(file_of({row("a")}), file_of({row("a"), row("a", Status::FAIL), row("a")}));
  EXPECT_THAT(texts(flaky), ElementsAre("worse verdict PASS -> FAIL"));
}

TEST(CompareRuns, DoesNotCompareTimesOfOtherMachines) {
  ResultsFile before = file_of(timed({1.0}));
  ResultsFile after = file_of(timed({9.0}));
  after.run.machine["cpu"] = "another";
  const RunComparison c = compare_runs(before, after);
  EXPECT_THAT(c.changes, IsEmpty());
  EXPECT_THAT(c.warnings, ElementsAre("times are not compared: processor some -> another"));
}

TEST(CompareRuns, KeepsTheWarningsOfTheFiles) {
  ResultsFile cut = file_of({row("a")});
  cut.warnings = {"x.jsonl has no summary"};
  EXPECT_THAT(to_text(compare_runs(cut, file_of({row("a")}))), testing::StartsWith("note: x.jsonl has no summary\n"));
}

TEST(CompareRuns, GivesTheSameAsJson) {
  CaseResult after = row("a\"", Status::FAIL);
  const auto json = nlohmann::json::parse(to_json(between(row("a\""), after)));
  EXPECT_EQ(json["kind"], "comparison");
  EXPECT_EQ(json["worse"], 1);
  EXPECT_EQ(json["exit_code"], 1);
  EXPECT_EQ(json["compared"], 1);
  EXPECT_EQ(json["changes"][0]["weight"], "worse");
  EXPECT_EQ(json["changes"][0]["what"], "verdict");
  EXPECT_EQ(json["changes"][0]["scenario"], "a\"");
  EXPECT_EQ(json["changes"][0]["text"], "PASS -> FAIL");
}

TEST(CompareRuns, ComparesARepetitionThatFailedBeforeOneThatIsMissing) {
  const RunComparison same =
      compare_runs(file_of({row("a", Status::MISSING), row("a", Status::FAIL)}), file_of({row("a", Status::FAIL)}));
  EXPECT_THAT(same.changes, IsEmpty());
}

TEST(CompareCommand, RefusesAnOldFileThatGatesNothing) {
  const testing_support::Folder folder;
  const auto written = [&](const std::string& name, const std::vector<CaseResult>& rows) {
    ResultsWriter writer(folder / name);
    writer.write(testing_support::run_info());
    for (const CaseResult& one : rows) writer.write(one);
    writer.write(verdict::Summary{});
    return folder / name;
  };
  const std::string whole = written("whole.jsonl", {row("a"), row("b", Status::FAIL)});
  const std::string cut = written("cut.jsonl", {row("a"), row("b", Status::MISSING)});
  const std::string empty = written("empty.jsonl", {});
  const auto refusal = [&](const std::string& old_path) {
    try {
      compare_command(old_path, whole, {});
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("nothing was refused");
  };
  EXPECT_THAT(refusal(cut), HasSubstr("cut.jsonl: the run was cut short; 1 of 2 cases are MISSING"));
  EXPECT_THAT(refusal(empty), HasSubstr("empty.jsonl has no case to compare with"));
  EXPECT_EQ(compare_command(cut, whole, {.allow_cut = true}), 1) << "b fails";
  EXPECT_EQ(compare_command(whole, whole, {}), 0);
}

TEST(CompareCommand, RefusesFilesItCannotRead) {
  EXPECT_THROW(compare_command("/does/not/exist.jsonl", "/does/not/exist.jsonl", {}), Error);
}

}  // namespace
}  // namespace lockstep::report
