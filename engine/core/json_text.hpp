// Texts and numbers in JSON syntax, for code that assembles a line of JSON without a library.
//
//   str("{\"name\":", json_text(name), ",\"value\":", json_number(value), "}")
#pragma once

#include <string>
#include <string_view>

namespace lockstep {

// The text as a JSON string, quoted and escaped. `text` must be valid UTF-8.
std::string json_text(std::string_view text);
// The number in a form that reads back to the same bits and as a floating-point number: 1 becomes 1.0. NaN and
// infinities become the strings "nan", "inf" and "-inf".
std::string json_number(double value);

}  // namespace lockstep
