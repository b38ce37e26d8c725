// The texts of the options --case and --set, and the names of a case. Internal to this layer.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "harness/scenario/document.hpp"

namespace lockstep::scenario {

// The pairs of --case: a matrix name, or world_size, launch or device; and the wanted value as in a case's id.
using Selection = std::vector<std::pair<std::string, std::string>>;

// Parses "key=value,key=[a,b]"; commas within brackets belong to the value. Throws Error for an item without `=`.
Selection parse_selection(const std::string& text);

// The names that --case can select by: matrix names, world_size, launch, device.
std::vector<std::string> selectable_names(const Scenario& scenario);

// The text of a value in a case's id. A text that would read as another kind keeps its quotes, so that ids differ.
std::string id_text(const Literal& value);

// Splits "NAME=VALUE" of --set. Throws Error when it has another form.
std::pair<std::string, std::string> split_setting(const std::string& text);

// Parses the value that --set gives the parameter `name`, whose value in the file is `old`. Throws Error when the text
// is a value of another kind.
Literal parse_setting(const std::string& name, const std::string& text, const Literal& old);

std::string joined(const std::vector<std::string>& words);  // "a, b, c"
bool contains(const std::vector<std::string>& words, const std::string& word);

}  // namespace lockstep::scenario
