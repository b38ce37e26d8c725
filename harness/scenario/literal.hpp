// A value that is known before launch: literals in a scenario file, parameters, matrix values, defaults.
//
//   Literal value = parse_literal("1e-2");            // for --set
//   value.as_double();                                // throws Error for a value of another kind
//   value.json();                                     // "0.01"; not-a-number and infinities as texts
//
// A Literal is cheap to copy and counts in the budget of its thread (budget.hpp). Maps keep the order of the file.
// Integers have 64 bits and are distinct from numbers and booleans.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "harness/scenario/charged.hpp"

namespace lockstep::scenario {

class Literal;
using LiteralList = std::vector<Literal>;
using LiteralMap = std::vector<std::pair<std::string, Literal>>;

class Literal {
 public:
  enum class Kind { none, boolean, integer, number, text, list, map };

  Literal() = default;  // none
  explicit Literal(bool value) : value_(value) {}
  explicit Literal(int value) : value_(static_cast<std::int64_t>(value)) {}
  explicit Literal(std::int64_t value) : value_(value) {}
  explicit Literal(double value) : value_(value) {}
  explicit Literal(std::string value);  // throws BudgetError; so do lists and maps
  explicit Literal(const char* value) : Literal(std::string(value)) {}
  explicit Literal(LiteralList value);
  explicit Literal(LiteralMap value);

  Kind kind() const { return static_cast<Kind>(value_.data.index()); }
  bool is_none() const { return kind() == Kind::none; }
  bool is_bool() const { return kind() == Kind::boolean; }
  bool is_int() const { return kind() == Kind::integer; }
  bool is_double() const { return kind() == Kind::number; }
  bool is_number() const { return is_int() || is_double(); }
  bool is_text() const { return kind() == Kind::text; }
  bool is_list() const { return kind() == Kind::list; }
  bool is_map() const { return kind() == Kind::map; }

  // Each throws Error for a value of another kind. as_double accepts integers too.
  bool as_bool() const;
  std::int64_t as_int() const;
  double as_double() const;
  const std::string& as_text() const;
  const LiteralList& as_list() const;
  const LiteralMap& as_map() const;
  const Literal* find(std::string_view key) const;  // null: no map, or no such key

  // Numbers are compared by value. Values of different kinds are not equal: 1 == 1.0, but 1 != true.
  friend bool operator==(const Literal& a, const Literal& b);

  // json() and text() throw BudgetError if the text exceeds the budget.
  std::string json() const;   // exact: reading it gives the same bits
  std::string text() const;   // for case ids and `${}`: abc, true, none, 0.01, [1,2], {a:1}
  std::string shown() const;  // for messages: text(), truncated after about 80 characters

 private:
  class Writer;
  using Data = std::variant<std::monostate, bool, std::int64_t, double, Charged<std::string>, Charged<LiteralList>,
                            Charged<LiteralMap>>;
  OutOfLine<Data> value_;
};
extern template class OutOfLine<Literal::Data>;

// The order of the exact values: -1, 0 or 1; 2 for not-a-number.
int compare_values(std::int64_t integer, double number);

// `//` and `%` of numbers, as in Python: the largest whole number that is not above the exact quotient, and the rest,
// which has the sign of b.
double floor_quotient(double a, double b);
double floor_rest(double a, double b);

// "none", "boolean", "integer", "number", "text", "list", "map".
std::string_view name_of(Literal::Kind kind);

// The value of a plain YAML scalar or of a text on the command line: none, true, false, inf, -inf, an integer, a
// number, otherwise a text. Throws Error for integers that do not fit in 64 bits.
Literal literal_of_scalar(std::string_view text);

// The value of a text in YAML flow style (`[1, 2]`, `{a: 1}`), for --set. Throws Error for malformed text.
Literal parse_literal(const std::string& text);

}  // namespace lockstep::scenario
