#include "harness/scenario/arithmetic.hpp"

#include <algorithm>
#include <cmath>

#include "engine/core/error.hpp"
#include "engine/core/text.hpp"
#include "harness/scenario/arithmetic_helpers.hpp"
#include "harness/scenario/characters.hpp"
#include "harness/scenario/diagnostics.hpp"
#include "harness/scenario/expression.hpp"

namespace lockstep::scenario {

namespace {

[[noreturn]] void refuse(Op op, const Literal& a, const Literal& b) {
  throw Error(str("`", name_of(op), "` is not defined for ", name_of(a.kind()), " ", a.shown(), " and ",
                  name_of(b.kind()), " ", b.shown()));
}
[[noreturn]] void overflow(Op op, const Literal& a, const Literal& b) {
  throw Error(str("64-bit overflow in ", a.shown(), " ", name_of(op), " ", b.shown()));
}
[[noreturn]] void by_zero(Op op, const Literal& a) {
  throw Error(str("division by zero in ", a.shown(), " ", name_of(op), " 0"));
}

std::int64_t floor_divide(std::int64_t a, std::int64_t b) {
  const std::int64_t quotient = a / b;
  return (a % b != 0 && (a < 0) != (b < 0)) ? quotient - 1 : quotient;
}

Literal power(const Literal& a, const Literal& b) {
  if (!a.is_int() || !b.is_int() || b.as_int() < 0) {
    const double result = std::pow(a.as_double(), b.as_double());
    if (a.as_double() == 0.0 && b.as_double() < 0.0) throw Error(str(a.shown(), "**", b.shown(), " has no value"));
    if (std::isnan(result)) throw Error(str(a.shown(), "**", b.shown(), " is not a real number"));
    return Literal(result);
  }
  std::int64_t result = 1;
  std::int64_t base = a.as_int();
  // Repeated squaring ends soon for a huge exponent. An overflow of the base matters only if the base is used again.
  bool base_fits = true;
  for (std::int64_t left = b.as_int(); left > 0; left >>= 1) {
    if ((left & 1) != 0 && (!base_fits || __builtin_mul_overflow(result, base, &result))) overflow(Op::power, a, b);
    base_fits = base_fits && !__builtin_mul_overflow(base, base, &base);
  }
  return Literal(result);
}

Literal integers(Op op, const Literal& left, const Literal& right) {
  const std::int64_t a = left.as_int();
  const std::int64_t b = right.as_int();
  std::int64_t result = 0;
  switch (op) {
    case Op::add:
      if (__builtin_add_overflow(a, b, &result)) overflow(op, left, right);
      return Literal(result);
    case Op::subtract:
      if (__builtin_sub_overflow(a, b, &result)) overflow(op, left, right);
      return Literal(result);
    case Op::multiply:
      if (__builtin_mul_overflow(a, b, &result)) overflow(op, left, right);
      return Literal(result);
    case Op::divide:
      if (b == 0) by_zero(op, left);
      return Literal(static_cast<double>(a) / static_cast<double>(b));
    case Op::floor_divide:
      if (b == 0) by_zero(op, left);
      if (a == INT64_MIN && b == -1) overflow(op, left, right);
      return Literal(floor_divide(a, b));
    case Op::modulo:
      if (b == 0) by_zero(op, left);
      if (b == -1) return Literal(std::int64_t{0});
      return Literal(a - b * floor_divide(a, b));
    default:
      refuse(op, left, right);
  }
}

Literal numbers(Op op, const Literal& left, const Literal& right) {
  const double a = left.as_double();
  const double b = right.as_double();
  switch (op) {
    case Op::add:
      return Literal(a + b);
    case Op::subtract:
      return Literal(a - b);
    case Op::multiply:
      return Literal(a * b);
    case Op::divide:
      if (b == 0) by_zero(op, left);
      return Literal(a / b);
    case Op::floor_divide:
      if (b == 0) by_zero(op, left);
      return Literal(floor_quotient(a, b));
    case Op::modulo:
      if (b == 0) by_zero(op, left);
      return Literal(floor_rest(a, b));
    default:
      refuse(op, left, right);
  }
}

bool contains(const Literal& container, const Literal& item) {
  if (container.is_list()) {
    return std::any_of(container.as_list().begin(), container.as_list().end(),
                       [&](const Literal& other) { return other == item; });
  }
  if (container.is_map() && (item.is_text() || item.is_int())) return container.find(key_of(item)) != nullptr;
  if (container.is_text() && item.is_text()) return container.as_text().find(item.as_text()) != std::string::npos;
  refuse(Op::in, item, container);
}

Literal repeated(const LiteralList& list, std::int64_t times) {
  if (times > 0)
    check_list_size(list.size() > limits::list_items / static_cast<std::size_t>(times)
                        ? limits::list_items + 1
                        : list.size() * static_cast<std::size_t>(times));
  LiteralList out;
  if (!list.empty()) {
    for (std::int64_t i = 0; i < times; ++i) out.insert(out.end(), list.begin(), list.end());
  }
  return Literal(std::move(out));
}

// The number of items of a list, or of characters of a text.
std::int64_t length_of(const Literal& of) {
  return of.is_list() ? static_cast<std::int64_t>(of.as_list().size()) : num_characters(of.as_text());
}

}  // namespace

void refuse_operand(std::string_view operation, const Literal& a) {
  throw Error(str(operation, " is not defined for ", name_of(a.kind()), " ", a.shown()));
}

void check_list_size(std::size_t size) {
  if (size > limits::list_items)
    throw Error(str("a list of ", size, " items; at most ", limits::list_items, " are allowed"));
}

std::string key_of(const Literal& key) { return key.is_int() ? key.text() : key.as_text(); }

int compare(Op op, const Literal& a, const Literal& b) {
  if (a.is_text() && b.is_text()) return a.as_text() < b.as_text() ? -1 : a.as_text() == b.as_text() ? 0 : 1;
  if (!a.is_number() || !b.is_number()) refuse(op, a, b);
  if (a.is_int() && b.is_int()) return a.as_int() < b.as_int() ? -1 : a.as_int() == b.as_int() ? 0 : 1;
  if (a.is_int()) return compare_values(a.as_int(), b.as_double());
  if (b.is_int()) {
    const int side = compare_values(b.as_int(), a.as_double());
    return side == 2 ? 2 : -side;
  }
  const double x = a.as_double();
  const double y = b.as_double();
  if (std::isnan(x) || std::isnan(y)) return 2;
  return x < y ? -1 : x == y ? 0 : 1;
}

Literal negate(const Literal& a) {
  if (a.is_double()) return Literal(-a.as_double());
  if (!a.is_int()) refuse_operand("`-`", a);
  std::int64_t result = 0;
  if (__builtin_sub_overflow(std::int64_t{0}, a.as_int(), &result))
    throw Error(str("64-bit overflow in -(", a.shown(), ")"));
  return Literal(result);
}

Literal apply(Op op, const Literal& a, const Literal& b) {
  switch (op) {
    case Op::equal:
      return Literal(a == b);
    case Op::not_equal:
      return Literal(!(a == b));
    case Op::less:
      return Literal(compare(op, a, b) == -1);
    case Op::less_equal:
      return Literal(compare(op, a, b) <= 0);
    case Op::greater:
      return Literal(compare(op, a, b) == 1);
    case Op::greater_equal: {
      const int result = compare(op, a, b);
      return Literal(result == 0 || result == 1);
    }
    case Op::in:
      return Literal(contains(b, a));
    default:
      break;
  }
  if (a.is_number() && b.is_number()) {
    if (op == Op::power) return power(a, b);
    return a.is_int() && b.is_int() ? integers(op, a, b) : numbers(op, a, b);
  }
  if (op == Op::add && a.is_text() && b.is_text()) {
    const std::size_t size = a.as_text().size() + b.as_text().size();
    Budget::ask(static_cast<std::int64_t>(size), [size] { return str("a text of ", size, " characters"); });
    return Literal(a.as_text() + b.as_text());
  }
  if (op == Op::add && a.is_list() && b.is_list()) {
    check_list_size(a.as_list().size() + b.as_list().size());
    LiteralList out = a.as_list();
    out.insert(out.end(), b.as_list().begin(), b.as_list().end());
    return Literal(std::move(out));
  }
  if (op == Op::multiply && a.is_list() && b.is_int()) return repeated(a.as_list(), b.as_int());
  if (op == Op::multiply && a.is_int() && b.is_list()) return repeated(b.as_list(), a.as_int());
  refuse(op, a, b);
}

Literal item_at(const Literal& of, const Literal& index) {
  if (of.is_map()) {
    const std::string key = index.is_text() ? index.as_text() : index.text();
    if (const Literal* found = of.find(key)) return *found;
    std::vector<std::string> known;
    for (const auto& [name, value] : of.as_map()) known.push_back(name);
    throw Error(str("no entry `", key, "`", suggestion(key, known)));
  }
  if ((!of.is_list() && !of.is_text()) || !index.is_int()) {
    throw Error(str(name_of(of.kind()), " ", of.shown(), " has no item [", index.shown(), "]"));
  }
  const std::int64_t size = length_of(of);
  const std::int64_t at = index.as_int() < 0 ? index.as_int() + size : index.as_int();
  if (at < 0 || at >= size)
    throw Error(str("index ", index.shown(), " is out of range for a ",
                    of.is_list() ? str("list of ", size, " items") : str("text of ", size, " characters")));
  if (of.is_text()) return Literal(std::string(characters(of.as_text(), at, at + 1)));
  return of.as_list()[static_cast<std::size_t>(at)];
}

Literal slice_of(const Literal& of, const Literal& from, const Literal& to) {
  if (!of.is_list() && !of.is_text())
    throw Error(str("`[a:b]` is not defined for ", name_of(of.kind()), " ", of.shown()));
  const std::int64_t size = length_of(of);
  const auto bound = [&](const Literal& given, std::int64_t missing) {
    if (given.is_none()) return missing;
    const std::int64_t at = given.as_int() < 0 ? given.as_int() + size : given.as_int();
    return std::clamp<std::int64_t>(at, 0, size);
  };
  const std::int64_t first = bound(from, 0);
  const std::int64_t last = std::max(first, bound(to, size));
  if (of.is_text()) {
    return Literal(std::string(characters(of.as_text(), first, last)));
  }
  return Literal(LiteralList(of.as_list().begin() + first, of.as_list().begin() + last));
}

std::vector<Literal> unpack(const Literal& item, std::size_t num_names) {
  if (num_names == 1) return {item};
  if (!item.is_list() || item.as_list().size() != num_names) {
    throw Error(str("cannot unpack ", item.shown(), " into ", num_names, " names"));
  }
  return item.as_list();
}

}  // namespace lockstep::scenario
