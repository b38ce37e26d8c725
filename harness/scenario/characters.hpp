// The characters of a text in UTF-8.
//
//   num_characters("d\xc3\xa9j\xc3\xa0");    // 4, of 6 bytes
//   characters("d\xc3\xa9j\xc3\xa0", 1, 3);  // "\xc3\xa9j"
#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep::scenario {

// Whether a byte belongs to the character of the byte before it.
bool continues_character(char byte);
std::int64_t num_characters(std::string_view text);
// The characters from index `first` up to `last`, where 0 <= first <= last <= num_characters(text).
std::string_view characters(std::string_view text, std::int64_t first, std::int64_t last);

}  // namespace lockstep::scenario
