#include "harness/cli/defect_catch.hpp"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/cli/test_support.hpp"

namespace lockstep::cli {
namespace {

using namespace testing_support;
using scenario::Case;
using testing::ElementsAre;
using testing::IsEmpty;
using verdict::CaseResult;
using verdict::Status;

// A case with steps of every kind. The constants below are the lines of its steps.
constexpr const char* steps = R"yaml(ranks: {world_size: [2]}
steps:
  - let: {x: "full([2], rank + 1)"}
  - {expect_equal: [x, x], raises: {message: wrong}}
  - expect: memory('gathered') == 0
  - expect: rank < 2
  - if: rank == 0
    steps:
      - expect_equal: [x, x]
    else:
      - expect: memory('other') >= 0
  - observe: {}
    as: seen
    steps:
      - all_reduce: {tensor: x, op: sum}
  - expect: seen.peak_bytes >= 0
  - expect_collectives: {during: seen, exactly: {user: {all_reduce: 1}}}
)yaml";
constexpr int let_line = 5, raises_line = 6, memory_line = 7, condition_line = 8, equal_line = 11, else_line = 13,
              peak_line = 18, count_line = 19;

Case test_case() {
  static scenario::Library library("/nowhere");
  static const std::vector<Case> cases = cases_of_text(library, steps);
  return cases.front();
}

CaseResult failed(const std::string& check, int line) {
  CaseResult row;
  row.scenario = "test";
  row.status = Status::FAIL;
  row.failure = verdict::Failure{};
  row.failure->check = check;
  row.failure->line = line;
  return row;
}

CaseResult with_status(Status status) {
  CaseResult row = failed("expect_equal", equal_line);
  row.status = status;
  return row;
}

CaseResult inside_routine(CaseResult row) {
  row.failure->scenario_line = let_line;
  return row;
}

TEST(KindShownBy, FollowsTheCheckThatFailed) {
  const auto kind = [](const std::string& check, int line) { return kind_shown_by(failed(check, line), test_case()); };
  EXPECT_EQ(kind("expect_equal", equal_line), DefectKind::value);
  EXPECT_EQ(kind("expect_different", let_line), DefectKind::value);
  EXPECT_EQ(kind("expect_across", let_line), DefectKind::value);
  EXPECT_EQ(kind("expect", condition_line), DefectKind::value);
  EXPECT_EQ(kind("expect_collectives", count_line), DefectKind::count);
  EXPECT_EQ(kind("expect_events", let_line), DefectKind::count);
  EXPECT_EQ(kind("plan", let_line), DefectKind::count);
  EXPECT_EQ(kind("witness", let_line), DefectKind::count);
  EXPECT_EQ(kind("order", let_line), DefectKind::order);
  EXPECT_EQ(kind("plan_order", let_line), DefectKind::order);
  EXPECT_EQ(kind("raises", let_line), DefectKind::message);
}

TEST(KindShownBy, IsNoneForAFailureOutsideAnyCheck) {
  for (const char* check : {"forward", "backward", "rank", "", "expected"})
    EXPECT_EQ(kind_shown_by(failed(check, let_line), test_case()), std::nullopt) << check;
}

TEST(KindShownBy, IsMessageForAnyFailureAtAStepWithRaises) {
  EXPECT_EQ(kind_shown_by(failed("expect_equal", raises_line), test_case()), DefectKind::message);
}

TEST(KindShownBy, IsMemoryForAConditionOnBytes) {
  for (int line : {memory_line, else_line, peak_line})
    EXPECT_EQ(kind_shown_by(failed("expect", line), test_case()), DefectKind::memory) << line;
}

TEST(KindShownBy, DoesNotLookUpALineInsideARoutineInTheScenario) {
  EXPECT_EQ(kind_shown_by(inside_routine(failed("expect", memory_line)), test_case()), DefectKind::value);
  EXPECT_EQ(kind_shown_by(inside_routine(failed("expect_equal", raises_line)), test_case()), DefectKind::value);
}

TEST(KindShownBy, IsNoneForAnEndThatIsNoFailure) {
  for (Status status : {Status::CRASH, Status::HANG, Status::INVALID, Status::PASS, Status::XFAIL, Status::SKIP,
                        Status::UNSUPPORTED, Status::MISSING})
    EXPECT_EQ(kind_shown_by(with_status(status), test_case()), std::nullopt) << verdict::name_of(status);
  CaseResult row = with_status(Status::FAIL);
  row.failure.reset();
  EXPECT_EQ(kind_shown_by(row, test_case()), std::nullopt);
}

TEST(KindShownBy, IsTheKindOfTheCheckThatHadToFailForAnXpass) {
  CaseResult row;
  row.status = Status::XPASS;
  Case expecting = test_case();
  const auto kind_at = [&](std::optional<int> line) {
    expecting.expect_failure = scenario::ExpectedFailure{"a reason", line, ""};
    return kind_shown_by(row, expecting);
  };
  EXPECT_EQ(kind_at(equal_line), DefectKind::value);
  EXPECT_EQ(kind_at(count_line), DefectKind::count);
  EXPECT_EQ(kind_at(raises_line), DefectKind::message);
  EXPECT_EQ(kind_at(memory_line), DefectKind::memory);
  EXPECT_EQ(kind_at(let_line), std::nullopt) << "no check";
  EXPECT_EQ(kind_at(1), std::nullopt) << "no step";
  EXPECT_EQ(kind_at(std::nullopt), std::nullopt);
  EXPECT_EQ(kind_shown_by(row, test_case()), std::nullopt);
}

TEST(ShowsKind, HoldsForTheKindOfTheFirstFailureOnly) {
  constexpr DefectKind kinds[] = {DefectKind::value, DefectKind::count, DefectKind::order, DefectKind::memory,
                                  DefectKind::message};
  const std::vector<std::pair<DefectKind, CaseResult>> rows = {
      {DefectKind::value, failed("expect_equal", equal_line)},
      {DefectKind::count, failed("expect_collectives", count_line)},
      {DefectKind::order, failed("order", let_line)},
      {DefectKind::memory, failed("expect", memory_line)},
      {DefectKind::message, failed("raises", raises_line)},
  };
  for (const auto& [shown, row] : rows)
    for (DefectKind kind : kinds)
      EXPECT_EQ(shows_kind(row, test_case(), kind), kind == shown) << name_of(shown) << " " << name_of(kind);
}

TEST(ShowsKind, HoldsForTheKindOfALaterFailure) {
  CaseResult row = failed("forward", let_line);
  row.failure->also_checks = {"backward", "expect_equal"};
  EXPECT_TRUE(shows_kind(row, test_case(), DefectKind::value));
  EXPECT_FALSE(shows_kind(row, test_case(), DefectKind::count));
  row.status = Status::CRASH;
  EXPECT_FALSE(shows_kind(row, test_case(), DefectKind::value));
}

TEST(ShowsKind, TakesEventsForCountAndOrder) {
  EXPECT_TRUE(shows_kind(failed("expect_events", let_line), test_case(), DefectKind::count));
  EXPECT_TRUE(shows_kind(failed("expect_events", let_line), test_case(), DefectKind::order));
  EXPECT_FALSE(shows_kind(failed("expect_collectives", count_line), test_case(), DefectKind::order));
  CaseResult later = failed("forward", let_line);
  later.failure->also_checks = {"expect_events"};
  EXPECT_FALSE(shows_kind(later, test_case(), DefectKind::order));
}

TEST(DefectTally, IsCaughtByACheckOfItsKind) {
  DefectTally tally(DefectKind::value);
  EXPECT_FALSE(tally.caught());
  EXPECT_TRUE(tally.add(failed("expect_equal", equal_line), test_case()));
  EXPECT_TRUE(tally.caught());
  EXPECT_THAT(tally.catches(), ElementsAre(Catch{"test", "expect_equal"}));
  EXPECT_THAT(tally.others(), IsEmpty());
  EXPECT_EQ(tally.num_run(), 1);
}

TEST(DefectTally, IsNotCaughtByACheckOfAnotherKind) {
  DefectTally tally(DefectKind::count);
  EXPECT_FALSE(tally.add(failed("expect_equal", equal_line), test_case()));
  EXPECT_FALSE(tally.caught());
  EXPECT_THAT(tally.others(), ElementsAre(Catch{"test", "expect_equal"}));
}

TEST(DefectTally, IsNotCaughtByACrashAHangOrAFailureOutsideAnyCheck) {
  DefectTally tally(DefectKind::value);
  CaseResult crash = with_status(Status::CRASH);
  crash.failure->check = "backward";
  CaseResult hang = with_status(Status::HANG);
  hang.failure.reset();
  EXPECT_FALSE(tally.add(crash, test_case()));
  EXPECT_FALSE(tally.add(hang, test_case()));
  EXPECT_FALSE(tally.add(failed("forward", let_line), test_case()));
  EXPECT_FALSE(tally.add(with_status(Status::INVALID), test_case()));
  EXPECT_FALSE(tally.caught());
  EXPECT_THAT(tally.others(), ElementsAre(Catch{"test", "HANG"}, Catch{"test", "backward"},
                                          Catch{"test", "expect_equal"}, Catch{"test", "forward"}));
  EXPECT_EQ(tally.num_run(), 4);
}

TEST(DefectTally, IsNotCaughtByCasesThatEndAsExpected) {
  DefectTally tally(DefectKind::value);
  for (Status status : {Status::PASS, Status::XFAIL, Status::SKIP, Status::UNSUPPORTED})
    EXPECT_FALSE(tally.add(with_status(status), test_case()));
  EXPECT_FALSE(tally.caught());
  EXPECT_THAT(tally.others(), IsEmpty());
  EXPECT_EQ(tally.num_run(), 4);
}

TEST(DefectTally, IgnoresCasesThatDidNotRun) {
  DefectTally tally(DefectKind::value);
  EXPECT_FALSE(tally.add(with_status(Status::MISSING), test_case()));
  EXPECT_EQ(tally.num_run(), 0);
  EXPECT_THAT(tally.others(), IsEmpty());
}

TEST(DefectTally, CountsAScenarioAndCheckOnce) {
  DefectTally tally(DefectKind::value);
  tally.add(failed("expect_equal", equal_line), test_case());
  tally.add(failed("expect_equal", equal_line), test_case());
  EXPECT_EQ(tally.catches().size(), 1u);
  EXPECT_EQ(tally.num_run(), 2);
}

}  // namespace
}  // namespace lockstep::cli
