#include "harness/scenario/arithmetic.hpp"

#include <algorithm>
#include <cmath>

#include "engine/core/error.hpp"
#include "engine/core/text.hpp"
#include "harness/scenario/diagnostics.hpp"
#include "harness/scenario/expression.hpp"

namespace lockstep::scenario {

namespace {

[[noreturn]] void refuse(std::string_view operation, const Literal& a) {
  throw Error(str(operation, " is not defined for ", name_of(a.kind()), " ", a.shown()));
}
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

void check_size(std::size_t size) {
  if (size > limits::list_items)
    throw Error(str("a list of ", size, " items; at most ", limits::list_items, " are allowed"));
}

std::int64_t floor_divide(std::int64_t a, std::int64_t b) {
  const std::int64_t quotient = a / b;
  return (a % b != 0 && (a < 0) != (b < 0)) ? quotient - 1 : quotient;
}

Literal power(const Literal& a, const Literal& b) {
  if (!a.is_int() || !b.is_int() || b.as_int() < 0) {
    const double result = std::pow(a.as_double(), b.as_double());
    if (std::isnan(result)) throw Error(str(a.shown(), "**", b.shown(), " is no real number"));
    return Literal(result);
  }
  std::int64_t result = 1;
  std::int64_t base = a.as_int();
  // By squaring, so that a huge exponent ends soon; a base beyond 64 bits only matters when it is used again.
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
      return Literal(std::floor(a / b));
    case Op::modulo:
      if (b == 0) by_zero(op, left);
      return Literal(a - b * std::floor(a / b));
    default:
      refuse(op, left, right);
  }
}

// -1, 0, 1; 2 when a side is not-a-number.
int order(Op op, const Literal& a, const Literal& b) {
  if (a.is_text() && b.is_text()) return a.as_text() < b.as_text() ? -1 : a.as_text() == b.as_text() ? 0 : 1;
  if (!a.is_number() || !b.is_number()) refuse(op, a, b);
  if (a.is_int() && b.is_int()) return a.as_int() < b.as_int() ? -1 : a.as_int() == b.as_int() ? 0 : 1;
  const double x = a.as_double();
  const double y = b.as_double();
  if (std::isnan(x) || std::isnan(y)) return 2;
  return x < y ? -1 : x == y ? 0 : 1;
}

bool contains(const Literal& whole, const Literal& part) {
  if (whole.is_list()) {
    return std::any_of(whole.as_list().begin(), whole.as_list().end(),
                       [&](const Literal& item) { return item == part; });
  }
  if (whole.is_map() && part.is_text()) return whole.find(part.as_text()) != nullptr;
  if (whole.is_text() && part.is_text()) return whole.as_text().find(part.as_text()) != std::string::npos;
  refuse(Op::in, part, whole);
}

Literal repeated(const LiteralList& list, std::int64_t times) {
  if (times < 0) throw Error(str("a list cannot be repeated ", times, " times"));
  if (times > 0)
    check_size(list.size() > limits::list_items / static_cast<std::size_t>(times)
                   ? limits::list_items + 1
                   : list.size() * static_cast<std::size_t>(times));
  LiteralList out;
  if (!list.empty()) {
    for (std::int64_t i = 0; i < times; ++i) out.insert(out.end(), list.begin(), list.end());
  }
  return Literal(std::move(out));
}

Literal to_integer(double value, std::string_view operation) {
  if (!(value >= -9223372036854775808.0 && value < 9223372036854775808.0)) {
    throw Error(str(operation, " of ", Literal(value).shown(), " does not fit in 64 bits"));
  }
  return Literal(static_cast<std::int64_t>(value));
}

// One argument that is a list, or several.
const LiteralList& all_of(const std::vector<Literal>& arguments, std::string_view name) {
  const LiteralList& list = arguments.size() == 1 && arguments[0].is_list() ? arguments[0].as_list() : arguments;
  if (list.empty()) throw Error(str(name, "() of an empty list"));
  return list;
}

Literal real_function(std::string_view name, double (*function)(double), const Literal& x) {
  if (!x.is_number()) refuse(str(name, "()"), x);
  const double result = function(x.as_double());
  if (std::isnan(result) || (std::isinf(result) && !std::isinf(x.as_double()))) {
    throw Error(str(name, "(", x.shown(), ") is no finite number"));
  }
  return Literal(result);
}

Literal range(const std::vector<Literal>& arguments) {
  const std::int64_t start = arguments.size() > 1 ? arguments[0].as_int() : 0;
  const std::int64_t stop = arguments[arguments.size() > 1 ? 1 : 0].as_int();
  const std::int64_t step = arguments.size() > 2 ? arguments[2].as_int() : 1;
  if (step == 0) throw Error("range() with a step of 0");
  LiteralList out;
  for (std::int64_t i = start; step > 0 ? i < stop : i > stop;) {
    check_size(out.size() + 1);
    out.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return Literal(std::move(out));
}

Literal sorted(const Literal& list) {
  LiteralList out = list.as_list();
  // Refuses mixed lists before sorting, which must not throw half-way.
  for (std::size_t i = 1; i < out.size(); ++i) {
    if (order(Op::less, out[0], out[i]) == 2) throw Error("sorted() of a list with not-a-number");
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const Literal& a, const Literal& b) { return order(Op::less, a, b) < 0; });
  return Literal(std::move(out));
}

Literal zip(const std::vector<Literal>& lists) {
  LiteralList out;
  for (const Literal& list : lists) {
    if (list.as_list().size() != lists[0].as_list().size()) {
      throw Error(str("zip() of lists of ", lists[0].as_list().size(), " and ", list.as_list().size(), " items"));
    }
  }
  for (std::size_t i = 0; i < lists[0].as_list().size(); ++i) {
    LiteralList row;
    for (const Literal& list : lists) row.push_back(list.as_list()[i]);
    out.emplace_back(std::move(row));
  }
  return Literal(std::move(out));
}

Literal total(const std::vector<Literal>& arguments) {
  if (arguments.size() != 1) throw Error("sum() of values takes one list");
  Literal sum(std::int64_t{0});
  for (const Literal& item : arguments[0].as_list()) sum = apply(Op::add, sum, item);
  return sum;
}

}  // namespace

