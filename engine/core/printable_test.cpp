#include "engine/core/printable.hpp"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(Printable, ShowsTheCodesOfControlCharacters) {
  EXPECT_EQ(printable("\x1b[31mred\x07\r\x7f"), "\\x1b[31mred\\x07\\x0d\\x7f");
  EXPECT_EQ(printable(std::string_view("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(printable("\xc2\x9b"
                      "31m \xc2\x80 \xc2\x9f"),
            "\\u009b31m \\u0080 \\u009f");
  EXPECT_EQ(printable("\xe2\x80\xae"
                      "abc\xe2\x80\xac \xe2\x81\xa6\xe2\x81\xa9 \xe2\x80\x8f \xd8\x9c"),
            "\\u202eabc\\u202c \\u2066\\u2069 \\u200f \\u061c");
  EXPECT_EQ(printable("one\xe2\x80\xa8two\xe2\x80\xa9three"), "one\\u2028two\\u2029three");
}

TEST(Printable, KeepsOtherText) {
  const std::string text =
      "gr\xc3\xbc\xc3\x9f \xc2\xa0 \xe2\x82\xac \xf0\x9f\x98\x80";  // U+00A0 follows the last C1 control
  EXPECT_EQ(printable(text), text);
  EXPECT_EQ(printable_line(text), text);
  EXPECT_EQ(printable("a\xff"
                      "b"),
            "a\xef\xbf\xbd"
            "b");
}

TEST(Printable, KeepsANameOnOneLine) {
  EXPECT_EQ(printable("a\n\tb"), "a\n\tb");
  EXPECT_EQ(printable_line("a\n\tb"), "a\\n\\tb");
}

TEST(Printable, KeepsTheValueOfJson) {
  EXPECT_EQ(printable_json("{\"a\": \"\xc2\x85\x7f\xe2\x80\xa8\xc3\xbc\"}\n"),
            "{\"a\": \"\\u0085\\u007f\\u2028\xc3\xbc\"}\n");
}

}  // namespace
}  // namespace lockstep
