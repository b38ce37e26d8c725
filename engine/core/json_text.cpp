#include "engine/core/json_text.hpp"

#include <cmath>

#include "engine/core/text.hpp"

namespace lockstep {

std::string json_text(std::string_view text) {
  static constexpr char hex[] = "0123456789abcdef";
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      default:
        if (byte < 0x20 || byte == 0x7f) {
          out += str("\\u00", hex[byte >> 4], hex[byte & 0xf]);
        } else {
          out += c;
        }
    }
  }
  return out + '"';
}

std::string json_number(double value) {
  if (std::isnan(value)) return "\"nan\"";
  if (std::isinf(value)) return value < 0 ? "\"-inf\"" : "\"inf\"";
  std::string text = str(value);
  // With a decimal point, every reader reads a floating-point number and keeps the sign of -0.
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

}  // namespace lockstep
