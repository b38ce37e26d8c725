// Functions on plain values. Those that also take tensors (abs, sum, sqrt, exp, log) are in functions_tensor.cpp.
#include <algorithm>
#include <cmath>
#include <limits>

#include "harness/run/values/evaluate.hpp"
#include "harness/run/values/functions.hpp"
#include "harness/run/values/paths.hpp"
#include "harness/scenario/characters.hpp"

namespace lockstep::run::functions {

namespace {

// The smallest argument in the order of `is_before`.
template <class IsBefore>
Value extreme(const CallArguments& call, IsBefore&& is_before) {
  const List items = call.rest(0);
  if (items.empty()) throw Error("needs at least one value");
  const Value* best = &items[0];
  best->as_number("an argument");
  for (const Value& item : items) {
    item.as_number("an argument");
    if (is_before(item, *best)) best = &item;
  }
  return *best;
}

Value to_integer(double x) {
  if (!(x >= -9223372036854775808.0 && x < 9223372036854775808.0))
    throw Error(str(x, " does not fit in a 64-bit integer"));
  return Value(static_cast<std::int64_t>(x));
}

template <class Round>
Value rounded(const CallArguments& call, Round&& round) {
  const Value& x = call.at(0, "x");
  if (x.is(Value::Kind::integer)) return x;
  return to_integer(round(x.as_number("x")));
}

const List& conditions(const CallArguments& call) {
  const List& items = call.at(0, "xs").as_list("xs");
  for (const Value& item : items) item.as_bool("an item");
  return items;
}

Key key_of(const Value& value) {
  if (const std::int64_t* integer = value.get_if<std::int64_t>()) return Key(*integer);
  return Key(value.as_text("key"));
}

}  // namespace

Value min(const CallArguments& call) {
  return extreme(call, [](const Value& a, const Value& b) { return is_less(a, b); });
}
Value max(const CallArguments& call) {
  return extreme(call, [](const Value& a, const Value& b) { return is_less(b, a); });
}
Value round(const CallArguments& call) {
  return rounded(call, [](double x) { return std::nearbyint(x); });
}
Value floor(const CallArguments& call) {
  return rounded(call, [](double x) { return std::floor(x); });
}
Value ceil(const CallArguments& call) {
  return rounded(call, [](double x) { return std::ceil(x); });
}
Value log2(const CallArguments& call) {
  const double x = call.at(0, "x").as_number("x");
  if (x <= 0.0) throw Error(str("x is ", x, "; it must be greater than 0"));
  return Value(std::log2(x));
}

Value len(const CallArguments& call) {
  const Value& x = call.at(0, "x");
  if (const std::string* text = x.get_if<std::string>()) return Value(scenario::num_characters(*text));
  if (x.is(Value::Kind::map)) return Value(static_cast<std::int64_t>(x.as_map("x").size()));
  return Value(static_cast<std::int64_t>(x.as_list("x").size()));
}

Value range(const CallArguments& call) {
  const std::int64_t first = call.integer(0, "start_or_stop");
  const Value* second = call.find(1, "stop");
  const Value* third = call.find(2, "step");
  const std::int64_t start = second ? first : 0;
  const std::int64_t stop = second ? second->as_int("stop") : first;
  const std::int64_t step = third ? third->as_int("step") : 1;
  if (step == 0) throw Error("the step must not be 0");
  List items;
  for (std::int64_t i = start; step > 0 ? i < stop : i > stop; i += step) {
    items.push_back(Value(i));
    if (items.size() > scenario::limits::list_items) break;  // Value::list throws
    if (step > 0 ? i > std::numeric_limits<std::int64_t>::max() - step
                 : i < std::numeric_limits<std::int64_t>::min() - step)
      break;
  }
  return Value::list(std::move(items));
}

Value sorted(const CallArguments& call) {
  List items = call.at(0, "xs").as_list("xs");
  std::stable_sort(items.begin(), items.end(), [](const Value& a, const Value& b) { return is_less(a, b); });
  return Value::list(std::move(items));
}

Value zip(const CallArguments& call) {
  if (call.positional.empty()) throw Error("needs at least one list");
  const std::size_t size = call.positional[0].as_list("xs").size();
  for (const Value& list : call.positional)
    if (list.as_list("xs").size() != size)
      throw Error(str("lists of different length: ", size, " and ", list.as_list("xs").size()));
  List rows;
  for (std::size_t i = 0; i < size; ++i) {
    List row;
    for (const Value& list : call.positional) row.push_back(list.as_list("xs")[i]);
    rows.push_back(Value::list(std::move(row)));
  }
  return Value::list(std::move(rows));
}

Value count(const CallArguments& call) {
  const List& items = conditions(call);
  return Value(static_cast<std::int64_t>(
      std::count_if(items.begin(), items.end(), [](const Value& item) { return item.as_bool("an item"); })));
}

Value int_(const CallArguments& call) {
  const Value& x = call.at(0, "x");
  if (x.is(Value::Kind::integer)) return x;
  if (const std::string* text = x.get_if<std::string>()) {
    const scenario::Literal literal = scenario::literal_of_scalar(*text);
    if (!literal.is_int()) throw Error(str("'", *text, "' is no integer"));
    return Value(literal.as_int());
  }
  return to_integer(std::trunc(x.as_number("x")));
}

Value text(const CallArguments& call) { return Value(to_text(call.at(0, "x"))); }

Value keys(const CallArguments& call) {
  List items;
  for (const auto& [key, value] : call.at(0, "map").as_map("map"))
    items.push_back(key.integer ? Value(std::int64_t{std::stoll(key.text)}) : Value(key.text));
  return Value::list(std::move(items));
}

Value values(const CallArguments& call) {
  List items;
  for (const auto& [key, value] : call.at(0, "map").as_map("map")) items.push_back(value);
  return Value::list(std::move(items));
}

Value has(const CallArguments& call) {
  call.at(0, "map").as_map("map");
  return Value(call.at(0, "map").find(key_of(call.at(1, "key"))) != nullptr);
}

Value put(const CallArguments& call) {
  Map map = call.at(0, "map").as_map("map");
  set_entry(map, key_of(call.at(1, "key")), call.at(2, "value"));
  return Value::map(std::move(map));
}

Value starts_with(const CallArguments& call) {
  return Value(call.at(0, "text").as_text("text").starts_with(call.at(1, "start").as_text("start")));
}
Value ends_with(const CallArguments& call) {
  return Value(call.at(0, "text").as_text("text").ends_with(call.at(1, "end").as_text("end")));
}
Value matches(const CallArguments& call) {
  return Value(glob_matches(call.at(1, "pattern").as_text("pattern"), call.at(0, "text").as_text("text")));
}

Value all(const CallArguments& call) {
  const List& items = conditions(call);
  if (items.empty()) throw Error("an empty list has no result");
  return Value(std::all_of(items.begin(), items.end(), [](const Value& item) { return item.as_bool("an item"); }));
}
Value any(const CallArguments& call) {
  const List& items = conditions(call);
  if (items.empty()) throw Error("an empty list has no result");
  return Value(std::any_of(items.begin(), items.end(), [](const Value& item) { return item.as_bool("an item"); }));
}

}  // namespace lockstep::run::functions
