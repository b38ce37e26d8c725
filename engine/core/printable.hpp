// Text from outside (names, values, messages, file contents) made fit for a terminal, a page or an XML file.
//
// A character that steers a terminal, hides text or changes the direction of reading becomes its code: \x1b for C0
// controls, \u009b for C1 controls, line separators and marks of direction. Bytes that are no UTF-8 become U+FFFD.
//
//   std::cout << printable(message) << '\n';                      // a message may have several lines
//   std::cout << printable_line(case_id) << "  PASS\n";           // a name has one
#pragma once

#include <string>
#include <string_view>

namespace lockstep {

// The text itself, or with U+FFFD where it is no UTF-8.
std::string valid_utf8(std::string_view text);
// Keeps newlines and tabs.
std::string printable(std::string_view text);
// A newline becomes \n and a tab \t, so that the text cannot pass for a line of its own.
std::string printable_line(std::string_view text);
// A JSON text with such characters in it as \uHHHH: the same value, on one line for every reader (to some, U+2028 and
// U+0085 end a line).
std::string printable_json(std::string_view json);

}  // namespace lockstep
