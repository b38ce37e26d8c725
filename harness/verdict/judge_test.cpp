#include "harness/verdict/judge.hpp"

#include <csignal>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/core/error.hpp"
#include "harness/verdict/judge_test_support.hpp"

namespace lockstep::verdict {
namespace {

using namespace testing_support;
using testing::ElementsAre;

Expectation expecting_failure(std::optional<int> line = {}, std::optional<std::string> message = {}) {
  Expectation expectation = check_at(9);
  expectation.failure = ExpectedFailure{"known to differ", line, std::move(message)};
  return expectation;
}

TEST(Judge, PassesWithEvidenceOfAllRanks) {
  const CaseResult row = judge_ranks({good(0), good(1)});
  EXPECT_EQ(row.status, Status::PASS);
  EXPECT_EQ(row.evidence.comparisons, 2);
  EXPECT_EQ(row.evidence.elements, 8);
  EXPECT_FALSE(row.failure.has_value());
  EXPECT_EQ(row.scenario, "compose/a");
  EXPECT_EQ(row.seconds, 0.5);
}

TEST(Judge, TakesACheckThatOneRankReachedAsReached) {
  RankOutcome other = good(1);
  other.checks_reached.clear();
  EXPECT_EQ(judge_ranks({good(0), other}).status, Status::PASS);
}

TEST(Judge, IsInvalidWhenNoRankReachedACheck) {
  const CaseResult row = judge_ranks({good(0), good(1)}, check_at(12));
  EXPECT_EQ(row.status, Status::INVALID);
  ASSERT_TRUE(row.failure.has_value());
  EXPECT_EQ(row.failure->check, "expect_equal");
  EXPECT_EQ(row.failure->line, 12);
  EXPECT_EQ(row.failure->message, "no rank reached this check, and no parameter rules it out");
  Expectation two = check_at(12);
  two.checks.push_back(check_at(14).checks.front());
  EXPECT_EQ(judge_ranks({good(0)}, two).failure->line, 12);
}

TEST(Judge, IsInvalidWithoutEvidence) {
  RankOutcome outcome = good(0);
  outcome.evidence = Evidence{};
  const CaseResult nothing = judge_ranks({outcome});
  EXPECT_EQ(nothing.status, Status::INVALID);
  EXPECT_EQ(nothing.failure->message, "the case gathered no evidence: it compared nothing and expected nothing");
  outcome.evidence.trivial = 3;
  const CaseResult trivial = judge_ranks({outcome});
  EXPECT_EQ(trivial.status, Status::INVALID);
  EXPECT_EQ(
      trivial.failure->message,
      "the case gathered no evidence: 3 checks were trivial (both sides all zero, sharing storage or empty, or of a "
      "window in which nothing happened)");
  // An expected failure makes it no better.
  EXPECT_EQ(judge_ranks({outcome}, expecting_failure()).status, Status::INVALID);
}

TEST(Judge, TakesTheFirstFailureInTimeAsTheCause) {
  const CaseResult row = judge_ranks({bad(0, {failure("later", 200), failure("last", 300)}),
                                      bad(1, {failure("first", 100)}), bad(2, {failure("later", 150)})});
  EXPECT_EQ(row.status, Status::FAIL);
  ASSERT_TRUE(row.failure.has_value());
  EXPECT_EQ(row.failure->message, "first");
  EXPECT_EQ(row.failure->rank, 1);
  EXPECT_THAT(row.failure->also, ElementsAre("ranks 0, 2: later", "rank 0: last"));
}

TEST(Judge, NamesTheLowestOfTheRanksThatFailAlike) {
  const CaseResult row =
      judge_ranks({bad(0, {failure("late", 400)}), bad(1, {failure("same", 300)}), bad(2, {failure("same", 100)})});
  EXPECT_EQ(row.failure->message, "same");
  EXPECT_EQ(row.failure->rank, 1);
  EXPECT_THAT(row.failure->also, ElementsAre("rank 2: same", "rank 0: late"));
  const CaseResult middle =
      judge_ranks({bad(0, {failure("same", 200)}), bad(1, {failure("same", 100)}), bad(2, {failure("same", 300)})});
  EXPECT_EQ(middle.failure->rank, 0);
  EXPECT_THAT(middle.failure->also, ElementsAre("ranks 1, 2: same"));
}

TEST(Judge, ListsARankOncePerMessageAndTheChecksThatAreNoConsequences) {
  Failure consequence = failure("rank 0 ended", 400);
  consequence.secondary = true;
  consequence.check = "barrier";
  const CaseResult row =
      judge_ranks({bad(0, {failure("first", 100)}), bad(1, {failure("same", 200), failure("same", 300), consequence})});
  EXPECT_THAT(row.failure->also, ElementsAre("rank 1: same", "rank 1: rank 0 ended"));
  EXPECT_THAT(row.failure->also_checks, ElementsAre("expect_equal", "expect_equal"));
}

TEST(Judge, OrdersEndsAndFailuresByTime) {
  const auto first = [](std::int64_t end) {
    return judge_ranks({bad(0, {failure("values differ", 100)}), ended(1, RankStatus::hung, end)}).failure.value();
  };
  EXPECT_EQ(first(50).rank, 1);
  EXPECT_EQ(first(50).column, 3);
  EXPECT_EQ(first(150).message, "values differ");
}

TEST(Judge, TakesTheWorstEndAsTheVerdict) {
  const RankOutcome failed = bad(1, {failure("values differ", 100)});
  RankOutcome invalid = ended(2, RankStatus::invalid, 200);
  for (const std::int64_t time : {50, 150}) {
    EXPECT_EQ(judge_ranks({ended(0, RankStatus::hung, time), failed}).status, Status::HANG);
    EXPECT_EQ(judge_ranks({ended(0, RankStatus::killed, time), failed}).status, Status::CRASH);
    EXPECT_EQ(judge_ranks({ended(0, RankStatus::killed, time), ended(1, RankStatus::hung, 100)}).status, Status::CRASH);
  }
  EXPECT_EQ(judge_ranks({failed, invalid}).status, Status::FAIL);
}

TEST(Judge, NeverTakesASecondaryFailureAsTheCause) {
  Failure consequence = failure("rank 1 ended", 50);
  consequence.secondary = true;
  const CaseResult row = judge_ranks({bad(0, {consequence}), bad(1, {failure("values differ", 100)})});
  EXPECT_EQ(row.failure->message, "values differ");
  EXPECT_THAT(row.failure->also, ElementsAre("rank 0: rank 1 ended"));
  const CaseResult alone = judge_ranks({bad(0, {consequence}), good(1)});
  EXPECT_EQ(alone.status, Status::FAIL);
  EXPECT_EQ(alone.failure->message, "rank 1 ended");
}

TEST(Judge, ListsFailuresOfOneTimeByTheirRanks) {
  const CaseResult row =
      judge_ranks({bad(0, {failure("x", 7)}), bad(1, {failure("y", 7)}), bad(2, {failure("z", 7), failure("w", 7)})});
  EXPECT_EQ(row.failure->message, "x");
  EXPECT_THAT(row.failure->also, ElementsAre("rank 1: y", "rank 2: z", "rank 2: w"));
}

TEST(Judge, NamesTheFirstIterationOfARepeatedFailure) {
  Failure first = failure("2 of 6", 10), second = failure("2 of 6", 20);
  first.iteration = 3;
  second.iteration = 4;
  const CaseResult row = judge_ranks({bad(0, {first, second})});
  EXPECT_EQ(row.failure->iteration, 3);
  EXPECT_THAT(row.failure->also, ElementsAre("rank 0: 2 of 6"));
}

TEST(Judge, RefusesAFailedRankWithoutAFailure) { EXPECT_THROW(judge_ranks({bad(0, {}), good(1)}), InternalError); }

TEST(Judge, CrashesForASignal) {
  RankOutcome crash = ended(1, RankStatus::killed, 500);
  crash.signal = SIGSEGV;
  crash.detail = "its last collective was all_reduce 3";
  Failure peer = failure("rank 1 is gone", 100);
  peer.secondary = true;
  const CaseResult row = judge_ranks({bad(0, {peer}), crash});
  EXPECT_EQ(row.status, Status::CRASH);
  EXPECT_EQ(row.failure->check, "backward");
  EXPECT_EQ(row.failure->file, "a.yaml");
  EXPECT_EQ(row.failure->line, 7);
  EXPECT_EQ(row.failure->rank, 1);
  EXPECT_EQ(row.failure->message,
            "rank 1 was ended by signal 11 (SIGSEGV, an access to memory that is not mapped) in backward; its last "
            "collective was all_reduce 3");
  EXPECT_THAT(row.failure->also, ElementsAre("rank 0: rank 1 is gone"));
}

TEST(Judge, CrashesForAnExitAndAFailedStart) {
  RankOutcome exit = ended(0, RankStatus::exited, 5);
  exit.exit_code = 3;
  const CaseResult row = judge_ranks({exit, good(1)});
  EXPECT_EQ(row.status, Status::CRASH);
  EXPECT_EQ(row.failure->message, "rank 0 exited with code 3 before it handed in its outcome in backward");
  RankOutcome never = ended(1, RankStatus::never_started, 5);
  never.last_step = StepPlace{};
  never.detail = "fork: no more processes";
  const CaseResult unborn = judge_ranks({good(0), never});
  EXPECT_EQ(unborn.status, Status::CRASH);
  EXPECT_EQ(unborn.failure->message, "rank 1 could not be started; fork: no more processes");
}

TEST(Judge, CallsALostHostACrash) {
  RankOutcome lost = ended(1, RankStatus::lost, 5);
  lost.last_step = StepPlace{};
  lost.detail = "host 1 (nodeb, rank 1) was lost 2 s after the start of the case: its connection ended";
  RankOutcome killed = ended(0, RankStatus::killed, 4);
  killed.bystander = true;
  const CaseResult row = judge_ranks({killed, lost});
  EXPECT_EQ(row.status, Status::CRASH);
  EXPECT_EQ(row.failure->rank, 1);
  EXPECT_EQ(row.failure->message, "rank 1 was lost; " + lost.detail);
  killed.signal = SIGKILL;
  EXPECT_EQ(describe_end(killed), "rank 0 was ended by the harness in backward");
}

TEST(Judge, PassesForAnEndThatTheScenarioAskedFor) {
  RankOutcome killed = ended(1, RankStatus::killed, 5);
  killed.end_expected = true;
  killed.signal = SIGKILL;
  EXPECT_EQ(judge_ranks({good(0), killed}).status, Status::PASS);
  RankOutcome left = good(1);
  left.status = RankStatus::exited;
  left.end_expected = true;
  EXPECT_EQ(judge_ranks({good(0), left}).status, Status::PASS);
}

TEST(Judge, HangsForARankThatWasKilledAtTheTimeOut) {
  RankOutcome hung = ended(0, RankStatus::hung, 60);
  hung.detail = "it waited 60 s in all_gather";
  const CaseResult row = judge_ranks({hung, good(1)});
  EXPECT_EQ(row.status, Status::HANG);
  EXPECT_EQ(row.failure->message,
            "rank 0 did not end in time and was ended by the harness in backward; it waited 60 s in all_gather");
  RankOutcome crash = ended(1, RankStatus::killed, 90);
  crash.signal = SIGABRT;
  EXPECT_EQ(judge_ranks({hung, crash}).status, Status::CRASH);
  // An expected failure does not excuse either.
  EXPECT_EQ(judge_ranks({hung, good(1)}, expecting_failure()).status, Status::HANG);
  EXPECT_EQ(judge_ranks({good(0), crash}, expecting_failure()).status, Status::CRASH);
}

TEST(Judge, NeverTakesABystanderAsTheCause) {
  std::vector<RankOutcome> ranks(3);
  for (int rank = 0; rank < 3; ++rank) {
    RankOutcome& outcome = ranks[static_cast<std::size_t>(rank)];
    outcome.rank = rank;
    outcome.status = RankStatus::hung;
    outcome.bystander = rank != 2;
    outcome.end_time_ns = 10 + rank;  // it ends last
    outcome.detail = rank == 2 ? "ranks 0, 1 wait for it" : "in barrier";
  }
  const CaseResult row = judge(CaseResult{}, {}, {{"", ranks}});
  EXPECT_EQ(row.status, Status::HANG);
  ASSERT_TRUE(row.failure);
  EXPECT_EQ(row.failure->message, "rank 2 did not end in time and was ended by the harness; ranks 0, 1 wait for it");
  EXPECT_EQ(row.failure->also,
            std::vector<std::string>{"ranks 0, 1: did not end in time and was ended by the harness; in barrier"});
}

TEST(Judge, IsUnsupportedWhereTheMachineLacksSomething) {
  RankOutcome lacks = ended(0, RankStatus::unsupported, 10);
  lacks.detail = "this build has no cuda device";
  Failure peer = failure("rank 0 left", 5);
  peer.secondary = true;
  const CaseResult row = judge_ranks({lacks, bad(1, {peer})});
  EXPECT_EQ(row.status, Status::UNSUPPORTED);
  EXPECT_EQ(row.reason, "this build has no cuda device");
  EXPECT_FALSE(row.failure.has_value());
  // A failure of its own that came first is not hidden by it.
  EXPECT_EQ(judge_ranks({lacks, bad(1, {failure("values differ", 5)})}).status, Status::FAIL);
  RankOutcome failed_before = lacks, failed_after = lacks;
  failed_before.failures = {failure("values differ", 5)};
  failed_after.failures = {failure("a stream failed", 15)};
  EXPECT_EQ(judge_ranks({failed_before}).status, Status::FAIL);
  EXPECT_EQ(judge_ranks({failed_after}).status, Status::UNSUPPORTED);
}

TEST(Judge, IsInvalidWhereARankIsUnlessAnotherFailed) {
  RankOutcome invalid = ended(0, RankStatus::invalid, 10);
  invalid.detail = "'loss' is not bound: the step that binds it did not run";
  Failure peer = failure("rank 0 left", 5);
  peer.secondary = true;
  const CaseResult row = judge_ranks({invalid, bad(1, {peer})});
  EXPECT_EQ(row.status, Status::INVALID);
  EXPECT_EQ(row.failure->message, "'loss' is not bound: the step that binds it did not run");
  EXPECT_EQ(row.failure->line, 7);
  EXPECT_THAT(row.failure->also, ElementsAre("rank 1: rank 0 left"));
  EXPECT_EQ(judge_ranks({invalid, good(1)}, expecting_failure()).status, Status::INVALID);
  EXPECT_EQ(judge_ranks({invalid, bad(1, {failure("values differ", 50)})}).status, Status::FAIL);
}

TEST(Judge, GivesXfailForAnExpectedFailure) {
  const CaseResult row = judge_ranks({bad(0, {failure("2 of 6 elements", 1)})}, expecting_failure(9, "2 of*elements"));
  EXPECT_EQ(row.status, Status::XFAIL);
  EXPECT_EQ(row.reason, "known to differ");
  EXPECT_EQ(row.failure->message, "2 of 6 elements");
}

TEST(Judge, FailsForAFailureWithAnotherLineOrMessage) {
  const CaseResult elsewhere = judge_ranks({bad(0, {failure("2 of 6", 1, 14)})}, expecting_failure(9));
  EXPECT_EQ(elsewhere.status, Status::FAIL);
  EXPECT_EQ(elsewhere.failure->message,
            "2 of 6\n  a failure was expected (known to differ) at line 9, but this is another failure");
  const CaseResult other = judge_ranks({bad(0, {failure("sizes differ", 1)})}, expecting_failure({}, "2 of"));
  EXPECT_EQ(other.status, Status::FAIL);
  EXPECT_EQ(
      other.failure->message,
      "sizes differ\n  a failure was expected (known to differ) with the message '2 of', but this is another failure");
}

TEST(Judge, FindsNoExpectedMessageInANote) {
  Failure noted = failure("2 of 6 elements [the sizes differ]", 1);
  noted.note_size = std::string_view(" [the sizes differ]").size();
  EXPECT_EQ(judge_ranks({bad(0, {noted})}, expecting_failure(9, "the sizes differ")).status, Status::FAIL);
  EXPECT_EQ(judge_ranks({bad(0, {noted})}, expecting_failure(9, "elements*sizes")).status, Status::FAIL);
  const CaseResult row = judge_ranks({bad(0, {noted})}, expecting_failure(9, "2 of*elements"));
  EXPECT_EQ(row.status, Status::XFAIL);
  EXPECT_EQ(row.failure->message, "2 of 6 elements [the sizes differ]");
}

TEST(Judge, FindsNoOtherFailureInANote) {
  Failure noted = failure("1 of 6 elements [the sizes differ]", 2);
  noted.note_size = std::string_view(" [the sizes differ]").size();
  const auto judged = [&](const std::string& other) {
    Expectation expectation = expecting_failure();
    expectation.failure->also = std::vector<std::string>{other};
    return judge_ranks({bad(0, {failure("2 of 6 elements", 1), noted})}, expectation);
  };
  EXPECT_EQ(judged("rank 0: *the sizes differ").status, Status::FAIL);
  const CaseResult row = judged("rank 0: 1 of*elements");
  EXPECT_EQ(row.status, Status::XFAIL);
  EXPECT_THAT(row.failure->also, ElementsAre("rank 0: 1 of 6 elements [the sizes differ]"));
}

TEST(Judge, FindsAnExpectedFailureInARoutineByTheCallingLine) {
  Failure inside = failure("2 of 6", 1, 31);
  inside.file = "lib/train_pair.yaml";
  inside.scenario_line = 9;
  EXPECT_EQ(judge_ranks({bad(0, {inside})}, expecting_failure(9)).status, Status::XFAIL);
  EXPECT_EQ(judge_ranks({bad(0, {inside})}, expecting_failure(31)).status, Status::FAIL);
}

TEST(Judge, GivesXpassWithoutTheExpectedFailure) {
  const CaseResult row = judge_ranks({good(0)}, expecting_failure());
  EXPECT_EQ(row.status, Status::XPASS);
  EXPECT_EQ(row.reason, "known to differ");
}

TEST(Judge, HoldsTheVerdictAgainstTheExpectedOne) {
  Expectation hang = expecting_failure({}, "did not end in time");
  hang.failure->verdict = Status::HANG;
  EXPECT_EQ(judge_ranks({ended(0, RankStatus::hung, 5), good(1)}, hang).status, Status::XFAIL);
  const CaseResult crash = judge_ranks({ended(0, RankStatus::killed, 5), good(1)}, hang);
  EXPECT_EQ(crash.status, Status::CRASH);
  EXPECT_THAT(crash.failure->message, testing::Not(testing::HasSubstr("another failure")));
  Expectation elsewhere = expecting_failure(99);
  elsewhere.failure->verdict = Status::HANG;
  const CaseResult same = judge_ranks({ended(0, RankStatus::hung, 5), good(1)}, elsewhere);
  EXPECT_EQ(same.status, Status::HANG);
  EXPECT_THAT(same.failure->message, testing::HasSubstr("but this is another failure"));
  const CaseResult other = judge_ranks({bad(0, {failure("2 of 6", 1)})}, hang);
  EXPECT_EQ(other.status, Status::FAIL);
  EXPECT_THAT(other.failure->message, testing::HasSubstr("with the verdict HANG with the message 'did not end"));
  EXPECT_EQ(judge_ranks({good(0)}, hang).status, Status::XPASS);

  Expectation unsupported = expecting_failure({}, "no cuda");
  unsupported.failure->verdict = Status::UNSUPPORTED;
  RankOutcome lacking = ended(0, RankStatus::unsupported, 5);
  lacking.detail = "no cuda here";
  EXPECT_EQ(judge_ranks({lacking}, unsupported).status, Status::XFAIL);

  Expectation invalid = expecting_failure({}, "no rank reached");
  invalid.failure->verdict = Status::INVALID;
  RankOutcome unreached = good(0);
  unreached.checks_reached.clear();
  EXPECT_EQ(judge_ranks({unreached}, invalid).status, Status::XFAIL);
}

TEST(Judge, HoldsRankAndOtherFailuresAgainstTheExpectedOnes) {
  const std::vector<RankOutcome> ranks = {bad(0, {failure("b", 20)}), bad(1, {failure("a", 10)})};
  const auto status = [&](std::optional<int> rank, std::optional<std::vector<std::string>> also) {
    Expectation expectation = expecting_failure();
    expectation.failure->rank = rank;
    expectation.failure->also = std::move(also);
    return judge_ranks(ranks, expectation).status;
  };
  EXPECT_EQ(status(1, {{"rank 0: b"}}), Status::XFAIL);
  EXPECT_EQ(status(0, {}), Status::FAIL);
  EXPECT_EQ(status({}, {{"rank 0: c"}}), Status::FAIL);
  EXPECT_EQ(status({}, std::vector<std::string>{}), Status::FAIL);
  EXPECT_EQ(status({}, {{"rank 0: b", "rank 2"}}), Status::FAIL);
}

TEST(Judge, HoldsTheExplanationOfTheFlightRecorderAgainstTheExpectedOne) {
  Expectation expectation = expecting_failure();
  expectation.failure->verdict = Status::HANG;
  expectation.failure->flight_recorder = "Rank 1*in barrier";
  const auto judged = [&](const std::string& explanation) {
    return judge({}, expectation, {{"", {ended(0, RankStatus::hung, 5)}}}, explanation);
  };
  EXPECT_EQ(judged("Rank 1 waits in barrier for rank 0.\n").status, Status::XFAIL);
  const CaseResult other = judged("Rank 0 died.\n");
  EXPECT_EQ(other.status, Status::HANG);
  EXPECT_THAT(other.failure->message, testing::HasSubstr("the flight recorder was expected to say 'Rank 1*in barrier', "
                                                         "but it says: Rank 0 died."));
}

TEST(Judge, FailsWithOtherEvidenceThanTheScenarioStates) {
  Expectation expectation = check_at(9);
  expectation.evidence = {{"comparisons", 2}, {"elements", 8}, {"rtol", 0}};
  EXPECT_EQ(judge_ranks({good(0), good(1)}, expectation).status, Status::PASS);
  expectation.evidence = {{"comparisons", 3}, {"elements", 8}, {"trivial", 1}};
  const CaseResult row = judge_ranks({good(0), good(1)}, expectation);
  EXPECT_EQ(row.status, Status::FAIL);
  EXPECT_EQ(row.failure->message,
            "the case gathered other evidence than the scenario states: comparisons is 2, expected 3, trivial is 0, "
            "expected 1");
}

TEST(Judge, IsMissingWithoutAnyRank) {
  EXPECT_EQ(judge_ranks({}).status, Status::MISSING);
  EXPECT_EQ(judge(CaseResult{}, Expectation{}, {}).status, Status::MISSING);
}

TEST(Judge, TakesAFailureOfAnEarlierStageAsTheCause) {
  const CaseResult row =
      judge(CaseResult{}, check_at(9),
            {{"save", {bad(0, {failure("save", 900)})}}, {"load", {bad(0, {failure("load", 100)})}}});
  EXPECT_EQ(row.failure->message, "save");
}

}  // namespace
}  // namespace lockstep::verdict
