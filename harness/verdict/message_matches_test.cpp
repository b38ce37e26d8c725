#include <gtest/gtest.h>

#include "engine/core/error.hpp"
#include "harness/verdict/compare.hpp"

namespace lockstep::verdict {
namespace {

TEST(MessageMatches, FindsThePatternAtAnyPlace) {
  EXPECT_TRUE(message_matches("replicate: sizes differ (2, 3)", "sizes differ"));
  EXPECT_TRUE(message_matches("replicate: sizes differ (2, 3)", "replicate*differ*3)"));
  EXPECT_TRUE(message_matches("abab", "ab*ab"));
  EXPECT_TRUE(message_matches("line one\nline two", "one*two"));
  EXPECT_TRUE(message_matches("abc", "*b*"));
  EXPECT_FALSE(message_matches("aba", "ab*ab"));
  EXPECT_FALSE(message_matches("differ sizes", "sizes*differ"));
  EXPECT_FALSE(message_matches("Sizes", "sizes"));
  EXPECT_FALSE(message_matches("", "x"));
}

TEST(MessageMatches, RefusesPatternsThatMatchTheEmptyText) {
  EXPECT_THROW(message_matches("text", ""), Error);
  EXPECT_THROW(message_matches("text", "*"), Error);
  EXPECT_THROW(message_matches("text", "***"), Error);
}

}  // namespace
}  // namespace lockstep::verdict
