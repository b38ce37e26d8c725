#include "harness/cli/defect_questions.hpp"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/cli/test_support.hpp"

namespace lockstep::cli {
namespace {

using scenario::Case;
using testing::ElementsAre;
using testing_support::of_scenario;

constexpr Defect armed = Defect::compare_always_equal, wanted = Defect::sum_leaves_out_rank;

class Questions : public testing::Test {
 protected:
  void SetUp() override { arm_defect(armed); }
  void TearDown() override { arm_defect(Defect::none); }

  // The case asks about these defects, and ends so.
  void run(const Case& one, const std::vector<Defect>& asked, verdict::Status status = verdict::Status::PASS) {
    questions_.begin(one);
    for (Defect defect : asked) static_cast<void>(defect_armed(defect));
    verdict::CaseResult row;
    row.status = status;
    questions_.end(one, row, armed);
  }
  std::vector<std::string> order() const {
    std::vector<std::string> names;
    for (const Case& one : questions_.unreaching_last(cases_, wanted)) names.push_back(one.scenario->name + one.id);
    return names;
  }

  std::vector<Case> cases_ = {of_scenario("a", "1"), of_scenario("a", "2"), of_scenario("b", "1"),
                              of_scenario("b", "2"), of_scenario("c", "1"), of_scenario("c", "2")};
  DefectQuestions questions_{cases_};
};

TEST_F(Questions, AreUnknownAtFirst) {
  EXPECT_THAT(order(), ElementsAre("a1", "a2", "b1", "b2", "c1", "c2"));
  EXPECT_FALSE(questions_.reaches(cases_[0], wanted));
  EXPECT_EQ(questions_.num_reaching(wanted), 0);
}

TEST_F(Questions, OrderTheCases) {
  run(cases_[0], {});        // a1 does not reach it
  run(cases_[5], {wanted});  // c2 does
  EXPECT_TRUE(questions_.reaches(cases_[5], wanted));
  EXPECT_EQ(questions_.num_reaching(wanted), 1);
  EXPECT_THAT(order(), ElementsAre("c2", "a2", "b1", "b2", "c1", "a1"));
}

TEST_F(Questions, AreNotAllKnownAfterARunThatTheDefectChanged) {
  run(cases_[0], {armed});
  run(cases_[2], {}, verdict::Status::CRASH);
  EXPECT_THAT(order(), ElementsAre("a1", "a2", "b1", "b2", "c1", "c2"));
}

TEST_F(Questions, OfTheLauncherAreThoseOfEveryCase) {
  static_cast<void>(defect_armed(wanted));
  EXPECT_TRUE(questions_.reaches(cases_[3], wanted));
  EXPECT_EQ(questions_.num_reaching(wanted), 6);
  EXPECT_THAT(order(), ElementsAre("a1", "a2", "b1", "b2", "c1", "c2"));
}

}  // namespace
}  // namespace lockstep::cli
