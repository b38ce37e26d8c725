#include "engine/core/text.hpp"

#include <charconv>
#include <cstdint>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"

namespace lockstep {
namespace {

TEST(Text, JoinsPieces) {
  const std::string owned = "owned";
  EXPECT_EQ(str("size ", 3, " at dim ", -1, ' ', true, ' ', owned, std::string_view(" view")),
            "size 3 at dim -1 true owned view");
  EXPECT_EQ(str(), "");
  EXPECT_EQ(str(std::numeric_limits<std::uint64_t>::max(), " ", std::numeric_limits<std::int64_t>::min()),
            "18446744073709551615 -9223372036854775808");
  EXPECT_EQ(str(static_cast<std::int8_t>(-5), " ", static_cast<std::uint8_t>(200)), "-5 200");
}

TEST(Text, FloatingNumbersReadBack) {
  EXPECT_EQ(str(0.1), "0.1");
  EXPECT_EQ(str(0.1f), "0.1");
  EXPECT_EQ(str(1.0), "1");
  for (double value : {1.0 / 3, 1e300, 5e-324, -2.5e-7}) {
    const std::string text = str(value);
    double back = 0;
    std::from_chars(text.data(), text.data() + text.size(), back);
    EXPECT_EQ(back, value) << text;
  }
}

TEST(Error, CarriesMessageAndRemedy) {
  const Error error("matmul: inner sizes differ", "transpose one");
  EXPECT_EQ(error.message(), "matmul: inner sizes differ");
  EXPECT_EQ(error.remedy(), "transpose one");
  EXPECT_THAT(error.what(), testing::HasSubstr("matmul: inner sizes differ"));
  EXPECT_THAT(error.what(), testing::HasSubstr("transpose one"));
}

TEST(Error, ChecksDescribeTheirState) {
  const int num_ranks = 3;
  EXPECT_NO_THROW(LOCKSTEP_CHECK(num_ranks == 3, "ranks ", num_ranks));
  try {
    LOCKSTEP_CHECK(num_ranks == 2, "ranks ", num_ranks);
    FAIL() << "the check held";
  } catch (const InternalError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("num_ranks == 2"));
    EXPECT_THAT(error.what(), testing::HasSubstr("ranks 3"));
    EXPECT_THAT(error.what(), testing::HasSubstr("text_test.cpp"));
  }
}

TEST(Defects, AreNamedAndArmedOneAtATime) {
  EXPECT_EQ(armed_defect(), Defect::none);
  for (int i = 0; i < num_defects(); ++i) {
    const DefectInfo& info = defect_table()[i];
    EXPECT_EQ(static_cast<int>(info.defect), i + 1);
    EXPECT_EQ(defect_from_name(info.name), info.defect);
    EXPECT_FALSE(info.effect.empty());
    arm_defect(info.defect);
    EXPECT_TRUE(defect_armed(info.defect));
    EXPECT_FALSE(defect_armed(Defect::none));
  }
  arm_defect(Defect::none);
  EXPECT_EQ(armed_defect(), Defect::none);
  EXPECT_THROW(defect_from_name("no_such_defect"), Error);
}

TEST(Defects, KeepAccountOfQuestionsWhileOneIsArmed) {
  std::vector<unsigned char> asked(static_cast<std::size_t>(num_defects()));
  const auto of = [&](Defect defect) { return int{asked.at(static_cast<std::size_t>(defect) - 1)}; };
  keep_account_of_questions(asked.data());
  EXPECT_FALSE(defect_armed(Defect::sum_leaves_out_rank));
  EXPECT_EQ(of(Defect::sum_leaves_out_rank), 0);
  arm_defect(Defect::compare_always_equal);
  EXPECT_FALSE(defect_armed(Defect::sum_leaves_out_rank));
  EXPECT_TRUE(defect_armed(Defect::compare_always_equal));
  EXPECT_EQ(of(Defect::sum_leaves_out_rank), 1);
  EXPECT_EQ(of(Defect::compare_always_equal), 1);
  EXPECT_EQ(of(Defect::compare_ignores_last), 0);
  keep_account_of_questions(nullptr);
  EXPECT_FALSE(defect_armed(Defect::compare_ignores_last));
  EXPECT_EQ(of(Defect::compare_ignores_last), 0);
  arm_defect(Defect::none);
}

}  // namespace
}  // namespace lockstep
