// The text of a step as it stands in its file, for reports of a failure.
#pragma once

#include <string>
#include <vector>

#include "harness/scenario/diagnostics.hpp"

namespace lockstep::scenario {

inline constexpr int max_source_lines = 12;

// The lines of the step that begins at `place`, without their ends: its first line and those that are indented further,
// at most `max_source_lines`. `place.file` is a file, or a path below the folder `root`. Empty where the file cannot be
// read or has no such line.
std::vector<std::string> step_lines(const std::string& root, const Place& place);
// The same of a file's text.
std::vector<std::string> step_lines_of(const std::string& text, int line);

}  // namespace lockstep::scenario
