#include "harness/verdict/difference_text.hpp"

#include <cmath>
#include <cstdlib>
#include <vector>

#include <gtest/gtest.h>

#include "harness/verdict/compare_test_support.hpp"

namespace lockstep::verdict {
namespace {

using namespace testing_support;

TEST(DifferenceText, NamesNumberFirstAndWorst) {
  const std::vector<float> actual{1, 2, 3.5f, 4, 7, 6};
  const std::vector<float> expected{1, 2, 3, 4, 5, 6};
  const Comparison c = compare(operand(actual, {2, 3}), operand(expected, {2, 3}),
                               CompareOptions{tolerance_of(DType::float32), 0, 0, false});
  EXPECT_FALSE(c.equal);
  EXPECT_EQ(c.num_off, 2);
  EXPECT_EQ(c.max_abs_difference, 2.0);
  EXPECT_EQ(c.message,
            "2 of 6 elements (33.3 %) are beyond rtol 1.3e-06, atol 1e-05\n"
            "  first at (0, 2): actual 3.5, expected 3, difference 0.5 absolute, 0.1667 relative, 2097152 units in the "
            "last place\n"
            "  worst at (1, 1): actual 7, expected 5, difference 2 absolute, 0.4 relative, 4194304 units in the last "
            "place");
}

TEST(DifferenceText, NamesOneValueAndOneUnit) {
  const std::vector<double> actual{1.0};
  const std::vector<double> expected{std::nextafter(1.0, 2.0)};
  const Comparison c = compare(operand(actual, {}), operand(expected, {}), CompareOptions{{0, 0}, 0, 0, false});
  EXPECT_EQ(
      c.message,
      "1 of 1 element (100 %) is beyond rtol 0, atol 0\n"
      "  value: actual 1, expected 1.0000000000000002, difference 2.22045e-16 absolute, 2.22e-16 relative, 1 unit "
      "in the last place");
}

TEST(DifferenceText, NamesNotANumberAndOfLargest) {
  const Comparison c =
      compare_lists<float>({nan32, 1.0f, 9.0f}, {0.0f, 1.0f, 1.0f}, CompareOptions{{0, 1e-5}, 0.5, 2.0, false});
  EXPECT_EQ(c.message,
            "2 of 3 elements (66.7 %) are beyond rtol 0, atol 1e-05, of_largest 0.5 of 2 = 1; 1 has a not-a-number, "
            "which equals nothing\n"
            "  first and worst at (0,): actual nan, expected 0");
}

TEST(DifferenceText, PrintsValuesThatReadBack) {
  const float third = 1.0f / 3.0f;
  const float next = std::nextafter(third, 1.0f);
  const Comparison c = compare_lists<float>({third}, {next}, same_bits());
  const std::size_t at = c.message.find("actual ");
  ASSERT_NE(at, std::string::npos);
  EXPECT_EQ(std::strtof(c.message.c_str() + at + 7, nullptr), third);
  EXPECT_EQ(std::strtof(c.message.c_str() + c.message.find("expected ") + 9, nullptr), next);
}

}  // namespace
}  // namespace lockstep::verdict
