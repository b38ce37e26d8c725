#include "harness/cli/case_selection.hpp"

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/core/error.hpp"
#include "harness/cli/test_support.hpp"
#include "harness/report/results_file.hpp"

namespace lockstep::cli {
namespace {

using namespace testing_support;
using scenario::Case;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using verdict::CaseResult;
using verdict::Status;

constexpr const char* two_sizes =
    "ranks: {world_size: [1, 2], launch: [thread]}\ndevice: [cpu, sim]\nsteps:\n  - expect_equal: [ones(2), ones(2)]\n";

class CaseSelection : public testing::Test {
 protected:
  CaseSelection() {
    home_.add("a", two_sizes);
    home_.add("folder/b", passes);
  }
  std::vector<std::string> select(const RunSettings& settings) {
    scenario::Library library(home_.scenarios());
    std::vector<std::string> names;
    for (const Case& one : cases_of(library, settings)) names.push_back(str(one.scenario->name, " ", one.id));
    return names;
  }
  std::string refusal(const RunSettings& settings) {
    try {
      select(settings);
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing was refused";
  }
  // A results file with these rows: scenario, case, status.
  std::string results(const std::vector<std::tuple<std::string, std::string, Status>>& rows,
                      const std::string& repro = {}, const std::vector<std::string>& command = {}) const {
    std::string path = home_ / "results.jsonl";
    report::ResultsWriter writer(path);
    verdict::RunInfo run;
    run.command = command;
    writer.write(run);
    for (const auto& [scenario, case_id, status] : rows) {
      CaseResult row;
      row.scenario = scenario;
      row.case_id = case_id;
      row.file = str("scenarios/", scenario, ".yaml");
      row.status = status;
      row.repro = repro;
      writer.write(row);
    }
    return path;
  }

  Home home_;
  const std::string a1_ = "world_size=1,launch=thread,device=cpu", a2_ = "world_size=2,launch=thread,device=cpu";
};

TEST_F(CaseSelection, TakesAllScenariosInTheOrderOfTheirNames) {
  EXPECT_THAT(select({}), ElementsAre("a " + a1_, "a " + a2_, "folder/b " + a1_));
}

TEST_F(CaseSelection, FollowsNamesAndOptions) {
  EXPECT_THAT(select({.what = {"folder/*"}}), ElementsAre("folder/b " + a1_));
  RunSettings settings{.what = {"a"}};
  settings.expand.only = "world_size=2";
  EXPECT_THAT(select(settings), ElementsAre("a " + a2_));
  settings.expand.only.clear();
  settings.expand.device = "sim";
  EXPECT_THAT(select(settings),
              ElementsAre("a world_size=1,launch=thread,device=sim", "a world_size=2,launch=thread,device=sim"));
}

TEST_F(CaseSelection, AppendsTheCasesAgainForRepeat) {
  EXPECT_THAT(select({.what = {"a"}, .repeat = 2}), ElementsAre("a " + a1_, "a " + a2_, "a " + a1_, "a " + a2_));
}

TEST_F(CaseSelection, TakesWhatFailedInAResultsFile) {
  const std::string file =
      results({{"a", a1_, Status::PASS}, {"a", a2_, Status::HANG}, {"folder/b", a1_, Status::XFAIL}});
  EXPECT_THAT(select({.failed = file}), ElementsAre("a " + a2_));
  EXPECT_THAT(select({.what = {"a", "folder/b"}, .failed = file}), ElementsAre("a " + a2_));
  EXPECT_THAT(select({.failed = file, .repeat = 2}), ElementsAre("a " + a2_, "a " + a2_));
}

// Also a case that did not run, because the run ended before.
TEST_F(CaseSelection, TakesEveryStatusThatIsUnexpected) {
  for (const Status status :
       {Status::FAIL, Status::XPASS, Status::HANG, Status::CRASH, Status::INVALID, Status::MISSING}) {
    const std::string file = results({{"a", a1_, Status::PASS}, {"a", a2_, status}});
    EXPECT_THAT(select({.failed = file}), ElementsAre("a " + a2_)) << verdict::name_of(status);
  }
}

TEST_F(CaseSelection, RefusesAFailedCaseThatIsNoCaseOfTheRun) {
  const std::string on_sim = "world_size=2,launch=thread,device=sim";
  const std::string file =
      results({{"a", a2_, Status::FAIL}, {"a", on_sim, Status::FAIL}}, "lockstep run a --device sim");
  EXPECT_THAT(refusal({.failed = file}),
              AllOf(HasSubstr(str("a [", on_sim, "] failed in ", file, " and is no case of this run")),
                    HasSubstr("give the options of that run: lockstep run a --device sim")));
  RunSettings settings{.failed = file};
  settings.expand.device = "sim";
  EXPECT_THAT(select(settings), ElementsAre("a " + on_sim));
  settings.expand.launch = scenario::Launch::process;
  EXPECT_THAT(refusal(settings), HasSubstr("is no case of this run")) << "none of them is left";
}

TEST_F(CaseSelection, RefusesAFailedCaseOfOtherParameters) {
  home_.add("a", str("parameters: {x: 1, y: 1}\n", two_sizes));
  const std::string file = results({{"a", a2_, Status::FAIL}}, "lockstep run a --set 'x=2' --set 'y=3'");
  EXPECT_THAT(refusal({.failed = file}), AllOf(HasSubstr(str("a [", a2_, "] failed with another `x` in ", file)),
                                               HasSubstr("give --set as in that run: lockstep run a --set 'x=2'")));
  RunSettings settings{.failed = file};
  settings.expand.set = {"x=2"};
  EXPECT_THAT(refusal(settings), HasSubstr(str("a [", a2_, "] failed with another `y` in ", file)));
}

TEST_F(CaseSelection, RefusesAFailedCaseOfOtherOptions) {
  const std::string file = results({{"a", a2_, Status::FAIL}}, "lockstep run a --case 'x' --memory-mb 1");
  EXPECT_THAT(refusal({.failed = file}), AllOf(HasSubstr(str("a [", a2_, "] failed with --memory-mb in ", file)),
                                               HasSubstr("give it as in that run: lockstep run a")));
  RunSettings settings{.failed = file};
  settings.command = {"lockstep", "run", "--failed", file, "--memory-mb", "1"};
  EXPECT_THAT(select(settings), ElementsAre("a " + a2_));
  settings.command = {"lockstep", "run", "--failed", file, "--memory-mb=2"};
  EXPECT_THAT(select(settings), ElementsAre("a " + a2_));
}

TEST_F(CaseSelection, AsksForTheOptionsOfARunUnderSchedules) {
  home_.add("a", str("parameters: {x: 1}\n", two_sizes));
  const std::string file =
      results({{"a", a2_, Status::FAIL}}, "lockstep run --schedule 'replay:schedules/schedule-1'",
              {"bin/lockstep", "run", "a", "--set=x=2", "--defect", "compare_always_equal", "--schedule", "random:3"});
  const std::string as_in_that_run = "lockstep 'run' 'a' --set 'x=2' --defect 'compare_always_equal' --schedule";
  EXPECT_THAT(refusal({.failed = file}), AllOf(HasSubstr("failed with another `x`"), HasSubstr(as_in_that_run)));
  RunSettings settings{.failed = file};
  settings.expand.set = {"x=2"};
  EXPECT_THAT(refusal(settings), HasSubstr("failed with --defect in "));
  settings.command = {"lockstep", "run", "--failed", file, "--defect=compare_always_equal", "--schedule=random:4"};
  EXPECT_THAT(select(settings), ElementsAre("a " + a2_));
}

TEST_F(CaseSelection, RefusesTwoFilesOfOneName) {
  std::filesystem::create_directories(home_ / "folder");
  for (const char* path : {"own.yaml", "folder/own.yaml"})
    std::ofstream(home_ / path) << "scenario: own\nsummary: A test.\n" << passes;
  EXPECT_THAT(refusal({.what = {home_ / "own.yaml", home_ / "folder"}}),
              AllOf(HasSubstr("the scenario `own` is in "), HasSubstr("give one of them another name")));
}

TEST_F(CaseSelection, RefusesAResultsFileInWhichNothingFailed) {
  const std::string file = results({{"a", a1_, Status::PASS}, {"a", a2_, Status::SKIP}});
  EXPECT_THAT(refusal({.failed = file}),
              AllOf(HasSubstr("nothing failed in " + file), HasSubstr("leave --failed out")));
}

TEST_F(CaseSelection, ReportsTheErrorsOfAllFiles) {
  home_.add("wrong", "ranks: {world_size: [1]}\nsteps:\n  - no_such_verb: 1\n");
  home_.add("worse", "ranks: {world_size: [0]}\nsteps:\n  - expect_equal: [ones(2), ones(2)]\n");
  EXPECT_THAT(refusal({}), AllOf(HasSubstr("wrong.yaml:5:"), HasSubstr("worse.yaml:3:")));
}

TEST_F(CaseSelection, RefusesACaseWithoutACheckBeforeLaunch) {
  home_.add("silent", "ranks: {world_size: [1]}\nsteps:\n  - let: {x: 1}\n");
  EXPECT_THAT(refusal({.what = {"silent"}}), HasSubstr("no step checks anything"));
}

TEST_F(CaseSelection, TriesFilesOfAUserInAChildFirst) {
  std::ofstream(home_ / "own.yaml") << "scenario: own\nsummary: A test.\nranks: {world_size: [1], launch: [thread]}\n"
                                       "steps:\n  - expect_equal: [ones(2), ones(2)]\n";
  EXPECT_THAT(select({.what = {home_ / "own.yaml"}}), ElementsAre("own " + a1_));
}

CaseResult row_of(const std::string& scenario, const std::string& file) {
  CaseResult row;
  row.scenario = scenario;
  row.file = file;
  return row;
}

TEST(ScenariosOf, NamesScenariosBelowTheRootAndFilesElsewhere) {
  EXPECT_THAT(scenarios_of({row_of("b", "scenarios/b.yaml"), row_of("a", "own/a.yaml"), row_of("c", ""),
                            row_of("b", "scenarios/b.yaml")},
                           "/usr/share/lockstep/scenarios"),
              ElementsAre("b", "c", "own/a.yaml"));
}

}  // namespace
}  // namespace lockstep::cli
