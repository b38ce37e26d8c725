#include "engine/core/json_text.hpp"

#include <cmath>
#include <limits>
#include <string_view>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(JsonText, EscapesSpecialCharacters) {
  EXPECT_EQ(json_text("a\"b\\c\n\r\t"), "\"a\\\"b\\\\c\\n\\r\\t\"");
  EXPECT_EQ(json_text(std::string_view("\0\x1f\x7f", 3)), "\"\\u0000\\u001f\\u007f\"");
}

TEST(JsonText, KeepsNumbersFloatingAndExact) {
  EXPECT_EQ(json_number(1.0), "1.0");
  EXPECT_EQ(json_number(-0.0), "-0.0");
  EXPECT_EQ(json_number(0.1), "0.1");
  EXPECT_EQ(json_number(1e300), "1e+300");
}

TEST(JsonText, WritesNaNAndInfinitiesAsStrings) {
  EXPECT_EQ(json_number(std::nan("")), "\"nan\"");
  EXPECT_EQ(json_number(-std::numeric_limits<double>::infinity()), "\"-inf\"");
}

}  // namespace
}  // namespace lockstep
