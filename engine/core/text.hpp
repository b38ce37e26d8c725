// Builds short texts (messages, names) from values without including a stream header.
//
//   str("size ", 3, " at dim ", dim)  ->  "size 3 at dim 1"
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>

namespace lockstep {

namespace text_detail {

template <class T>
concept Signed = std::signed_integral<T> && !std::same_as<T, char>;
template <class T>
concept Unsigned = std::unsigned_integral<T> && !std::same_as<T, bool> && !std::same_as<T, char>;

// An argument of str() as one type, so that the compiler generates one function for all calls. A text is referenced,
// not copied. The constructors are templates, so that pointers and other number types do not convert implicitly.
class Piece {
 public:
  Piece(std::string_view text) : kind_(Kind::text), text_(text) {}
  template <std::same_as<char> T>
  Piece(T value) : kind_(Kind::character), character_(value) {}
  template <std::same_as<bool> T>
  Piece(T value) : Piece(std::string_view(value ? "true" : "false")) {}
  template <Signed T>
  Piece(T value) : kind_(Kind::integer), integer_(value) {}
  template <Unsigned T>
  Piece(T value) : kind_(Kind::natural), natural_(value) {}
  template <std::same_as<float> T>
  Piece(T value) : kind_(Kind::single), single_(value) {}
  template <std::same_as<double> T>
  Piece(T value) : kind_(Kind::number), number_(value) {}
  void append_to(std::string& out) const;

 private:
  enum class Kind : std::uint8_t { text, character, integer, natural, single, number };
  Kind kind_;
  union {
    std::string_view text_;
    char character_;
    std::int64_t integer_;
    std::uint64_t natural_;
    float single_;
    double number_;
  };
};

std::string join(std::initializer_list<Piece> pieces);

}  // namespace text_detail

// Concatenates texts, characters, bools and numbers. Floating-point numbers take the shortest form that reads back to
// the same bits.
template <class... Pieces>
std::string str(const Pieces&... pieces) {
  return text_detail::join({text_detail::Piece(pieces)...});
}

}  // namespace lockstep
