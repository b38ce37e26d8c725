// The text of a step in its file, for reports of a failure.
#pragma once

#include <string>
#include <vector>

#include "harness/scenario/diagnostics.hpp"

namespace lockstep::scenario {

inline constexpr int max_source_lines = 12;

// The lines of the step that begins at `place`, without line ends: its first line and the following lines with more
// indentation, at most `max_source_lines`. `place.file` is a path below the folder `root`, or a file. Empty when the
// file cannot be read or has no such line.
std::vector<std::string> step_lines(const std::string& root, const Place& place);
// The same for the text of a file.
std::vector<std::string> step_lines_of(const std::string& text, int line);

}  // namespace lockstep::scenario
