// Texts and numbers as JSON writes them, for who puts a line of JSON together by hand.
//
//   str("{\"name\":", json_text(name), ",\"value\":", json_number(value), "}")
#pragma once

#include <string>
#include <string_view>

namespace lockstep {

// Quoted, with everything escaped that JSON wants escaped. The text must be valid UTF-8.
std::string json_text(std::string_view text);
// Reads back to the same bits, and as a floating-point number: 1 is 1.0. Not-a-number and infinities are texts: "nan",
// "inf",
// "-inf".
std::string json_number(double value);

}  // namespace lockstep
