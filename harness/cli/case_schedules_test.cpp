#include "harness/cli/case_schedules.hpp"

#include <cstdint>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::cli {
namespace {

using schedule::Switch;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using verdict::Status;

verdict::CaseResult ended(Status status, double seconds) {
  verdict::CaseResult row;
  row.status = status;
  row.seconds = seconds;
  return row;
}

// At both steps of the actor a, b runs next.
Switch at_step(std::uint32_t own_step) { return {"a", own_step, "b"}; }

// The run that ended had two decisions, and both were switches.
void record_two_switches(CaseSchedules& schedules) {
  schedule::Record& record = schedules.current()->record();
  record.num_actors = 2;
  record.names[0][0] = 'a';
  record.names[1][0] = 'b';
  record.num_decisions = record.num_kept = 2;
  record.decisions[0] = {.actor = 0, .next = 1, .fallback = 0, .own_step = 1};
  record.decisions[1] = {.actor = 0, .next = 1, .fallback = 0, .own_step = 2};
}

TEST(CaseSchedules, CountsTheTimeToShrinkFromTheFailure) {
  ScheduleOptions options;
  options.request = launch::request_from_text("random:7");
  options.count = 5;
  options.seconds_to_shrink = 60;
  CaseSchedules schedules(options);
  EXPECT_TRUE(schedules.goes_on(ended(Status::PASS, 50)));
  EXPECT_TRUE(schedules.goes_on(ended(Status::PASS, 50)));
  record_two_switches(schedules);
  ASSERT_TRUE(schedules.goes_on(ended(Status::FAIL, 50)));
  EXPECT_THAT(schedules.current()->spec.switches, IsEmpty());
  ASSERT_TRUE(schedules.goes_on(ended(Status::PASS, 40)));
  EXPECT_THAT(schedules.current()->spec.switches, ElementsAre(at_step(2)));
  EXPECT_FALSE(schedules.goes_on(ended(Status::PASS, 40))) << "80 s since the failure";
  EXPECT_THAT(schedules.switches(), ElementsAre(at_step(1), at_step(2)));
  EXPECT_THAT(schedules.text(),
              HasSubstr("schedule random:9 (number 3, 2 switches) fails; after 2 runs it fails with 2:"));
  const verdict::CaseResult row = schedules.result();
  EXPECT_EQ(row.status, Status::FAIL);
  EXPECT_EQ(row.seconds, 50 + 50 + 50 + 40 + 40);
}

// A run that fails otherwise says nothing about the failure, like one that passes.
TEST(CaseSchedules, LeavesOutSwitchesWhileTheSameCheckFails) {
  const auto failed = [](const std::string& check) {
    verdict::CaseResult row = ended(Status::FAIL, 1);
    row.failure.emplace().check = check;
    return row;
  };
  ScheduleOptions options;
  options.request = launch::request_from_text("random:7");
  CaseSchedules schedules(options);
  record_two_switches(schedules);
  ASSERT_TRUE(schedules.goes_on(failed("expect_equal")));
  EXPECT_THAT(schedules.current()->spec.switches, IsEmpty());
  ASSERT_TRUE(schedules.goes_on(failed("expect")));
  EXPECT_THAT(schedules.current()->spec.switches, ElementsAre(at_step(2)));
  ASSERT_TRUE(schedules.goes_on(ended(Status::HANG, 1)));
  EXPECT_THAT(schedules.current()->spec.switches, ElementsAre(at_step(1)));
  EXPECT_FALSE(schedules.goes_on(failed("expect_equal")));
  EXPECT_THAT(schedules.switches(), ElementsAre(at_step(1)));
  EXPECT_THAT(schedules.text(), HasSubstr("after 3 runs it fails with 1: a #1 -> b"));
}

}  // namespace
}  // namespace lockstep::cli
