#include "harness/verdict/results.hpp"

#include <cmath>
#include <initializer_list>

#include <gtest/gtest.h>

#include "engine/core/error.hpp"

namespace lockstep::verdict {
namespace {

std::vector<CaseResult> with(std::initializer_list<Status> statuses) {
  std::vector<CaseResult> results;
  for (Status status : statuses) results.emplace_back().status = status;
  return results;
}

TEST(Status, NamesReadBack) {
  for (int i = 0; i < num_statuses; ++i) {
    const auto status = static_cast<Status>(i);
    EXPECT_EQ(status_from_name(name_of(status)), status);
  }
  EXPECT_EQ(name_of(Status::PASS), "PASS");
  EXPECT_EQ(name_of(Status::MISSING), "MISSING");
  EXPECT_THROW(status_from_name("pass"), Error);
}

TEST(Status, KnowsTheUnexpectedOnes) {
  for (Status status : {Status::FAIL, Status::XPASS, Status::HANG, Status::CRASH, Status::INVALID, Status::MISSING}) {
    EXPECT_TRUE(is_unexpected(status)) << name_of(status);
  }
  for (Status status : {Status::PASS, Status::XFAIL, Status::SKIP, Status::UNSUPPORTED}) {
    EXPECT_FALSE(is_unexpected(status)) << name_of(status);
  }
}

TEST(ExitCode, FollowsTheVerdicts) {
  EXPECT_EQ(exit_code_of({}), 4);
  EXPECT_EQ(exit_code_of(with({Status::PASS, Status::SKIP})), 0);
  EXPECT_EQ(exit_code_of(with({Status::PASS, Status::XFAIL, Status::SKIP, Status::UNSUPPORTED})), 0);
  EXPECT_EQ(exit_code_of(with({Status::XFAIL})), 0);
  EXPECT_EQ(exit_code_of(with({Status::PASS, Status::FAIL})), 1);
  EXPECT_EQ(exit_code_of(with({Status::UNSUPPORTED, Status::INVALID})), 1);
  EXPECT_EQ(exit_code_of(with({Status::PASS, Status::MISSING})), 1);
  EXPECT_EQ(exit_code_of(with({Status::SKIP, Status::SKIP})), 4);
  EXPECT_EQ(exit_code_of(with({Status::UNSUPPORTED})), 77);
  EXPECT_EQ(exit_code_of(with({Status::UNSUPPORTED, Status::SKIP})), 77);
  EXPECT_EQ(exit_code_of(with({Status::SKIP, Status::UNSUPPORTED})), 77);
}

TEST(ExitCode, IsThatOfAnyRepetitionOfACase) {
  for (const Status first : {Status::FAIL, Status::PASS}) {
    std::vector<CaseResult> rows = with({Status::PASS, first, first == Status::PASS ? Status::FAIL : Status::PASS});
    for (CaseResult& row : rows) {
      row.scenario = "t/one";
      row.case_id = "world_size=1";
    }
    rows.front().case_id = "world_size=2";
    EXPECT_EQ(exit_code_of(rows), 1) << name_of(first);
  }
}

TEST(Evidence, AddsUpAndKeepsTheLoosest) {
  Evidence a{2, 1, 30, 1, 1, 0.5, {1e-6, 1e-3, 0}, 4, 1, 0, 20, 3};
  const Evidence b{1, 0, 10, 0, 0, 0.25, {1e-5, 1e-4, 1e-2}, 1, 2, 3, 22, 4};
  a.bits_relaxed = 2;
  a.add(b);
  EXPECT_EQ(a.bits_relaxed, 2);
  EXPECT_EQ(a.comparisons, 3);
  EXPECT_EQ(a.trivial, 1);
  EXPECT_EQ(a.elements, 40);
  EXPECT_EQ(a.same_bits, 1);
  EXPECT_EQ(a.bits_required, 1);
  EXPECT_EQ(a.max_abs_difference, 0.5);
  EXPECT_EQ(a.loosest.rtol, 1e-5);
  EXPECT_EQ(a.loosest.atol, 1e-3);
  EXPECT_EQ(a.loosest.of_largest, 1e-2);
  EXPECT_EQ(a.collectives_checked, 5);
  EXPECT_EQ(a.orders_checked, 3);
  EXPECT_EQ(a.errors_expected, 3);
  EXPECT_EQ(a.planned_in_order, 42);
  EXPECT_EQ(a.conditions, 7);
}

TEST(Evidence, CountsConditionsAmongComparisonsForAnOlderFile) {
  Evidence evidence{2, 1, 30, 1, 1, 0.5, {}, 4, 1, 0, 20, 3};
  const Evidence older = evidence.with_conditions_among_comparisons();
  EXPECT_EQ(older.comparisons, 5);
  EXPECT_EQ(older.elements, 33);
  EXPECT_EQ(older.same_bits, 4);
  EXPECT_EQ(older.conditions, 0);
  EXPECT_FALSE(older.conditions_apart);
  EXPECT_TRUE(evidence.conditions_apart);
}

TEST(Evidence, KeepsADifferenceThatIsNotANumber) {
  Evidence a, b;
  b.max_abs_difference = std::nan("");
  a.add(b);
  EXPECT_TRUE(std::isnan(a.max_abs_difference));
  a.add(Evidence{});
  EXPECT_TRUE(std::isnan(a.max_abs_difference));
}

TEST(Evidence, DoesNotCountTrivialChecks) {
  Evidence evidence;
  EXPECT_FALSE(evidence.any());
  evidence.trivial = 5;
  evidence.elements = 9;
  evidence.planned_in_order = 7;  // of the plan
  EXPECT_FALSE(evidence.any());
  evidence.orders_checked = 1;
  EXPECT_TRUE(evidence.any());
  evidence.orders_checked = 0;
  evidence.conditions = 1;
  EXPECT_TRUE(evidence.any());
}

}  // namespace
}  // namespace lockstep::verdict
