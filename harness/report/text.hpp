// Texts and files that the writers of this layer share.
#pragma once

#include <string>
#include <string_view>

#include "engine/core/printable.hpp"

namespace lockstep::report {

// Makes the folder that `path` lies in; throws Error, ResourceError for a full disk and its like.
void make_parent_folder(const std::string& path);
// Writes beside `path` and renames; throws as make_parent_folder().
void write_whole_file(const std::string& path, std::string_view content);
// "1,234 bytes" style is for people: 1536 -> "1.5 KiB".
std::string bytes_text(double bytes);

}  // namespace lockstep::report
