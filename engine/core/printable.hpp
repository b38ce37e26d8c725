// Makes external text (names, values, messages, file contents) safe for a terminal, an HTML page or an XML file.
//
// Characters that control a terminal, hide text or change the reading direction are replaced by their code: \x1b for C0
// controls; \u009b for C1 controls, line separators and directional marks. Invalid UTF-8 bytes become U+FFFD.
//
//   std::cout << printable(message) << '\n';                      // a message may have several lines
//   std::cout << printable_line(case_id) << "  PASS\n";           // a name has one line
#pragma once

#include <string>
#include <string_view>

namespace lockstep {

// Replaces invalid UTF-8 bytes by U+FFFD and changes nothing else.
std::string valid_utf8(std::string_view text);
// Keeps newlines and tabs.
std::string printable(std::string_view text);
// Also replaces newlines by \n and tabs by \t, so that the text cannot imitate a separate line.
std::string printable_line(std::string_view text);
// For JSON: writes these characters as \uHHHH, which keeps the value. The result is one line for every reader (some end
// a line at U+2028 and U+0085).
std::string printable_json(std::string_view json);

}  // namespace lockstep
