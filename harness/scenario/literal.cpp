#include "harness/scenario/literal.hpp"

#include <charconv>
#include <cmath>
#include <system_error>
#include <utility>

#include "engine/core/checked.hpp"
#include "engine/core/error.hpp"
#include "engine/core/json_text.hpp"
#include "engine/core/text.hpp"

namespace lockstep::scenario {

template class OutOfLine<Literal::Data>;

namespace {

[[noreturn]] void wrong_kind(const Literal& value, std::string_view wanted) {
  throw Error(str("expected ", wanted, ", got ", name_of(value.kind()), " ", value.shown()));
}

std::string number_text(double value, bool json) {
  if (std::isnan(value)) return json ? "\"nan\"" : "nan";
  if (std::isinf(value)) return str(json ? "\"" : "", value < 0 ? "-" : "", "inf", json ? "\"" : "");
  std::string digits = str(value);
  // With a fraction, so that it is read as a number again: 1.0, not 1.
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

std::int64_t own_bytes(const LiteralList& list) {
  return static_cast<std::int64_t>(sizeof(LiteralList) + bounded_product(list.capacity(), sizeof(Literal)));
}
std::int64_t own_bytes(const LiteralMap& map) {
  std::int64_t bytes =
      static_cast<std::int64_t>(sizeof(LiteralMap) + bounded_product(map.capacity(), sizeof(LiteralMap::value_type)));
  for (const auto& [key, value] : map) bytes += static_cast<std::int64_t>(key.size());
  return bytes;
}

}  // namespace

Literal::Literal(std::string value) {
  const auto bytes = static_cast<std::int64_t>(sizeof(std::string) + value.capacity());
  Budget::ask(bytes, [&] { return str("a text of ", value.size(), " characters"); });
  value_.data = Charged<std::string>(std::move(value), bytes);
}

Literal::Literal(LiteralList value) {
  const std::int64_t bytes = own_bytes(value);
  Budget::ask(bytes, [&] { return str("a list of ", value.size(), " items"); });
  value_.data = Charged<LiteralList>(std::move(value), bytes);
}

Literal::Literal(LiteralMap value) {
  const std::int64_t bytes = own_bytes(value);
  Budget::ask(bytes, [&] { return str("a map of ", value.size(), " entries"); });
  value_.data = Charged<LiteralMap>(std::move(value), bytes);
}

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
  return std::get<bool>(value_.data);
}
std::int64_t Literal::as_int() const {
  if (!is_int()) wrong_kind(*this, "an integer");
  return std::get<std::int64_t>(value_.data);
}
double Literal::as_double() const {
  if (is_int()) return static_cast<double>(std::get<std::int64_t>(value_.data));
  if (!is_double()) wrong_kind(*this, "a number");
  return std::get<double>(value_.data);
}
const std::string& Literal::as_text() const {
  if (!is_text()) wrong_kind(*this, "a text");
  return *std::get<Charged<std::string>>(value_.data);
}
const LiteralList& Literal::as_list() const {
  if (!is_list()) wrong_kind(*this, "a list");
  return *std::get<Charged<LiteralList>>(value_.data);
}
const LiteralMap& Literal::as_map() const {
  if (!is_map()) wrong_kind(*this, "a map");
  return *std::get<Charged<LiteralMap>>(value_.data);
}

const Literal* Literal::find(std::string_view key) const {
  if (!is_map()) return nullptr;
  for (const auto& [name, value] : as_map()) {
    if (name == key) return &value;
  }
  return nullptr;
}

int compare_values(std::int64_t integer, double number) {
  if (std::isnan(number)) return 2;
  if (number >= 0x1p63) return -1;
  if (number < -0x1p63) return 1;
  const double below = std::floor(number);
  const auto whole = static_cast<std::int64_t>(below);
  if (integer != whole) return integer < whole ? -1 : 1;
  return below < number ? -1 : 0;
}

double floor_quotient(double a, double b) {
  const double rest = std::fmod(a, b);
  double quotient = (a - rest) / b;
  if (rest != 0.0 && (rest < 0.0) != (b < 0.0)) quotient -= 1.0;
  if (quotient == 0.0) return std::copysign(0.0, a / b);
  // The division may have rounded to just below the whole number.
  const double whole = std::floor(quotient);
  return quotient - whole > 0.5 ? whole + 1.0 : whole;
}

double floor_rest(double a, double b) {
  const double rest = std::fmod(a, b);
  return rest != 0.0 && (rest < 0.0) != (b < 0.0) ? rest + b : rest;
}

bool operator==(const Literal& a, const Literal& b) {
  if (a.is_int() && b.is_double()) return compare_values(a.as_int(), b.as_double()) == 0;
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
      Budget::ask_time();
      return a.as_list() == b.as_list();
    case Literal::Kind::map: {
      // The order of the entries does not matter.
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

// Writes a value in small pieces, and checks the budget while the text grows: a list with many shared items can have a
// very long text.
class Literal::Writer {
 public:
  Writer(bool json, std::size_t max_size) : json_(json), max_size_(max_size) {}

  void write(const Literal& value) {
    if (out_.size() > max_size_) return;
    switch (value.kind()) {
      case Kind::list: {
        const char* separator = "";
        add("[");
        for (const Literal& item : value.as_list()) {
          if (out_.size() > max_size_) break;
          add(std::exchange(separator, ","));
          write(item);
        }
        return add("]");
      }
      case Kind::map: {
        const char* separator = "";
        add("{");
        for (const auto& [key, item] : value.as_map()) {
          if (out_.size() > max_size_) break;
          add(std::exchange(separator, ","));
          add(json_ ? json_text(key) : key);
          add(":");
          write(item);
        }
        return add("}");
      }
      case Kind::none:
        return add(json_ ? "null" : "none");
      case Kind::boolean:
        return add(value.as_bool() ? "true" : "false");
      case Kind::integer:
        return add(str(value.as_int()));
      case Kind::number:
        return add(number_text(value.as_double(), json_));
      case Kind::text:
        return add(json_ ? json_text(value.as_text()) : value.as_text());
    }
  }
  std::string take() {
    if (out_.size() > max_size_) {
      out_.resize(max_size_);
      out_ += "...";
    }
    return std::move(out_);
  }

 private:
  void add(std::string_view piece) {
    out_ += piece;
    if (out_.size() < next_check_) return;
    Budget::ask(static_cast<std::int64_t>(2 * out_.size()), [] { return std::string("a value as text"); });
    next_check_ = out_.size() + out_.size() / 4;
  }

  const bool json_;
  const std::size_t max_size_;
  std::string out_;
  std::size_t next_check_ = 1 << 16;
};

std::string Literal::json() const {
  Writer writer(true, std::string::npos);
  writer.write(*this);
  return writer.take();
}

std::string Literal::text() const {
  Writer writer(false, std::string::npos);
  writer.write(*this);
  return writer.take();
}

std::string Literal::shown() const {
  constexpr std::size_t max_shown = 80;
  Writer writer(false, max_shown);
  writer.write(*this);
  return writer.take();
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
