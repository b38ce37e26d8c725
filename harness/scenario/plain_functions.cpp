// The functions of kind plain, on values without tensors.
#include <algorithm>
#include <cmath>

#include "engine/core/error.hpp"
#include "engine/core/text.hpp"
#include "harness/scenario/arithmetic.hpp"
#include "harness/scenario/arithmetic_helpers.hpp"
#include "harness/scenario/characters.hpp"
#include "harness/scenario/expression.hpp"

namespace lockstep::scenario {

namespace {

Literal to_integer(double value, std::string_view operation) {
  if (!(value >= -9223372036854775808.0 && value < 9223372036854775808.0)) {
    throw Error(str(operation, " of ", Literal(value).shown(), " does not fit in 64 bits"));
  }
  return Literal(static_cast<std::int64_t>(value));
}

// The values of a call with one list or with several arguments; at least one value.
const LiteralList& all_of(const std::vector<Literal>& arguments, std::string_view name) {
  const LiteralList& list = arguments.size() == 1 && arguments[0].is_list() ? arguments[0].as_list() : arguments;
  if (list.empty()) throw Error(str(name, "() of an empty list"));
  return list;
}

Literal real_function(Function function, const Literal& x) {
  if (!x.is_number()) refuse_operand(str(name_of(function), "()"), x);
  const double value = x.as_double();
  const double result = function == Function::sqrt  ? std::sqrt(value)
                        : function == Function::exp ? std::exp(value)
                        : function == Function::log ? std::log(value)
                                                    : std::log2(value);
  if (std::isnan(result) || (std::isinf(result) && !std::isinf(value))) {
    throw Error(str(name_of(function), "(", x.shown(), ") is not a finite number"));
  }
  return Literal(result);
}

Literal range(const std::vector<Literal>& arguments) {
  const std::int64_t start = arguments.size() > 1 ? arguments[0].as_int() : 0;
  const std::int64_t stop = arguments[arguments.size() > 1 ? 1 : 0].as_int();
  const std::int64_t step = arguments.size() > 2 ? arguments[2].as_int() : 1;
  if (step == 0) throw Error("range(): the step must not be 0");
  LiteralList out;
  for (std::int64_t i = start; step > 0 ? i < stop : i > stop;) {
    check_list_size(out.size() + 1);
    out.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return Literal(std::move(out));
}

Literal sorted(const Literal& list) {
  LiteralList out = list.as_list();
  // Mixed lists are refused before sorting, because the comparison of a sort must not throw.
  for (std::size_t i = 1; i < out.size(); ++i) {
    if (compare(Op::less, out[0], out[i]) == 2) throw Error("sorted(): the list contains not-a-number");
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const Literal& a, const Literal& b) { return compare(Op::less, a, b) < 0; });
  return Literal(std::move(out));
}

Literal zip(const std::vector<Literal>& lists) {
  LiteralList out;
  for (const Literal& list : lists) {
    if (list.as_list().size() != lists[0].as_list().size()) {
      throw Error(str("zip(): lists of ", lists[0].as_list().size(), " and ", list.as_list().size(),
                      " items; give lists of the same length"));
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
  if (arguments.size() != 1) throw Error("sum() of plain values takes one list");
  Literal sum(std::int64_t{0});
  for (const Literal& item : arguments[0].as_list()) sum = apply(Op::add, sum, item);
  return sum;
}

Literal absolute(const Literal& x) {
  if (x.is_double()) return Literal(std::fabs(x.as_double()));
  if (!x.is_int()) refuse_operand("abs()", x);
  return x.as_int() < 0 ? negate(x) : x;
}

Literal extreme(const std::vector<Literal>& arguments, Function function) {
  const std::string_view name = name_of(function);
  const LiteralList& list = all_of(arguments, name);
  const Literal* best = &list[0];
  for (const Literal& item : list) {
    const int side = compare(Op::less, item, *best);
    if (side == (function == Function::min ? -1 : 1)) best = &item;
  }
  if (!best->is_number()) refuse_operand(str(name, "()"), *best);
  return *best;
}

Literal length(const Literal& x) {
  if (x.is_list()) return Literal(static_cast<std::int64_t>(x.as_list().size()));
  if (x.is_map()) return Literal(static_cast<std::int64_t>(x.as_map().size()));
  return Literal(num_characters(x.as_text()));
}

Literal count_true(const Literal& conditions) {
  std::int64_t count = 0;
  for (const Literal& item : conditions.as_list()) count += item.as_bool() ? 1 : 0;
  return Literal(count);
}

Literal parse_integer(const Literal& x) {
  if (x.is_int()) return x;
  if (x.is_double()) return to_integer(std::trunc(x.as_double()), name_of(Function::int_));
  const Literal read = literal_of_scalar(x.as_text());
  if (!read.is_int()) throw Error(str("int('", x.as_text(), "'): the text is not an integer"));
  return read;
}

Literal keys_of(const Literal& map) {
  LiteralList out;
  for (const auto& [key, value] : map.as_map()) out.emplace_back(key);
  return Literal(std::move(out));
}

Literal values_of(const Literal& map) {
  LiteralList out;
  for (const auto& [key, value] : map.as_map()) out.push_back(value);
  return Literal(std::move(out));
}

Literal has_key(const Literal& map, const Literal& key) {
  static_cast<void>(map.as_map());  // throws for other kinds; find() does not
  return Literal(map.find(key_of(key)) != nullptr);
}

Literal with_entry(const Literal& map, const std::string& key, const Literal& value) {
  LiteralMap out = map.as_map();
  for (auto& [other, old] : out) {
    if (other != key) continue;
    old = value;
    return Literal(std::move(out));
  }
  out.emplace_back(key, value);
  return Literal(std::move(out));
}

Literal all_or_any(const Literal& conditions, Function function) {
  if (conditions.as_list().empty()) throw Error(str(name_of(function), "() of an empty list"));
  bool all = true;
  bool any = false;
  for (const Literal& item : conditions.as_list()) {
    all = all && item.as_bool();
    any = any || item.as_bool();
  }
  return Literal(function == Function::all ? all : any);
}

void check_number_of_arguments(const FunctionSpec& spec, std::size_t given) {
  const int count = static_cast<int>(given);
  if (count < spec.min_positional || (spec.max_positional >= 0 && count > spec.max_positional)) {
    throw Error(str(spec.name, "(", spec.signature, ") got ", count, " arguments"));
  }
}

}  // namespace

Literal call_plain(Function function, const std::vector<Literal>& arguments) {
  const std::string_view name = name_of(function);
  check_number_of_arguments(spec_of(function), arguments.size());
  const Literal& x = arguments[0];
  switch (function) {
    case Function::abs:
      return absolute(x);
    case Function::min:
    case Function::max:
      return extreme(arguments, function);
    case Function::sum:
      return total(arguments);
    case Function::round:
      return x.is_int() ? x : to_integer(std::nearbyint(x.as_double()), name);
    case Function::floor:
      return x.is_int() ? x : to_integer(std::floor(x.as_double()), name);
    case Function::ceil:
      return x.is_int() ? x : to_integer(std::ceil(x.as_double()), name);
    case Function::sqrt:
    case Function::exp:
    case Function::log:
    case Function::log2:
      return real_function(function, x);
    case Function::len:
      return length(x);
    case Function::range:
      return range(arguments);
    case Function::sorted:
      return sorted(x);
    case Function::zip:
      return zip(arguments);
    case Function::count:
      return count_true(x);
    case Function::int_:
      return parse_integer(x);
    case Function::text:
      return Literal(x.text());
    case Function::keys:
      return keys_of(x);
    case Function::values:
      return values_of(x);
    case Function::has:
      return has_key(x, arguments[1]);
    case Function::put:
      return with_entry(x, key_of(arguments[1]), arguments[2]);
    case Function::starts_with:
      return Literal(x.as_text().starts_with(arguments[1].as_text()));
    case Function::ends_with:
      return Literal(x.as_text().ends_with(arguments[1].as_text()));
    case Function::matches:
      return Literal(glob_matches(arguments[1].as_text(), x.as_text()));
    case Function::all:
    case Function::any:
      return all_or_any(x, function);
    default:
      throw Error(str(name, "() is not a plain function"));
  }
}

}  // namespace lockstep::scenario
