#include "engine/core/text.hpp"

#include <charconv>

namespace lockstep::text_detail {

void Piece::append_to(std::string& out) const {
  char digits[64];
  const auto append = [&](auto value) { out.append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr); };
  switch (kind_) {
    case Kind::text:
      out.append(text_);
      return;
    case Kind::character:
      out.push_back(character_);
      return;
    case Kind::integer:
      return append(integer_);
    case Kind::natural:
      return append(natural_);
    case Kind::single:
      return append(single_);
    case Kind::number:
      return append(number_);
  }
}

std::string join(std::initializer_list<Piece> pieces) {
  std::string out;
  for (const Piece& piece : pieces) piece.append_to(out);
  return out;
}

}  // namespace lockstep::text_detail
