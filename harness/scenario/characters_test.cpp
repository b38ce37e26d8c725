#include "harness/scenario/characters.hpp"

#include <gtest/gtest.h>

namespace lockstep::scenario {
namespace {

TEST(Characters, HaveOneToFourBytes) {
  const std::string_view text = "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x8e\x82z";
  EXPECT_EQ(num_characters(""), 0);
  EXPECT_EQ(num_characters(text), 5);
  EXPECT_EQ(characters(text, 1, 2), "\xc3\xa9");
  EXPECT_EQ(characters(text, 2, 4), "\xe2\x82\xac\xf0\x9f\x8e\x82");
  EXPECT_EQ(characters(text, 4, 5), "z");
  EXPECT_EQ(characters(text, 0, 5), text);
  EXPECT_EQ(characters(text, 5, 5), "");
  EXPECT_EQ(characters(text, 3, 3), "");
}

TEST(Characters, KeepEveryByteOfAWrongText) {
  const std::string_view text = "\x80\x80\xc3z";
  EXPECT_EQ(num_characters(text), 3);
  EXPECT_EQ(characters(text, 0, 1), "\x80\x80");
  EXPECT_EQ(characters(text, 1, 3), "\xc3z");
}

}  // namespace
}  // namespace lockstep::scenario
