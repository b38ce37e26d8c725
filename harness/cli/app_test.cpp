// The command line as a whole: options, their values and conflicts, exit codes and messages.
#include "harness/cli/app.hpp"

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/device/cuda/recording_calls.hpp"
#include "harness/cli/test_support.hpp"

namespace lockstep::cli {
namespace {

using namespace testing_support;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

class App : public testing::Test {
 protected:
  App() {
    home_.add("a", passes);
    home_.add("b", fails);
    home_.add("c", is_skipped);
  }
  Ended run(std::vector<std::string> arguments) const { return lockstep(home_, std::move(arguments)); }
  Home home_;
};

TEST_F(App, PrintsTheHelpWithoutArguments) {
  const Ended ended = run({});
  EXPECT_EQ(ended.code, 2);
  EXPECT_THAT(ended.out, HasSubstr("lockstep run"));
  EXPECT_EQ(run({"--help"}).code, 0);
  EXPECT_EQ(run({"run", "--help"}).code, 0);
  EXPECT_THAT(run({"--version"}).out, testing::StartsWith("lockstep "));
}

TEST_F(App, SuggestsTheNearestCommand) {
  const Ended ended = run({"explian"});
  EXPECT_EQ(ended.code, 2);
  EXPECT_THAT(ended.err, AllOf(HasSubstr("unknown command `explian`"), HasSubstr("did you mean `explain`?")));
}

TEST_F(App, RefusesBadValuesByTheNameOfTheOption) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> bad = {
      {{"run", "--world-size", "0"}, "--world-size"},
      {{"run", "--world-size", "two"}, "--world-size"},
      {{"run", "--launch", "fork"}, "--launch"},
      {{"run", "--device", "gpu"}, "--device"},
      {{"run", "--timeout", "-1"}, "--timeout"},
      {{"run", "--timeout", "0"}, "--timeout"},
      {{"run", "--memory-mb", "0"}, "--memory-mb"},
      {{"run", "--output-mb", "99999999999"}, "--output-mb"},
      {{"run", "--jobs", "257"}, "--jobs"},
      {{"run", "--deadline", "0"}, "--deadline"},
      {{"run", "--repeat", "0"}, "--repeat"},
      {{"run", "--run-timeout", "never"}, "--run-timeout"},
      {{"run", "--failed", "/nowhere/results.jsonl"}, "--failed"},
      {{"run", "a", "--schedules", "3"}, "--schedule"},
      {{"fuzz", "--program", "-1"}, "--program"},
      {{"run", "--color", "blue"}, "--color"},
      {{"run", "--progress", "some"}, "--progress"},
      {{"run", "--results"}, "--results"},
      {{"bench", "--rounds", "0"}, "--rounds"},
      {{"bench", "--world-size", "65"}, "--world-size"},
      {{"explain"}, "NAME"},
      {{"compare", "old.jsonl"}, "NEW"},
      {{"report", "results.jsonl"}, "--output"},
      {{"explain-hang"}, "PATH"},
      {{"run", "--no-such-option"}, "--no-such-option"},
      {{"doctor", "extra"}, "extra"},
  };
  for (const auto& [arguments, named] : bad) {
    const Ended ended = run(arguments);
    EXPECT_EQ(ended.code, 2) << testing::PrintToString(arguments);
    EXPECT_THAT(ended.out + ended.err, HasSubstr(named)) << testing::PrintToString(arguments);
  }
}

TEST_F(App, RefusesAShardThatIsNone) {
  for (const char* shard : {"3/2", "0/2", "1", "1/2x", "a/b"}) {
    const Ended ended = run({"list", "--shard", shard});
    EXPECT_EQ(ended.code, 2) << shard;
    EXPECT_THAT(ended.err, AllOf(HasSubstr(shard), HasSubstr("write I/N with 1 <= I <= N"))) << shard;
  }
}

TEST_F(App, TakesOneShardOfTheCases) {
  const auto rows_of = [&](const char* shard) { return run({"list", "--json", "--shard", shard}).out; };
  EXPECT_THAT(rows_of("1/3"), AllOf(HasSubstr("world_size=1"), HasSubstr("\"a\"")));
  EXPECT_EQ(run({"run", "--shard", "1/3"}).code, 0) << "a";
  EXPECT_EQ(run({"run", "--shard", "2/3"}).code, 1) << "b";
  EXPECT_EQ(run({"run", "--shard", "3/3"}).code, 4) << "c";
}

TEST_F(App, GivesTheExitCodeOfTheResults) {
  EXPECT_EQ(run({"run", "a"}).code, 0);
  EXPECT_EQ(run({"run", "b"}).code, 1);
  EXPECT_EQ(run({"run", "c"}).code, 4);
  EXPECT_EQ(run({"run"}).code, 1);
  device::cuda::RecordingCalls machine;
  machine.no_driver = "no driver";
  const device::cuda::StandIn stand_in(machine);
  home_.add(
      "d",
      "ranks: {world_size: [1], launch: [thread]}\ndevice: [cuda]\nsteps:\n  - expect_equal: [ones(2), ones(2)]\n");
  EXPECT_EQ(run({"run", "d"}).code, 77);
}

TEST_F(App, RefusesScenariosThatAreWrong) {
  home_.add("wrong", "ranks: {world_size: [1]}\nsteps:\n  - no_such_verb: 1\n");
  for (const char* command : {"run", "list", "explain"}) {
    const Ended ended = run({command, "wrong"});
    EXPECT_EQ(ended.code, 2) << command;
    EXPECT_THAT(ended.err, HasSubstr("wrong.yaml:5:5: unknown verb `no_such_verb`")) << command;
  }
  EXPECT_EQ(run({"run", "no_such_scenario"}).code, 2);
  EXPECT_EQ(run({"run", "a", "--defect", "no_such_defect"}).code, 2);
  EXPECT_EQ(run({"run", "a", "--set", "nothing=1"}).code, 2);
  EXPECT_EQ(run({"run", "a", "--case", "world_size=7"}).code, 2);
}

TEST_F(App, PrintsAccordingToVerbosity) {
  const std::string normal = run({"run", "a", "b"}).out, quiet = run({"run", "-q", "a", "b"}).out,
                    verbose = run({"run", "-v", "a", "b"}).out;
  EXPECT_THAT(normal, AllOf(HasSubstr("PASS        a ["), Not(HasSubstr("1 comparison"))));
  EXPECT_THAT(quiet, AllOf(Not(HasSubstr("PASS        a [")), HasSubstr("FAIL        b [")));
  EXPECT_THAT(verbose, HasSubstr("1 comparison of 2 elements"));
}

TEST_F(App, RepeatsTheOptionsThatChangeACaseInTheCommandThatRunsItAgain) {
  EXPECT_THAT(
      run({"run", "b", "--no-order-check", "--deadline", "7", "--timeout", "50", "--defect", "bucket_cap_ignored"}).out,
      HasSubstr(" --defect bucket_cap_ignored --no-order-check --deadline 7 --timeout 50\n"));
  EXPECT_THAT(run({"run", "b", "--deadline", "10"}).out, Not(HasSubstr("--deadline")));
}

TEST_F(App, ArmsTheDefectThatIsNamed) { EXPECT_EQ(run({"run", "b", "--defect", "compare_always_equal"}).code, 0); }

TEST_F(App, StopsAtTheTimeOutOfTheWholeRun) {
  home_.add("slow",
            "ranks: {world_size: [1], launch: [process]}\nsteps:\n  - delay: {ms: 60000, where: host}\n  - expect: "
            "rank == 0\n");
  const Ended ended = run({"run", "slow", "a", "--jobs", "1", "--run-timeout", "0.5"});
  EXPECT_EQ(ended.code, 124);
  EXPECT_THAT(ended.out, AllOf(HasSubstr("MISSING"), HasSubstr("the time-out of the whole run")));
}

TEST_F(App, RunsWhatFailedBefore) {
  const std::string results = home_ / "r.jsonl";
  EXPECT_EQ(run({"run", "--results", results}).code, 1);
  const Ended again = run({"run", "--failed", results});
  EXPECT_EQ(again.code, 1);
  EXPECT_THAT(again.out, AllOf(HasSubstr("FAIL        b ["), Not(HasSubstr("PASS"))));
}

TEST_F(App, RefusesOutputsThatOverwriteEachOtherOrAScenario) {
  const std::string both = home_ / "both";
  Ended ended = run({"run", "a", "--results", both, "--junit", home_ / "reports/../both"});
  EXPECT_EQ(ended.code, 2);
  EXPECT_THAT(ended.err, HasSubstr("the results and the JUnit file are both " + both));
  EXPECT_FALSE(std::filesystem::exists(both));
  const std::string file = home_ / "scenarios/a.yaml", text = content_of(file);
  for (const char* option : {"--results", "--junit"}) {
    ended = run({"run", "a", option, file});
    EXPECT_EQ(ended.code, 2);
    EXPECT_THAT(ended.err, HasSubstr(file + " is a scenario of this run"));
    EXPECT_EQ(content_of(file), text);
  }
  for (const char* option : {"--results", "--junit"}) {
    ended = run({"run", "a", option, home_ / "page/index.html", "--report", home_ / "page"});
    EXPECT_EQ(ended.code, 2);
    EXPECT_THAT(ended.err, HasSubstr("the page of --report would overwrite " + (home_ / "page/index.html")));
  }
  for (const char* command : {"mutate", "kill-matrix"}) {
    EXPECT_EQ(run({command, "a", "--results", file}).code, 2);
    EXPECT_EQ(content_of(file), text);
  }
}

TEST_F(App, SaysThatTheFolderOfScenariosIsMissing) {
  std::filesystem::remove_all(home_.scenarios());
  const Ended ended = run({"list"});
  EXPECT_EQ(ended.code, 2);
  EXPECT_THAT(ended.err, AllOf(HasSubstr(home_.scenarios()), HasSubstr("set LOCKSTEP_HOME")));
}

TEST_F(App, RunsTheKillMatrixOnCpuAndSim) {
  std::filesystem::remove(home_ / "scenarios/b.yaml");
  home_.add("c",
            "ranks: {world_size: [1], launch: [thread]}\nsteps:\n  - {expect_equal: [ones(2), 2], raises: {message: "
            "elements}}\n");
  const Ended ended = run({"kill-matrix", "--only", "compare_always_equal", "--all"});
  EXPECT_EQ(ended.code, 1) << "the failing check is of the kind message, the defect is of the kind value";
  EXPECT_THAT(ended.out, HasSubstr("MISSED   compare_always_equal"));
  EXPECT_THAT(ended.out, HasSubstr("in 4 cases; 4 cases reach its point\n")) << "both scenarios on both devices";
  EXPECT_THAT(run({"kill-matrix", "--only", "compare_always_equal", "--all", "--device", "cpu"}).out,
              HasSubstr("in 2 cases; 2 cases reach its point\n"));
}

}  // namespace
}  // namespace lockstep::cli