Literal negate(const Literal& a) {
  if (a.is_double()) return Literal(-a.as_double());
  if (!a.is_int()) refuse("`-`", a);
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
      return Literal(order(op, a, b) == -1);
    case Op::less_equal:
      return Literal(order(op, a, b) <= 0);
    case Op::greater:
      return Literal(order(op, a, b) == 1);
    case Op::greater_equal: {
      const int result = order(op, a, b);
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
    check_size(a.as_list().size() + b.as_list().size());
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
  if (!of.is_list() || !index.is_int()) {
    throw Error(str("a ", name_of(of.kind()), " has no item [", index.shown(), "]"));
  }
  const std::int64_t size = static_cast<std::int64_t>(of.as_list().size());
  const std::int64_t at = index.as_int() < 0 ? index.as_int() + size : index.as_int();
  if (at < 0 || at >= size) throw Error(str("index ", index.shown(), " of a list of ", size, " items"));
  return of.as_list()[static_cast<std::size_t>(at)];
}

Literal slice_of(const Literal& of, const Literal& from, const Literal& to) {
  if (!of.is_list() && !of.is_text()) throw Error(str("a ", name_of(of.kind()), " has no slices"));
  const std::int64_t size = static_cast<std::int64_t>(of.is_list() ? of.as_list().size() : of.as_text().size());
  const auto bound = [&](const Literal& given, std::int64_t missing) {
    if (given.is_none()) return missing;
    const std::int64_t at = given.as_int() < 0 ? given.as_int() + size : given.as_int();
    return std::clamp<std::int64_t>(at, 0, size);
  };
  const std::int64_t first = bound(from, 0);
  const std::int64_t last = std::max(first, bound(to, size));
  if (of.is_text()) {
    return Literal(of.as_text().substr(static_cast<std::size_t>(first), static_cast<std::size_t>(last - first)));
  }
  return Literal(LiteralList(of.as_list().begin() + first, of.as_list().begin() + last));
}

std::vector<Literal> take_apart(const Literal& item, std::size_t num_names) {
  if (num_names == 1) return {item};
  if (!item.is_list() || item.as_list().size() != num_names) {
    throw Error(str("cannot take ", item.shown(), " apart into ", num_names, " names"));
  }
  return item.as_list();
}

bool glob_matches(std::string_view pattern, std::string_view text) {
  std::size_t p = 0;
  std::size_t t = 0;
  std::size_t star = std::string_view::npos;  // after the last star, and where it was tried last
  std::size_t star_text = 0;
  // How far one element of the pattern reaches, when it fits the character; 0 when it does not.
  const auto fits = [&](std::size_t at, char c) -> std::size_t {
    if (pattern[at] == '?') return 1;
    if (pattern[at] != '[') return pattern[at] == c ? 1 : 0;
    std::size_t end = at + 1;
    const bool inverted = end < pattern.size() && pattern[end] == '!';
    if (inverted) ++end;
    bool found = false;
    const std::size_t first = end;
    for (; end < pattern.size() && (pattern[end] != ']' || end == first); ++end) {
      if (end + 2 < pattern.size() && pattern[end + 1] == '-' && pattern[end + 2] != ']') {
        found = found || (pattern[end] <= c && c <= pattern[end + 2]);
        end += 2;
      } else {
        found = found || pattern[end] == c;
      }
    }
    if (end >= pattern.size()) return pattern[at] == c ? 1 : 0;  // no `]`: the bracket itself
    return found != inverted ? end + 1 - at : 0;
  };
  while (t < text.size()) {
    const std::size_t reach = p < pattern.size() && pattern[p] != '*' ? fits(p, text[t]) : 0;
    if (reach > 0) {
      p += reach;
      ++t;
    } else if (p < pattern.size() && pattern[p] == '*') {
      star = ++p;
      star_text = t;
    } else if (star != std::string_view::npos) {
      p = star;
      t = ++star_text;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

Literal call_plain(Function function, const std::vector<Literal>& arguments) {
  const std::string_view name = name_of(function);
  const FunctionSpec& spec = spec_of(function);
  const int given = static_cast<int>(arguments.size());
  if (given < spec.min_positional || (spec.max_positional >= 0 && given > spec.max_positional)) {
    throw Error(str(name, "(", spec.signature, ") got ", given, " arguments"));
  }
  const Literal& x = arguments[0];
  switch (function) {
    case Function::abs:
      if (x.is_double()) return Literal(std::fabs(x.as_double()));
      if (!x.is_int()) refuse("abs()", x);
      return x.as_int() < 0 ? negate(x) : x;
    case Function::min:
    case Function::max: {
      const LiteralList& list = all_of(arguments, name);
      const Literal* best = &list[0];
      for (const Literal& item : list) {
        const int side = order(Op::less, item, *best);
        if (side == (function == Function::min ? -1 : 1)) best = &item;
      }
      if (!best->is_number()) refuse(str(name, "()"), *best);
      return *best;
    }
    case Function::sum:
      return total(arguments);
    case Function::round:
      return x.is_int() ? x : to_integer(std::nearbyint(x.as_double()), name);
    case Function::floor:
      return x.is_int() ? x : to_integer(std::floor(x.as_double()), name);
    case Function::ceil:
      return x.is_int() ? x : to_integer(std::ceil(x.as_double()), name);
    case Function::sqrt:
      return real_function(
          name, [](double v) { return std::sqrt(v); }, x);
    case Function::exp:
      return real_function(
          name, [](double v) { return std::exp(v); }, x);
    case Function::log:
      return real_function(
          name, [](double v) { return std::log(v); }, x);
    case Function::log2:
      return real_function(
          name, [](double v) { return std::log2(v); }, x);
    case Function::len:
      if (x.is_list()) return Literal(static_cast<std::int64_t>(x.as_list().size()));
      if (x.is_map()) return Literal(static_cast<std::int64_t>(x.as_map().size()));
      return Literal(static_cast<std::int64_t>(x.as_text().size()));
    case Function::range:
      return range(arguments);
    case Function::sorted:
      return sorted(x);
    case Function::zip:
      return zip(arguments);
    case Function::count: {
      std::int64_t holding = 0;
      for (const Literal& item : x.as_list()) holding += item.as_bool() ? 1 : 0;
      return Literal(holding);
    }
    case Function::int_: {
      if (x.is_int()) return x;
      if (x.is_double()) return to_integer(std::trunc(x.as_double()), name);
      const Literal read = literal_of_scalar(x.as_text());
      if (!read.is_int()) throw Error(str("int('", x.as_text(), "'): no integer"));
      return read;
    }
    case Function::text:
      return Literal(x.text());
    case Function::keys: {
      LiteralList out;
      for (const auto& [key, value] : x.as_map()) out.emplace_back(key);
      return Literal(std::move(out));
    }
    case Function::values: {
      LiteralList out;
      for (const auto& [key, value] : x.as_map()) out.push_back(value);
      return Literal(std::move(out));
    }
    case Function::has:
      return Literal((static_cast<void>(x.as_map()), x.find(arguments[1].as_text()) != nullptr));
    case Function::put: {
      LiteralMap out = x.as_map();
      const std::string& key = arguments[1].as_text();
      for (auto& [other, value] : out) {
        if (other != key) continue;
        value = arguments[2];
        return Literal(std::move(out));
      }
      out.emplace_back(key, arguments[2]);
      return Literal(std::move(out));
    }
    case Function::starts_with:
      return Literal(x.as_text().starts_with(arguments[1].as_text()));
    case Function::ends_with:
      return Literal(x.as_text().ends_with(arguments[1].as_text()));
    case Function::matches:
      return Literal(glob_matches(arguments[1].as_text(), x.as_text()));
    case Function::all:
    case Function::any: {
      if (x.as_list().empty()) throw Error(str(name, "() of an empty list"));
      bool all = true;
      bool any = false;
      for (const Literal& item : x.as_list()) {
        all = all && item.as_bool();
        any = any || item.as_bool();
      }
      return Literal(function == Function::all ? all : any);
    }
    default:
      throw Error(str(name, "() is no plain function"));
  }
}

}  // namespace lockstep::scenario
