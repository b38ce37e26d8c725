#include "harness/scenario/selection.hpp"

#include <algorithm>

#include "engine/core/text.hpp"

namespace lockstep::scenario {

std::string id_text(const Literal& value) {
  if (const Literal* label = value.find("label")) return label->text();
  if (!value.is_text()) return value.text();
  bool plain = !value.as_text().empty();
  try {
    plain = plain && literal_of_scalar(value.as_text()).is_text();
  } catch (const Error&) {
    plain = false;
  }
  return plain ? value.as_text() : str("'", value.as_text(), "'");
}

Selection parse_selection(const std::string& text) {
  Selection out;
  int depth = 0;
  std::size_t start = 0;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size() && (text[i] == '[' || text[i] == '{')) ++depth;
    if (i < text.size() && (text[i] == ']' || text[i] == '}')) --depth;
    if (i < text.size() && (text[i] != ',' || depth > 0)) continue;
    const std::string item = text.substr(start, i - start);
    start = i + 1;
    if (item.empty()) continue;
    const std::size_t equals = item.find('=');
    if (equals == std::string::npos && !out.empty()) {  // of a value that contains a comma, such as StridedShard(0, 2)
      out.back().second += str(",", item);
      continue;
    }
    if (equals == std::string::npos || equals == 0) {
      throw Error(str("--case: `", item, "` is not of the form key=value"), "such as --case 'layers=3,world_size=2'");
    }
    out.emplace_back(item.substr(0, equals), item.substr(equals + 1));
  }
  return out;
}

std::vector<std::string> selectable_names(const Scenario& scenario) {
  std::vector<std::string> names;
  for (const MatrixName& name : scenario.matrix) names.push_back(name.name);
  names.insert(names.end(), {"world_size", "launch", "device"});
  return names;
}

std::pair<std::string, std::string> split_setting(const std::string& text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0)
    throw Error(str("--set: `", text, "` is not of the form NAME=VALUE"), "such as --set seed=7");
  return {text.substr(0, equals), text.substr(equals + 1)};
}

Literal parse_setting(const std::string& name, const std::string& text, const Literal& old) {
  const auto refuse = [&](std::string_view wanted) {
    throw Error(str("--set ", name, "=", text, ": `", name, "` is ", wanted, ", ", old.shown(), " in the file"));
  };
  if (old.is_text()) return Literal(text);
  if (old.is_list() || old.is_map() || old.is_none()) {
    Literal value = parse_literal(text);
    if (old.is_list() && !value.is_list()) refuse("a list");
    if (old.is_map() && !value.is_map()) refuse("a map");
    return value;
  }
  Literal value = literal_of_scalar(text);
  if (old.is_bool() && !value.is_bool()) refuse("true or false");
  if (old.is_int() && !value.is_int()) refuse("an integer");
  if (old.is_double()) {
    if (!value.is_number()) refuse("a number");
    value = Literal(value.as_double());
  }
  return value;
}

std::string joined(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += str(out.empty() ? "" : ", ", word);
  return out;
}

bool contains(const std::vector<std::string>& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

}  // namespace lockstep::scenario
