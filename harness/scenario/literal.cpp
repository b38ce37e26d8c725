#include "harness/scenario/literal.hpp"

#include <charconv>
#include <cmath>
#include <system_error>

#include "engine/core/error.hpp"
#include "engine/core/json_text.hpp"
#include "engine/core/text.hpp"

namespace lockstep::scenario {

namespace {

[[noreturn]] void wrong_kind(const Literal& value, std::string_view wanted) {
  throw Error(str("expected ", wanted, ", got ", name_of(value.kind()), " ", value.text()));
}

std::string number_text(double value, bool json) {
  if (std::isnan(value)) return json ? "\"nan\"" : "nan";
  if (std::isinf(value)) return str(json ? "\"" : "", value < 0 ? "-" : "", "inf", json ? "\"" : "");
  std::string digits = str(value);
  // A number stays one when it is read back: 1.0, not 1.
  if (digits.find_first_of(".e") == std::string::npos) digits += ".0";
  return digits;
}

bool is_digits(std::string_view text) {
  if (text.empty()) return false;
  for (char c : text) {
    if (c < '0' || c > '9') return false;
  }
  return true;
}

}  // namespace

Literal::Literal(const Literal&) = default;
Literal::Literal(Literal&&) noexcept = default;
Literal& Literal::operator=(const Literal&) = default;
Literal& Literal::operator=(Literal&&) noexcept = default;
Literal::~Literal() = default;

std::string_view name_of(Literal::Kind kind) {
  switch (kind) {
    case Literal::Kind::none:
      return "none";
    case Literal::Kind::boolean:
      return "boolean";
    case Literal::Kind::integer:
      return "integer";
    case Literal::Kind::number:
      return "number";
    case Literal::Kind::text:
      return "text";
    case Literal::Kind::list:
      return "list";
    case Literal::Kind::map:
      return "map";
  }
  return "?";
}

bool Literal::as_bool() const {
  if (!is_bool()) wrong_kind(*this, "a boolean");
  return std::get<bool>(value_);
}
std::int64_t Literal::as_int() const {
  if (!is_int()) wrong_kind(*this, "an integer");
  return std::get<std::int64_t>(value_);
}
double Literal::as_double() const {
  if (is_int()) return static_cast<double>(std::get<std::int64_t>(value_));
  if (!is_double()) wrong_kind(*this, "a number");
  return std::get<double>(value_);
}
const std::string& Literal::as_text() const {
  if (!is_text()) wrong_kind(*this, "a text");
  return std::get<std::string>(value_);
}
const LiteralList& Literal::as_list() const {
  if (!is_list()) wrong_kind(*this, "a list");
  return std::get<LiteralList>(value_);
}
const LiteralMap& Literal::as_map() const {
  if (!is_map()) wrong_kind(*this, "a map");
  return std::get<LiteralMap>(value_);
}

const Literal* Literal::find(std::string_view key) const {
  if (!is_map()) return nullptr;
  for (const auto& [name, value] : std::get<LiteralMap>(value_)) {
    if (name == key) return &value;
  }
  return nullptr;
}

bool operator==(const Literal& a, const Literal& b) {
  if (a.is_int() && b.is_double()) return static_cast<double>(a.as_int()) == b.as_double();
  if (a.is_double() && b.is_int()) return b == a;
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Literal::Kind::none:
      return true;
    case Literal::Kind::boolean:
      return a.as_bool() == b.as_bool();
    case Literal::Kind::integer:
      return a.as_int() == b.as_int();
    case Literal::Kind::number:
      return a.as_double() == b.as_double();
    case Literal::Kind::text:
      return a.as_text() == b.as_text();
    case Literal::Kind::list:
      return a.as_list() == b.as_list();
    case Literal::Kind::map: {
      // The order of keys is no part of a map's value.
      if (a.as_map().size() != b.as_map().size()) return false;
      for (const auto& [key, value] : a.as_map()) {
        const Literal* other = b.find(key);
        if (other == nullptr || !(value == *other)) return false;
      }
      return true;
    }
  }
  return false;
}

std::string Literal::json() const {
  switch (kind()) {
    case Kind::none:
      return "null";
    case Kind::boolean:
      return as_bool() ? "true" : "false";
    case Kind::integer:
      return str(as_int());
    case Kind::number:
      return number_text(as_double(), true);
    case Kind::text:
      return json_text(as_text());
    case Kind::list: {
      std::string out = "[";
      for (const Literal& item : as_list()) out += str(out.size() > 1 ? "," : "", item.json());
      return out + "]";
    }
    case Kind::map: {
      std::string out = "{";
      for (const auto& [key, value] : as_map()) {
        out += str(out.size() > 1 ? "," : "", json_text(key) + ":" + value.json());
      }
      return out + "}";
    }
  }
  return {};
}

std::string Literal::text() const {
  switch (kind()) {
    case Kind::none:
      return "none";
    case Kind::number:
      return number_text(as_double(), false);
    case Kind::text:
      return as_text();
    case Kind::list: {
      std::string out = "[";
      for (const Literal& item : as_list()) out += str(out.size() > 1 ? "," : "", item.text());
      return out + "]";
    }
    case Kind::map: {
      std::string out = "{";
      for (const auto& [key, value] : as_map()) out += str(out.size() > 1 ? "," : "", key, ":", value.text());
      return out + "}";
    }
    default:
      return json();
  }
}

Literal literal_of_scalar(std::string_view text) {
  if (text == "none") return Literal();
  if (text == "true") return Literal(true);
  if (text == "false") return Literal(false);
  if (text == "inf") return Literal(HUGE_VAL);
  if (text == "-inf") return Literal(-HUGE_VAL);
  std::string_view digits = text;
  if (!digits.empty() && digits.front() == '-') digits.remove_prefix(1);
  if (digits.empty() || !((digits.front() >= '0' && digits.front() <= '9') || digits.front() == '.')) {
    return Literal(std::string(text));
  }
  if (is_digits(digits)) {
    std::int64_t value = 0;
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc()) throw Error(str("the integer ", text, " does not fit in 64 bits"));
    return Literal(value);
  }
  double value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (end != text.data() + text.size()) return Literal(std::string(text));
  if (error != std::errc()) throw Error(str("the number ", text, " does not fit in a double"));
  return Literal(value);
}

}  // namespace lockstep::scenario
