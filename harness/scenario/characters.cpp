#include "harness/scenario/characters.hpp"

#include <cstddef>

namespace lockstep::scenario {

namespace {

// Every other byte continues a character.
bool begins_character(std::string_view text, std::size_t at) { return at == 0 || !continues_character(text[at]); }

// The byte at which the character with this index begins; the end of the text for the number of its characters.
std::size_t byte_of(std::string_view text, std::int64_t index) {
  std::size_t at = 0;
  for (; at < text.size(); ++at) {
    if (begins_character(text, at) && index-- == 0) break;
  }
  return at;
}

}  // namespace

bool continues_character(char byte) { return (static_cast<unsigned char>(byte) & 0xc0u) == 0x80u; }

std::int64_t num_characters(std::string_view text) {
  std::int64_t count = 0;
  for (std::size_t at = 0; at < text.size(); ++at) count += begins_character(text, at) ? 1 : 0;
  return count;
}

std::string_view characters(std::string_view text, std::int64_t first, std::int64_t last) {
  const std::string_view rest = text.substr(byte_of(text, first));
  return rest.substr(0, byte_of(rest, last - first));
}

}  // namespace lockstep::scenario
