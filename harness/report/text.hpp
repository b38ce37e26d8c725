// Texts and files that several writers of this layer need.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "engine/core/printable.hpp"

namespace lockstep::report {

// Creates the parent folder of `path`. Throws Error, or ResourceError when the machine lacks space or files.
void make_parent_folder(const std::string& path);
// Writes a temporary file beside `path` and renames it, so that `path` never holds half of the content. Throws as
// make_parent_folder().
void write_whole_file(const std::string& path, std::string_view content);
// Creates the folder where it is missing and removes the files in it whose name `is_old` accepts. Throws Error, whose
// remedy names the option of the command line that gave the folder.
void clear_files(const std::string& folder, bool (*is_old)(const std::string& name), std::string_view option);
// The first key that an object of a JSON text has twice: parsers keep one of the two entries and say nothing. None for
// text that is not JSON.
std::optional<std::string> doubled_key(std::string_view json);
// "1 case", "2 cases".
std::string plural(std::int64_t count, std::string_view noun);
// A number of bytes for people: 1536 -> "1.5 KiB".
std::string bytes_text(double bytes);

}  // namespace lockstep::report
