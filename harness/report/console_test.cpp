#include "harness/report/console.hpp"

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "engine/core/error.hpp"
#include "harness/report/text.hpp"

namespace lockstep::report {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using verdict::CaseResult;
using verdict::Status;

CaseResult passed() {
  CaseResult row;
  row.scenario = "compose/a";
  row.case_id = "world_size=2";
  row.status = Status::PASS;
  row.seconds = 0.0214;
  row.evidence.comparisons = 2;
  row.evidence.elements = 10;
  row.evidence.same_bits = 2;
  row.evidence.collectives_checked = 1;
  row.collectives = {{"data_parallel", "all_reduce", "dp", 2, "backward", 2, 2048, -1, ""}};
  row.memory = {{"peak_total", 4096}};
  row.repro = "lockstep run compose/a";
  return row;
}

CaseResult failed() {
  CaseResult row = passed();
  row.status = Status::FAIL;
  row.failure = verdict::Failure{};
  row.failure->check = "expect_equal";
  row.failure->file = "scenarios/a.yaml";
  row.failure->line = 12;
  row.failure->column = 5;
  row.failure->rank = 1;
  row.failure->iteration = 3;
  row.failure->message = "2 of 6 elements\n  first at (0, 1)";
  row.failure->also = {"rank 0: the same"};
  return row;
}

std::string shown(const CaseResult& row, ConsoleOptions options = {}) {
  std::ostringstream out;
  Console console(out, options);
  console.begin(1);
  console.finished(row);
  return out.str();
}

TEST(Console, PrintsOneLineForACaseThatPassed) {
  EXPECT_EQ(shown(passed()), "PASS        compose/a [world_size=2]  0.021 s\n");
}

TEST(Console, PrintsAFailureInFull) {
  EXPECT_EQ(shown(failed()),
            "FAIL        compose/a [world_size=2]  0.021 s\n"
            "  scenarios/a.yaml:12:5: expect_equal, rank 1, iteration 3\n"
            "  2 of 6 elements\n"
            "    first at (0, 1)\n"
            "  also rank 0: the same\n"
            "  again: lockstep run compose/a\n");
}

TEST(Console, NamesTheLineThatUsesARoutine) {
  CaseResult row = failed();
  row.failure->file = "scenarios/lib/parity.yaml";
  row.failure->scenario_line = 31;
  EXPECT_THAT(shown(row), HasSubstr("\n  scenarios/lib/parity.yaml:12:5 (used in line 31): expect_equal, rank 1,"));
}

TEST(Console, PrintsTheFailuresOfAFewOtherRanks) {
  CaseResult row = failed();
  row.failure->also.clear();
  for (int rank = 1; rank < 128; ++rank) row.failure->also.push_back(str("rank ", rank, ": the same"));
  EXPECT_THAT(shown(row), AllOf(HasSubstr("  also rank 8: the same\n  also 119 other ranks; results files have each"),
                                Not(HasSubstr("rank 9:"))));
}

TEST(Console, PrintsTheReasonOnTheLine) {
  CaseResult row = passed();
  row.status = Status::SKIP;
  row.seconds = 0;
  row.reason = "needs 4 ranks";
  EXPECT_EQ(shown(row), "SKIP        compose/a [world_size=2]  needs 4 ranks\n");
}

TEST(Console, PrintsTheExpectedFailureOfAnXpass) {
  CaseResult row = passed();
  row.status = Status::XPASS;
  row.reason = "known to differ";
  EXPECT_EQ(shown(row),
            "XPASS       compose/a [world_size=2]  0.021 s\n"
            "  a failure was expected, but the case passed: known to differ\n"
            "  again: lockstep run compose/a\n");
}

TEST(Console, PrintsOnlyUnexpectedResultsWhenQuiet) {
  ConsoleOptions quiet;
  quiet.verbosity = -1;
  EXPECT_EQ(shown(passed(), quiet), "");
  EXPECT_THAT(shown(failed(), quiet), HasSubstr("FAIL        compose/a"));
}

TEST(Console, PrintsTheEvidenceWhenVerbose) {
  ConsoleOptions verbose;
  verbose.verbosity = 1;
  EXPECT_EQ(shown(passed(), verbose),
            "PASS        compose/a [world_size=2]  0.021 s\n"
            "  2 comparisons of 10 elements, 2 with the same bits, 1 collective checked\n"
            "  data_parallel/all_reduce x 2, 2 KiB, backward, group of 2 along dp\n"
            "  memory peak 4 KiB\n");
}

TEST(Console, SaysHowManyCasesHaveSumsInTheOrderOfTheLibrary) {
  verdict::CaseResult row = passed();
  row.sum_order = "library";
  row.evidence.bits_relaxed = 2;
  verdict::CaseResult skipped = row;
  skipped.status = Status::UNSUPPORTED;
  skipped.evidence = {};
  std::ostringstream out;
  Console console(out, {});
  console.begin(2);
  console.finished(row);
  console.finished(skipped);
  console.end({});
  EXPECT_NE(
      out.str().find("\nsums in the order of the library in 1 case; tolerances took the place of required bits in 2 "
                     "comparisons\n"),
      std::string::npos)
      << out.str();
}

TEST(Console, PrintsTheNoteInTheSummary) {
  ConsoleOptions options;
  options.note = "cuda is a model";
  std::ostringstream out;
  Console console(out, options);
  console.begin(0);
  console.end({});
  EXPECT_NE(out.str().find("\ncuda is a model\n"), std::string::npos) << out.str();
}

TEST(Console, PrintsTheCostOfPlanningWhenVerbose) {
  ConsoleOptions verbose;
  verbose.verbosity = 1;
  CaseResult row = passed();
  row.planning = {0.001, 0.02, 1};
  EXPECT_THAT(shown(row, verbose),
              HasSubstr("planning took 0.001 of the ranks' 0.02 s of CPU time (5.0 %), with 1 dry run\n"));
  EXPECT_THAT(shown(row), Not(HasSubstr("planning")));
}

TEST(Console, PrintsConditionsApartFromComparisons) {
  ConsoleOptions verbose;
  verbose.verbosity = 1;
  CaseResult row = passed();
  row.evidence.conditions = 3;
  EXPECT_THAT(shown(row, verbose),
              HasSubstr("2 comparisons of 10 elements, 2 with the same bits, 3 conditions, 1 coll"));
}

TEST(Console, ColorsTheVerdict) {
  ConsoleOptions color;
  color.color = true;
  EXPECT_THAT(shown(passed(), color), HasSubstr("\x1b[32mPASS       \x1b[0m compose/a"));
  EXPECT_THAT(shown(failed(), color), HasSubstr("\x1b[1;31mFAIL       \x1b[0m compose/a"));
  EXPECT_THAT(shown(failed()), Not(HasSubstr("\x1b")));
}

TEST(Console, EscapesCharactersThatSteerTheTerminal) {
  CaseResult row = failed();
  row.failure->message = "red \x1b[31m and \r back";
  EXPECT_THAT(shown(row), HasSubstr("red \\x1b[31m and \\x0d back"));
}

TEST(Console, KeepsANameOnItsLine) {
  CaseResult row = passed();
  row.case_id =
      "word=a\nPASS b\xc2\x9b"
      "31m\xe2\x80\xae";
  EXPECT_THAT(shown(row), HasSubstr("[word=a\\nPASS b\\u009b31m\\u202e]"));
}

TEST(Console, ErasesTheProgressLineBeforeAnythingElse) {
  ConsoleOptions progress;
  progress.progress = true;
  progress.width = 40;
  std::ostringstream out;
  Console console(out, progress);
  console.begin(3);
  EXPECT_EQ(out.str(), "[0/3]");
  console.finished(failed());
  EXPECT_THAT(out.str(), HasSubstr("[0/3]\r\x1b[KFAIL "));
  EXPECT_THAT(out.str(), testing::EndsWith("\n[1/3] 1 unexpected compose/a [world_siz"));
  console.note("a warning");
  EXPECT_THAT(out.str(), HasSubstr("\r\x1b[Ka warning\n[1/3]"));
  console.finished(passed());
  console.finished(passed());
  EXPECT_THAT(out.str(), testing::EndsWith("0.021 s\n"));
}

TEST(Console, EndsWithTheCounts) {
  std::ostringstream out;
  Console console(out, {});
  console.begin(3);
  console.finished(passed());
  console.finished(failed());
  CaseResult crash = failed();
  crash.status = Status::CRASH;
  console.finished(crash);
  out.str("");
  console.end(verdict::Summary{{{"PASS", 1}, {"FAIL", 1}, {"CRASH", 1}}, 12.25, 1}, "build/results.jsonl");
  EXPECT_EQ(out.str(),
            "\nunexpected results:\n"
            "  FAIL compose/a [world_size=2]\n"
            "  CRASH compose/a [world_size=2]\n"
            "\n"
            "PASS             1\n"
            "FAIL             1\n"
            "CRASH            1\n"
            "cases            3  in 12.2 s\n"
            "results: build/results.jsonl\n");
}

TEST(Console, GivesTheReasonWhyNothingWasExecuted) {
  std::ostringstream out;
  Console console(out, {});
  console.end(verdict::Summary{{{"UNSUPPORTED", 2}}, 0.5, 77});
  EXPECT_THAT(out.str(), HasSubstr("nothing was executed: this machine lacks what the cases need\n"));
}

TEST(ConsoleOptions, HaveNoColorsWithoutATerminal) {
  int channel[2];
  ASSERT_EQ(::pipe(channel), 0);
  const ConsoleOptions automatic = console_options(channel[1], When::automatic, When::automatic, 0);
  EXPECT_FALSE(automatic.color);
  EXPECT_FALSE(automatic.progress);
  const ConsoleOptions always = console_options(channel[1], When::always, When::always, 1);
  EXPECT_TRUE(always.color);
  EXPECT_TRUE(always.progress);
  EXPECT_EQ(always.verbosity, 1);
  ::close(channel[0]);
  ::close(channel[1]);
}

TEST(ConsoleOptions, FollowTheEnvironmentOnATerminal) {
  const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY);
  if (terminal < 0) GTEST_SKIP() << "no pseudo terminal";
  ::grantpt(terminal);
  ::unlockpt(terminal);
  ::setenv("TERM", "xterm", 1);
  ::unsetenv("NO_COLOR");
  EXPECT_TRUE(console_options(terminal, When::automatic, When::automatic, 0).color);
  EXPECT_TRUE(console_options(terminal, When::automatic, When::automatic, 0).progress);
  EXPECT_FALSE(console_options(terminal, When::never, When::never, 0).color);
  EXPECT_FALSE(console_options(terminal, When::never, When::never, 0).progress);
  ::setenv("NO_COLOR", "1", 1);
  EXPECT_FALSE(console_options(terminal, When::automatic, When::automatic, 0).color);
  EXPECT_TRUE(console_options(terminal, When::always, When::automatic, 0).color);
  ::unsetenv("NO_COLOR");
  ::setenv("TERM", "dumb", 1);
  EXPECT_FALSE(console_options(terminal, When::automatic, When::automatic, 0).color);
  EXPECT_FALSE(console_options(terminal, When::automatic, When::automatic, 0).progress);
  ::close(terminal);
}

