// Texts and files that the writers of this layer share.
#pragma once

#include <string>
#include <string_view>

namespace lockstep::report {

// The text itself, or with U+FFFD where it is no UTF-8.
std::string valid_utf8(std::string_view text);
// "1b"
std::string hex_byte(unsigned char byte);
// Makes the folder that `path` lies in; throws Error.
void make_parent_folder(const std::string& path);
// Writes beside `path` and renames; throws Error.
void write_whole_file(const std::string& path, std::string_view content);
// "1,234 bytes" style is for people: 1536 -> "1.5 KiB".
std::string bytes_text(double bytes);
// Control characters (but newline and tab) as \xHH, so that no message steers the terminal.
std::string printable(std::string_view text);

}  // namespace lockstep::report
