#include "engine/core/printable.hpp"

#include <cstdint>

#include "engine/core/text.hpp"

namespace lockstep {

namespace {

constexpr std::string_view replacement = "\xef\xbf\xbd";

// The length of the UTF-8 character that begins at `at`; 0 for an invalid one, including overlong forms and surrogates.
std::size_t character_length(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(at);
  if (first < 0x80) return 1;
  std::size_t length = 0;
  unsigned char min_second = 0x80, max_second = 0xbf;
  if (first >= 0xc2 && first <= 0xdf) {
    length = 2;
  } else if (first >= 0xe0 && first <= 0xef) {
    length = 3;
    if (first == 0xe0) min_second = 0xa0;
    if (first == 0xed) max_second = 0x9f;
  } else if (first >= 0xf0 && first <= 0xf4) {
    length = 4;
    if (first == 0xf0) min_second = 0x90;
    if (first == 0xf4) max_second = 0x8f;
  } else {
    return 0;
  }
  if (at + length > text.size()) return 0;
  if (byte(at + 1) < min_second || byte(at + 1) > max_second) return 0;
  for (std::size_t i = 2; i < length; ++i) {
    if (byte(at + i) < 0x80 || byte(at + i) > 0xbf) return 0;
  }
  return length;
}

std::uint32_t code_point(std::string_view character) {
  const auto first = static_cast<unsigned char>(character[0]);
  if (character.size() == 1) return first;
  std::uint32_t code = first & (0xffu >> (character.size() + 1));
  for (std::size_t i = 1; i < character.size(); ++i)
    code = code << 6 | (static_cast<unsigned char>(character[i]) & 0x3fu);
  return code;
}

bool is_control_or_directional(std::uint32_t code) {
  return code < 0x20 || (code >= 0x7f && code < 0xa0)          // C0, delete, C1
         || code == 0x61c || code == 0x200e || code == 0x200f  // directional marks
         || code == 0x2028 || code == 0x2029                   // line and paragraph separators
         || (code >= 0x202a && code <= 0x202e) ||
         (code >= 0x2066 && code <= 0x2069);  // directional embeddings and overrides
}

enum class Form { lines, line, json };

std::string escaped(std::uint32_t code, Form form) {
  static constexpr char hex[] = "0123456789abcdef";
  const auto digit = [&](int place) { return hex[(code >> (4 * place)) & 0xf]; };
  if (code < 0x80 && form != Form::json) return str("\\x", digit(1), digit(0));
  return str("\\u", digit(3), digit(2), digit(1), digit(0));
}

std::string make_printable(std::string_view text, Form form) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = character_length(text, at);
    if (length == 0) {
      out += replacement;
      ++at;
      continue;
    }
    const std::string_view character = text.substr(at, length);
    at += length;
    const std::uint32_t code = code_point(character);
    if (code == '\n' || code == '\t') {
      out += form != Form::line ? character : code == '\n' ? "\\n" : "\\t";
    } else if (is_control_or_directional(code)) {
      out += escaped(code, form);
    } else {
      out += character;
    }
  }
  return out;
}

}  // namespace

std::string valid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = character_length(text, at);
    out += length == 0 ? replacement : text.substr(at, length);
    at += length == 0 ? 1 : length;
  }
  return out;
}

std::string printable(std::string_view text) { return make_printable(text, Form::lines); }
std::string printable_line(std::string_view text) { return make_printable(text, Form::line); }
std::string printable_json(std::string_view json) { return make_printable(json, Form::json); }

}  // namespace lockstep
