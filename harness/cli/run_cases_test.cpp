#include "harness/cli/run_cases.hpp"

#include <csignal>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/core/resources.hpp"
#include "harness/cli/interrupts.hpp"
#include "harness/cli/test_support.hpp"

namespace lockstep::cli {
namespace {

using namespace testing_support;
using scenario::Case;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using verdict::CaseResult;
using verdict::Status;

class RunCases : public testing::Test {
 protected:
  void add(const std::string& name, const std::string& text) {
    for (Case& one : cases_of_text(library_, text, name)) cases_.push_back(std::move(one));
  }
  RunCasesOutcome run(const RunCasesOptions& options = {}) {
    return run_cases(library_, cases_, options, [&](const CaseResult& row) { rows_.push_back(line_of(row)); });
  }
  // "name STATUS", with the reason of a case that did not run.
  static std::string line_of(const CaseResult& row) {
    return str(row.scenario, " ", verdict::name_of(row.status), row.reason.empty() ? "" : ": ", row.reason);
  }

  Home home_;
  scenario::Library library_{home_.scenarios()};
  std::vector<Case> cases_;
  std::vector<std::string> rows_;  // as `on_result` saw them
};

TEST_F(RunCases, HandsOverOneRowPerCaseInTheOrderOfTheirEnds) {
  add("a", passes);
  add("b", is_skipped);
  add("c", fails);
  const RunCasesOutcome outcome = run();
  EXPECT_THAT(rows_, ElementsAre("a PASS", "b SKIP: needs two", "c FAIL"));
  ASSERT_EQ(outcome.results.size(), 3u);
  EXPECT_EQ(line_of(outcome.results[2]), "c FAIL");
  EXPECT_FALSE(outcome.interrupted);
  EXPECT_EQ(outcome.machine_error, "");
}

TEST_F(RunCases, FillsInTheIdentityOfARow) {
  add("a", "mirrors: {document: '1', test: x, number: 3}\n" + std::string(passes));
  cases_.front().set = {"seed=7"};
  const CaseResult row = run({.repro_suffix = " --defect x"}).results.at(0);
  EXPECT_EQ(row.scenario, "a");
  EXPECT_EQ(row.file, "a.yaml");
  EXPECT_EQ(row.case_id, "world_size=1,launch=thread,device=cpu");
  EXPECT_EQ(row.world_size, 1);
  EXPECT_EQ(row.launch, "thread");
  EXPECT_EQ(row.device, "cpu");
  EXPECT_EQ(row.repro, cases_.front().repro() + " --defect x");
  EXPECT_EQ(row.evidence.comparisons, 1);
}

TEST_F(RunCases, RepeatsTheEnvironmentThatPutAStandInInThePlaceOfCuda) {
  for (const char* name : {"a", "b"}) add(name, is_skipped);
  cases_[0].device = "cuda";
  const Ended ended = in_child([&] {
    ::setenv("LOCKSTEP_CUDA", "stand-in", 1);
    for (const CaseResult& row : run().results) std::printf("%s\n", row.repro.c_str());
    return 0;
  });
  EXPECT_EQ(ended.out, str("LOCKSTEP_CUDA=stand-in ", cases_[0].repro(), "\n", cases_[1].repro(), "\n"));
}

TEST_F(RunCases, ShowsTheLinesOfTheStepThatFailed) {
  home_.add("c", fails);
  cases_ = scenario::expand(library_.load(home_.scenarios() + "/c.yaml"), {});
  const CaseResult row = run().results.at(0);
  ASSERT_TRUE(row.failure.has_value());
  EXPECT_THAT(row.failure->source, ElementsAre("  - expect_equal: [ones(2), 2]"));
}

TEST_F(RunCases, GivesAMissingRowForEachCaseAfterFailFast) {
  add("a", passes);
  add("b", fails);
  add("c", passes);
  add("d", is_skipped);
  run({.fail_fast = true});
  EXPECT_THAT(rows_, ElementsAre("a PASS", "b FAIL", "c MISSING: the run was stopped by an earlier case",
                                 "d MISSING: the run was stopped by an earlier case"));
}

TEST_F(RunCases, StopsAfterTheResultThatIsEnough) {
  for (const char* name : {"a", "b", "c"}) add(name, passes);
  run({.enough = [](const CaseResult& row) { return row.scenario == "b"; }});
  EXPECT_THAT(rows_, ElementsAre("a PASS", "b PASS", "c MISSING: the run was stopped by an earlier case"));
}

TEST_F(RunCases, StopsForAResultThatCannotBeKept) {
  for (const char* name : {"a", "b"}) add(name, passes);
  const RunCasesOutcome outcome = run_cases(library_, cases_, {}, [&](const CaseResult& row) {
    rows_.push_back(line_of(row));
    if (row.scenario == "a") throw ResourceError("writing results: no space left", "free some");
  });
  EXPECT_THAT(rows_, ElementsAre("a PASS", "b MISSING: the run was stopped: writing results: no space left"));
  EXPECT_THAT(outcome.machine_error, HasSubstr("no space left"));
  EXPECT_EQ(outcome.results.size(), 2u);
}

TEST_F(RunCases, NamesATemporaryFolderThatIsMissing) {
  add("a", passes);
  const Ended ended = in_child([&] {
    ::setenv("TMPDIR", (home_ / "none").c_str(), 1);
    const RunCasesOutcome outcome = run();
    std::printf("%s\n%s\n", rows_.at(0).c_str(), outcome.machine_error.c_str());
    return 0;
  });
  EXPECT_THAT(ended.out, HasSubstr("a MISSING: the run was stopped: the temporary folder " + home_ / "none"));
  EXPECT_THAT(ended.out, HasSubstr("set TMPDIR to a folder that can be written"));
}

TEST_F(RunCases, GivesAMissingRowWhereTheNextScheduleCannotStart) {
  for (const char* name : {"a", "b"}) add(name, passes);
  for (Case& one : cases_) one.device = "sim";
  const Ended ended = in_child([&] {
    ::setenv("TMPDIR", home_.path().c_str(), 1);
    RunCasesOptions options;
    options.schedule.request.kind = launch::ScheduleRequest::Kind::random;
    options.schedule.count = 2;
    options.before_ranks = [&](const Case&) {  // the folder of the second run is there already
      for (const auto& each : std::filesystem::directory_iterator(home_.path()))
        if (each.path().filename().string().starts_with("lockstep-run-"))
          std::filesystem::create_directories(each.path() / "case-1-2");
    };
    run(options);
    for (const std::string& row : rows_) std::printf("%s\n", row.c_str());
    return 0;
  });
  EXPECT_THAT(ended.out, HasSubstr("a MISSING: the run was stopped: creating the temporary folder"));
  EXPECT_THAT(ended.out, HasSubstr("b MISSING: the run was stopped: creating the temporary folder"));
}

TEST_F(RunCases, GivesAMissingRowForEachCaseAfterASignal) {
  for (const char* name : {"a", "b"}) add(name, passes);
  const Ended ended = in_child([&] {
    catch_interrupts();
    const RunCasesOutcome outcome = run_cases(library_, cases_, {}, [&](const CaseResult& row) {
      std::printf("%s\n", line_of(row).c_str());
      ::raise(SIGTERM);
    });
    return outcome.interrupted ? 7 : 0;
  });
  EXPECT_EQ(ended.code, 7);
  EXPECT_EQ(ended.out, "a PASS\nb MISSING: the run was interrupted (SIGTERM)\n");
}

TEST_F(RunCases, RunsStagesInTurnWithFreshRanks) {
  add("staged",
      "ranks: {world_size: [2], launch: [thread]}\nstages:\n"
      "  - {name: first, steps: [{record: {seen: world_size}}, {expect: rank < 2}]}\n"
      "  - {name: second, world_size: 1, steps: [{record: {seen: world_size}}, {expect: rank == 0}]}\n");
  const CaseResult row = run().results.at(0);
  EXPECT_EQ(line_of(row), "staged PASS");
  EXPECT_THAT(row.records.at("seen"), ElementsAre("1"));
  EXPECT_EQ(row.stage_memory.size(), 2u);
}

TEST_F(RunCases, DoesNotStartTheStageAfterOneThatFailed) {
  add("staged",
      "ranks: {world_size: [1], launch: [thread]}\nstages:\n"
      "  - {name: first, steps: [{expect_equal: [ones(1), 2]}]}\n"
      "  - {name: second, steps: [{record: {seen: 1}}, {expect: rank == 0}]}\n");
  const CaseResult row = run().results.at(0);
  EXPECT_EQ(line_of(row), "staged FAIL");
  EXPECT_FALSE(row.records.contains("seen"));
}

TEST_F(RunCases, WritesADumpForAnUnexpectedResultOnly) {
  add("a", passes);
  add("b", fails);
  run({.dump_folder = home_ / "results.dumps"});
  EXPECT_THAT(content_of(home_ / "results.dumps/case-1/case.txt"), HasSubstr("b [world_size=1,"));
  EXPECT_FALSE(std::filesystem::exists(home_ / "results.dumps/case-2"));
}

TEST_F(RunCases, NamesATimelineBesideTheResultsFileRelatively) {
  add("a", passes);
  const RunCasesOutcome inside = run({.timeline_folder = home_ / "out/when", .results_folder = home_ / "out"});
  EXPECT_EQ(inside.results.at(0).timeline, "when/timeline-1.json");
  EXPECT_TRUE(std::filesystem::exists(home_ / "out/when/timeline-1.json"));
  const RunCasesOutcome outside = run({.timeline_folder = home_ / "when", .results_folder = home_ / "out"});
  EXPECT_EQ(outside.results.at(0).timeline, home_ / "when/timeline-1.json");
  EXPECT_THAT(run().results.at(0).timeline, IsEmpty());
}

}  // namespace
}  // namespace lockstep::cli
