#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "engine/core/error.hpp"
#include "harness/fuzz/render_internal.hpp"

namespace lockstep::fuzz {

namespace {

constexpr std::size_t columns = 116;

bool is_plain(const std::string& text) {
  static const char* reserved[] = {"true", "false", "yes", "no", "on", "off", "null", "none"};
  char* end = nullptr;
  if (!text.empty() && std::isdigit(static_cast<unsigned char>(text[0])) && std::strtod(text.c_str(), &end) >= 0.0 &&
      *end == '\0')
    return text == "0" || text[0] != '0' || text[1] == '.';
  if (text.empty() || !(std::isalpha(static_cast<unsigned char>(text[0])) || text[0] == '_')) return false;
  if (std::find(std::begin(reserved), std::end(reserved), text) != std::end(reserved)) return text == "none";
  if (text.back() == ' ') return false;
  return std::all_of(text.begin(), text.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) ||
           std::string_view("_. ()*+-/").find(c) != std::string_view::npos;
  });
}

std::string quoted(const std::string& text) {
  std::string result(1, '"');
  for (char c : text) {
    if (c == '"' || c == '\\') result.push_back('\\');
    result.push_back(c);
  }
  return result + "\"";
}

std::string scalar(const Json& value) {
  if (!value.is_string()) return value.dump();
  const std::string text = value.get<std::string>();
  return is_plain(text) ? text : quoted(text);
}

std::string flow(const Json& value) {
  std::string text;
  if (value.is_object()) {
    for (const auto& [key, item] : value.items()) text += (text.empty() ? "" : ", ") + key + ": " + flow(item);
    return "{" + text + "}";
  }
  if (value.is_array()) {
    for (const Json& item : value) text += (text.empty() ? "" : ", ") + flow(item);
    return "[" + text + "]";
  }
  return scalar(value);
}

void write_map(const Json& map, const std::string& indent, bool continues_line, std::string& out);

void write_entry(const std::string& key, const Json& value, const std::string& indent, std::string& out) {
  const bool has_steps = key == "steps" || key == "models" || (value.is_object() && value.contains("children"));
  const std::string line = str(key, ": ", flow(value));
  if (!has_steps && (!value.is_structured() || value.empty() || indent.size() + line.size() <= columns)) {
    out += line + "\n";
    return;
  }
  out += key + ":\n";
  if (value.is_object()) {
    out += indent + "  ";
    write_map(value, indent + "  ", true, out);
    return;
  }
  for (const Json& item : value) {
    out += indent + "  - ";
    if (item.is_object())
      write_map(item, indent + "    ", true, out);
    else
      out += flow(item) + "\n";
  }
}

void write_map(const Json& map, const std::string& indent, bool continues_line, std::string& out) {
  bool is_first = continues_line;
  for (const auto& [key, value] : map.items()) {
    if (!is_first) out += indent;
    is_first = false;
    write_entry(key, value, indent, out);
  }
}

}  // namespace

std::string yaml_text(const Json& document) {
  std::string out;
  write_map(document, "", true, out);
  return out;
}

}  // namespace lockstep::fuzz
