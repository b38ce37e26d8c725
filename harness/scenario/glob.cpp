#include "harness/scenario/arithmetic.hpp"
#include "harness/scenario/characters.hpp"

namespace lockstep::scenario {

namespace {

// The length of the bracket expression `[...]` at `at` if it matches `c`, 0 if it does not. A `[` without a closing `]`
// is an ordinary character.
std::size_t match_bracket(std::string_view pattern, std::size_t at, char c) {
  std::size_t end = at + 1;
  const bool inverted = end < pattern.size() && pattern[end] == '!';
  if (inverted) ++end;
  bool found = false;
  const std::size_t first = end;
  for (; end < pattern.size() && (pattern[end] != ']' || end == first); ++end) {
    if (end + 2 < pattern.size() && pattern[end + 1] == '-' && pattern[end + 2] != ']') {
      found = found || (pattern[end] <= c && c <= pattern[end + 2]);
      end += 2;
    } else {
      found = found || pattern[end] == c;
    }
  }
  if (end >= pattern.size()) return pattern[at] == c ? 1 : 0;
  return found != inverted ? end + 1 - at : 0;
}

// The length of the pattern element at `at` if it matches `c`, 0 if it does not.
std::size_t match_element(std::string_view pattern, std::size_t at, char c) {
  if (pattern[at] == '?') return 1;
  if (pattern[at] == '[') return match_bracket(pattern, at, c);
  return pattern[at] == c ? 1 : 0;
}

}  // namespace

bool glob_matches(std::string_view pattern, std::string_view text) {
  std::size_t p = 0;
  std::size_t t = 0;
  std::size_t star = std::string_view::npos;  // the position after the last star
  std::size_t star_text = 0;                  // the position in the text up to which that star matches
  while (t < text.size()) {
    const std::size_t length = p < pattern.size() && pattern[p] != '*' ? match_element(pattern, p, text[t]) : 0;
    if (length > 0) {
      const bool any = pattern[p] == '?';
      p += length;
      ++t;
      while (any && t < text.size() && continues_character(text[t])) ++t;
    } else if (p < pattern.size() && pattern[p] == '*') {
      star = ++p;
      star_text = t;
    } else if (star != std::string_view::npos) {
      p = star;
      t = ++star_text;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

}  // namespace lockstep::scenario
