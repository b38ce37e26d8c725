#include "harness/cli/run_outputs.hpp"

#include <csignal>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "harness/cli/interrupts.hpp"
#include "harness/cli/test_support.hpp"

namespace lockstep::cli {
namespace {

using namespace testing_support;
using testing::HasSubstr;
using testing::Not;
using verdict::CaseResult;
using verdict::Status;

RunCasesOutcome with(std::initializer_list<Status> statuses) {
  RunCasesOutcome outcome;
  for (Status status : statuses) {
    CaseResult& row = outcome.results.emplace_back();
    row.scenario = "a";
    row.case_id = str("case=", static_cast<int>(outcome.results.size()));
    row.status = status;
  }
  return outcome;
}

TEST(ExitCodeOf, PrefersTheTimeOutThenTheSignalThenTheMachine) {
  RunCasesOutcome outcome = with({Status::PASS, Status::FAIL});
  EXPECT_EQ(exit_code_of(outcome, false), 1);
  outcome.machine_error = "no space left";
  EXPECT_EQ(exit_code_of(outcome, false), 3);
  outcome.interrupted = true;
  EXPECT_EQ(exit_code_of(outcome, false), 130);
  EXPECT_EQ(exit_code_of(outcome, true), 124);
}

TEST(ExitCodeOf, FollowsTheResults) {
  EXPECT_EQ(exit_code_of(with({Status::PASS}), false), 0);
  EXPECT_EQ(exit_code_of(with({Status::SKIP}), false), 4);
  EXPECT_EQ(exit_code_of(with({Status::UNSUPPORTED}), false), 77);
}

class Outputs : public testing::Test {
 protected:
  // Hands the results to all outputs, in a child.
  Ended write(const RunSettings& settings, const RunCasesOutcome& outcome) {
    return in_child([&] {
      RunOutputs outputs(settings, {});
      outputs.begin(static_cast<int>(outcome.results.size()));
      for (const CaseResult& row : outcome.results) outputs.add(row);
      return outputs.end(outcome, 1.0);
    });
  }
  Home home_;
};

TEST_F(Outputs, WriteTheSummaryEverywhere) {
  const RunSettings settings{.results = home_ / "r.jsonl", .junit = home_ / "junit.xml"};
  const Ended ended = write(settings, with({Status::PASS, Status::FAIL}));
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.out, HasSubstr("results: " + settings.results));
  EXPECT_THAT(content_of(settings.results), HasSubstr("\"counts\":{\"FAIL\":1,\"PASS\":1}"));
  EXPECT_THAT(content_of(settings.results), HasSubstr("\"exit_code\":1}\n"));
  EXPECT_THAT(content_of(settings.junit), HasSubstr("tests=\"2\" failures=\"1\""));
}

TEST_F(Outputs, CountPlansByKindOfReason) {
  RunCasesOutcome outcome = with({Status::PASS, Status::PASS, Status::PASS});
  outcome.results[0].plan_verdict = {true, ""};
  outcome.results[1].plan_verdict = {false, "ended early: rank 1"};
  const RunSettings settings{.results = home_ / "r.jsonl"};
  write(settings, outcome);
  EXPECT_THAT(content_of(settings.results), HasSubstr("\"plan\":{\"judged\":1,\"not_judged\":{\"ended early\":1}}"));
}

TEST_F(Outputs, WriteAResultsFileBesideThePage) {
  const RunSettings settings{.report = home_ / "page"};
  const RunOutputs outputs(settings, {});
  EXPECT_EQ(outputs.results_path(), home_ / "page/results.jsonl");
  EXPECT_EQ(outputs.dump_folder(), home_ / "page/results.jsonl.dumps");
  const RunSettings nothing;
  EXPECT_EQ(RunOutputs(nothing, {}).results_path(), "");
  EXPECT_EQ(RunOutputs(nothing, {}).dump_folder(), "");
}

TEST_F(Outputs, TurnAGoodExitCodeIntoThreeWhenOneFails) {
  std::ofstream(home_ / "file") << "x";
  const RunSettings settings{.results = home_ / "r.jsonl", .junit = home_ / "file/junit.xml"};
  const Ended ended = write(settings, with({Status::PASS}));
  EXPECT_EQ(ended.code, 3);
  EXPECT_THAT(ended.err, HasSubstr(home_ / "file"));
  EXPECT_THAT(content_of(settings.results), HasSubstr("\"exit_code\":3}\n")) << "the summary is written after JUnit";
  EXPECT_EQ(write(settings, with({Status::FAIL})).code, 1);
}

TEST_F(Outputs, SayHowManyResultsTheFileLacks) {
  const RunSettings settings{.results = home_ / "r.jsonl"};
  const Ended ended = in_child([&] {
    std::signal(SIGXFSZ, SIG_IGN);
    const RunCasesOutcome outcome = with({Status::PASS, Status::PASS});
    RunOutputs outputs(settings, {});
    outputs.add(outcome.results[0]);
    const rlimit limit = {std::filesystem::file_size(settings.results) + 10, RLIM_INFINITY};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    EXPECT_THROW(outputs.add(outcome.results[1]), Error);
    return outputs.end(outcome, 1.0);
  });
  EXPECT_THAT(ended.err, HasSubstr(settings.results + " lacks 1 of 2 results"));
}

TEST_F(Outputs, ReportAnInterruptedRun) {
  const Ended ended = in_child([] {
    catch_interrupts();
    ::raise(SIGALRM);
    const RunSettings settings;
    RunOutputs outputs(settings, {});
    return outputs.end({}, 1.0);
  });
  EXPECT_EQ(ended.code, 124);
}

}  // namespace
}  // namespace lockstep::cli
