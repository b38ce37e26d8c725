#include "harness/scenario/yaml_checks.hpp"

#include <algorithm>
#include <string_view>

#include "engine/core/text.hpp"
#include "harness/scenario/vocabulary.hpp"

namespace lockstep::scenario {

namespace {

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
  }
  return out;
}

}  // namespace

std::string refused_scalar(const std::string& text) {
  const std::string word = lower(text);
  for (std::string_view refused : {"yes", "no", "on", "off", "null", "~"}) {
    if (word == refused) {
      const bool none = refused == "null" || refused == "~";
      return str("the plain word `", text, "` is refused, because YAML 1.1 gives it another meaning; write ",
                 none                            ? "`none`, "
                 : word == "no" || word == "off" ? "`false`, "
                                                 : "`true`, ",
                 "or quote it");
    }
  }
  if ((word == "true" || word == "false") && word != text) {
    return str("the plain word `", text, "` is refused; write `", word, "`, or quote it");
  }
  std::size_t i = !text.empty() && (text[0] == '-' || text[0] == '+') ? 1 : 0;
  if (i + 1 < text.size() && text[i] == '0' && text[i + 1] >= '0' && text[i + 1] <= '9' &&
      text.find_first_not_of("0123456789._eE+-", i) == std::string::npos) {
    return str("leading zeros are refused: `", text, "`, which YAML 1.1 reads as octal; quote it if it is a text");
  }
  return {};
}

bool is_null_word(const std::string& word) { return word == "~" || lower(word) == "null"; }

bool is_quote_closed(const std::string& text, std::size_t at) {
  if (at >= text.size() || (text[at] != '"' && text[at] != '\'')) return true;
  const char quote = text[at];
  for (++at; at < text.size(); ++at) {
    if (quote == '"' && text[at] == '\\') {
      ++at;
    } else if (text[at] == quote) {
      if (quote == '"' || at + 1 >= text.size() || text[at + 1] != quote) return true;
      ++at;
    }
  }
  return false;
}

std::optional<std::pair<std::size_t, std::string>> find_bad_byte(const std::string& text) {
  static constexpr char hex[] = "0123456789abcdef";
  for (std::size_t i = 0; i < text.size();) {
    const unsigned char c = static_cast<unsigned char>(text[i]);
    if (c == 0) return std::pair(i, std::string("a NUL byte: this is not a text file"));
    if ((c < 0x20 && c != '\t' && c != '\n' && c != '\r') || c == 0x7f) {
      return std::pair(i, str("a control character (0x", hex[c >> 4], hex[c & 0xf], ")"));
    }
    std::size_t following = 0;
    if (c >= 0xc2 && c < 0xe0) {
      following = 1;
    } else if (c >= 0xe0 && c < 0xf0) {
      following = 2;
    } else if (c >= 0xf0 && c < 0xf5) {
      following = 3;
    } else if (c >= 0x80) {
      return std::pair(i, std::string("not UTF-8"));
    }
    for (std::size_t k = 1; k <= following; ++k) {
      if (i + k >= text.size() || (static_cast<unsigned char>(text[i + k]) & 0xc0) != 0x80) {
        return std::pair(i, std::string("not UTF-8"));
      }
    }
    i += following + 1;
  }
  return std::nullopt;
}

std::optional<std::size_t> find_excess_bracket(const std::string& text) {
  constexpr int bound = 4 * limits::yaml_depth;
  int depth = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '[' || text[i] == '{') {
      if (++depth > bound) return i;
    } else if (text[i] == ']' || text[i] == '}') {
      depth = std::max(0, depth - 1);
    } else if (text[i] == '\n') {
      // A line without indentation starts again at 0, so that brackets within quotes do not add up. The tree builder
      // checks the exact nesting.
      if (i + 1 < text.size() && text[i + 1] != ' ') depth = 0;
    }
  }
  return std::nullopt;
}

}  // namespace lockstep::scenario
