// Building short texts (messages, names) from values without pulling in a stream header.
//
//   str("size ", 3, " at dim ", dim)  ->  "size 3 at dim 1"
#pragma once

#include <charconv>
#include <concepts>
#include <string>
#include <string_view>
#include <type_traits>

namespace lockstep {

namespace text_detail {

template <class T>
concept Number = std::is_arithmetic_v<T> && !std::same_as<T, bool> && !std::same_as<T, char>;

inline void append(std::string& out, std::string_view piece) { out.append(piece); }
// Templates, so that no pointer or number converts into them.
template <std::same_as<char> T>
void append(std::string& out, T piece) {
  out.push_back(piece);
}
template <std::same_as<bool> T>
void append(std::string& out, T piece) {
  out.append(piece ? "true" : "false");
}
template <Number T>
void append(std::string& out, T piece) {
  char digits[64];
  auto [end, error] = std::to_chars(digits, digits + sizeof digits, piece);
  out.append(digits, end);
}

}  // namespace text_detail

// The pieces one after the other; floating-point numbers in the shortest form that reads back to the same bits.
template <class... Pieces>
std::string str(const Pieces&... pieces) {
  std::string out;
  (text_detail::append(out, pieces), ...);
  return out;
}

}  // namespace lockstep