TEST(WhenFromName, KnowsThreeWords) {
  EXPECT_EQ(when_from_name("auto"), When::automatic);
  EXPECT_EQ(when_from_name("always"), When::always);
  EXPECT_EQ(when_from_name("never"), When::never);
  EXPECT_THROW(when_from_name("Always"), Error);
}

TEST(Console, PrintsOneLinePerReasonForCasesThatDidNotRun) {
  std::ostringstream out;
  Console console(out, {});
  verdict::Summary summary;
  for (int i = 0; i < 300; ++i) {
    CaseResult row = passed();
    row.status = Status::MISSING;
    row.reason = "the run was interrupted";
    console.finished(row);
    ++summary.counts["MISSING"];
  }
  console.end(summary, "");
  const std::string text = out.str();
  EXPECT_THAT(text, HasSubstr("300 cases: the run was interrupted"));
  EXPECT_THAT(text, Not(HasSubstr("compose/a")));
  EXPECT_LT(std::count(text.begin(), text.end(), '\n'), 8);
}

TEST(BytesText, HasThreeDigitsAndNoExponent) {
  EXPECT_EQ(bytes_text(1023), "1023 bytes");
  EXPECT_EQ(bytes_text(1536), "1.5 KiB");
  EXPECT_EQ(bytes_text(100 * 1024), "100 KiB");
  EXPECT_EQ(bytes_text(999.6 * 1024), "1000 KiB");
  EXPECT_EQ(bytes_text(1023 * 1024), "1023 KiB");
  EXPECT_EQ(bytes_text(1023.6 * 1024), "1 MiB");
  EXPECT_EQ(bytes_text(1020.0 * (1 << 20)), "1020 MiB");
}

}  // namespace
}  // namespace lockstep::report
