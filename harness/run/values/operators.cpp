// The operators of the language. An overflow of a 64-bit integer is an error. Operators on tensors are differentiable.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <type_traits>

#include "engine/autograd/ops.hpp"
#include "harness/run/values/evaluate.hpp"
#include "harness/run/values/functions.hpp"
#include "harness/scenario/characters.hpp"
#include "harness/scenario/vocabulary.hpp"

namespace lockstep::run {

using scenario::Op;
using Kind = Value::Kind;

namespace {

[[noreturn]] void no_operator(Op op, const Value& a, const Value& b) {
  throw Error(str("`", name_of(op), "` is not defined for ", describe(a), " and ", describe(b)));
}

[[noreturn]] void overflow(Op op, std::int64_t a, std::int64_t b) {
  throw Error(str(a, " ", name_of(op), " ", b, " does not fit in a 64-bit integer"),
              "make one of them a number: 1.0 * ...");
}

std::int64_t floor_divide(std::int64_t a, std::int64_t b) {
  if (b == 0) throw Error(str(a, " // 0 has no value"));
  if (a == std::numeric_limits<std::int64_t>::min() && b == -1) overflow(Op::floor_divide, a, b);
  const std::int64_t quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

Value integer_power(std::int64_t base, std::int64_t exponent) {
  if (base == 0 && exponent < 0) throw Error(str("0 ** ", exponent, " has no value"));
  if (exponent < 0) return Value(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  std::int64_t result = 1, square = base;
  for (std::int64_t left = exponent; left > 0;) {
    if ((left & 1) && __builtin_mul_overflow(result, square, &result)) overflow(Op::power, base, exponent);
    left >>= 1;
    if (left > 0 && __builtin_mul_overflow(square, square, &square)) overflow(Op::power, base, exponent);
  }
  return Value(result);
}

Value on_integers(Op op, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  switch (op) {
    case Op::add:
      if (__builtin_add_overflow(a, b, &result)) overflow(op, a, b);
      return Value(result);
    case Op::subtract:
      if (__builtin_sub_overflow(a, b, &result)) overflow(op, a, b);
      return Value(result);
    case Op::multiply:
      if (__builtin_mul_overflow(a, b, &result)) overflow(op, a, b);
      return Value(result);
    case Op::divide:
      if (b == 0) throw Error(str(a, " / 0 has no value"));
      return Value(static_cast<double>(a) / static_cast<double>(b));
    case Op::floor_divide:
      return Value(floor_divide(a, b));
    case Op::modulo: {
      if (b == 0) throw Error(str(a, " % 0 has no value"));
      if (b == -1) return Value(std::int64_t{0});
      const std::int64_t rest = a % b;
      return Value(rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest);
    }
    case Op::power:
      return integer_power(a, b);
    default:
      no_operator(op, Value(a), Value(b));
  }
}

Value on_numbers(Op op, double a, double b) {
  switch (op) {
    case Op::add:
      return Value(a + b);
    case Op::subtract:
      return Value(a - b);
    case Op::multiply:
      return Value(a * b);
    case Op::divide:
    case Op::floor_divide:
    case Op::modulo:
      if (b == 0.0) throw Error(str(a, " ", name_of(op), " 0 has no value"));
      if (op == Op::divide) return Value(a / b);
      return Value(op == Op::floor_divide ? scenario::floor_quotient(a, b) : scenario::floor_rest(a, b));
    case Op::power: {
      const double result = std::pow(a, b);
      const bool is_zero_divided = a == 0.0 && b < 0.0;
      if (is_zero_divided || (std::isnan(result) && !std::isnan(a) && !std::isnan(b)))
        throw Error(str(a, " ** ", b, " has no value"));
      return Value(result);
    }
    default:
      no_operator(op, Value(a), Value(b));
  }
}

// Of a tensor with a tensor or a number; nothing where the operator is not defined for them.
template <class Right>
std::optional<Value> on_tensor(Op op, const Tensor& x, const Right& y) {
  switch (op) {
    case Op::add:
      return Value(ops::add(x, y));
    case Op::subtract:
      return Value(ops::sub(x, y));
    case Op::multiply:
      return Value(ops::mul(x, y));
    case Op::divide:
      return Value(ops::div(x, y));
    case Op::matmul:
      if constexpr (std::is_same_v<Right, Tensor>) return Value(ops::matmul(x, y));
      return std::nullopt;
    case Op::power:
      if constexpr (std::is_same_v<Right, Number>) return Value(ops::pow(x, y));
      return std::nullopt;
    default:
      return std::nullopt;
  }
}

std::optional<Value> on_number_and_tensor(Op op, Number x, const Tensor& y) {
  switch (op) {
    case Op::add:
      return Value(ops::add(y, x));
    case Op::subtract:
      return Value(ops::rsub(x, y));
    case Op::multiply:
      return Value(ops::mul(y, x));
    case Op::divide:
      return Value(ops::rdiv(x, y));
    default:
      return std::nullopt;
  }
}

Value on_tensors(Op op, const Value& a, const Value& b) {
  const Tensor* x = a.get_if<Tensor>();
  const Tensor* y = b.get_if<Tensor>();
  std::optional<Value> result;
  if (x && y)
    result = on_tensor(op, *x, *y);
  else if (x && b.is_number())
    result = on_tensor(op, *x, number_of(b, "operand"));
  else if (y && a.is_number())
    result = on_number_and_tensor(op, number_of(a, "operand"), *y);
  if (!result) no_operator(op, a, b);
  return *std::move(result);
}

Value repeated(const List& list, std::int64_t times) {
  List items;
  const auto limit = static_cast<std::int64_t>(scenario::limits::list_items);
  if (times > 0 && static_cast<std::int64_t>(list.size()) > limit / times)
    throw Error(str("a list of ", list.size(), " times ", times, ": at most ", limit, " items are allowed"));
  if (list.empty()) times = 0;
  for (std::int64_t i = 0; i < times; ++i) items.insert(items.end(), list.begin(), list.end());
  return Value::list(std::move(items));
}

Value contains(const Value& item, const Value& container) {
  if (container.is(Kind::list)) {
    const List& list = container.as_list("list");
    return Value(std::any_of(list.begin(), list.end(), [&](const Value& other) { return equal(item, other); }));
  }
  if (container.is(Kind::map)) {
    if (const std::int64_t* integer = item.get_if<std::int64_t>())
      return Value(container.find(Key(*integer)) != nullptr);
    return Value(container.find(Key(item.as_text("a key"))) != nullptr);
  }
  if (const std::string* text = container.get_if<std::string>())
    return Value(text->find(item.as_text("the left side of `in` with a text")) != std::string::npos);
  no_operator(Op::in, item, container);
}

std::int64_t position(std::int64_t index, std::int64_t count, std::string_view container) {
  const std::int64_t at = index < 0 ? index + count : index;
  if (at < 0 || at >= count) throw Error(str("index ", index, " is out of range: ", container, " has ", count));
  return at;
}

// The bounds of a slice of `size` items. Bounds are clamped as in Python.
std::pair<std::int64_t, std::int64_t> bounds(const Value& from, const Value& to, std::int64_t size) {
  const auto clamp = [&](const Value& bound, std::int64_t missing) {
    if (bound.is_none()) return missing;
    const std::int64_t at = bound.as_int("the bound of a slice");
    return std::clamp<std::int64_t>(at < 0 ? at + size : at, 0, size);
  };
  const std::int64_t first = clamp(from, 0);
  return {first, std::max(first, clamp(to, size))};
}

}  // namespace

bool is_less(const Value& a, const Value& b) {
  if (a.is(Kind::integer) && b.is(Kind::integer)) return *a.get_if<std::int64_t>() < *b.get_if<std::int64_t>();
  // Exact for integers that a double cannot represent.
  if (a.is(Kind::integer) && b.is(Kind::number))
    return scenario::compare_values(*a.get_if<std::int64_t>(), *b.get_if<double>()) == -1;
  if (a.is(Kind::number) && b.is(Kind::integer))
    return scenario::compare_values(*b.get_if<std::int64_t>(), *a.get_if<double>()) == 1;
  if (a.is_number() && b.is_number()) return a.as_number("operand") < b.as_number("operand");
  if (a.is(Kind::text) && b.is(Kind::text)) return *a.get_if<std::string>() < *b.get_if<std::string>();
  if (a.is_tensor() || b.is_tensor())
    throw Error("a tensor has no order", "take item() of it, or compare its elements: lt(x, y)");
  throw Error(str(describe(a), " and ", describe(b), " have no order"));
}

Value apply_unary(Op op, const Value& x) {
  if (op == Op::not_) return Value(!x.as_bool("the operand of `not`"));
  if (x.is_tensor()) return Value(ops::neg(*x.get_if<Tensor>()));
  if (const double* number = x.get_if<double>()) return Value(-*number);
  const std::int64_t integer = x.as_int("the operand of `-`");
  if (integer == std::numeric_limits<std::int64_t>::min()) overflow(Op::subtract, 0, integer);
  return Value(-integer);
}

Value apply_binary(Op op, const Value& a, const Value& b) {
  switch (op) {
    case Op::equal:
      return Value(equal(a, b));
    case Op::not_equal:
      return Value(!equal(a, b));
    case Op::less:
      return Value(is_less(a, b));
    case Op::greater:
      return Value(is_less(b, a));
    // Not the negation of `>`: a not-a-number is neither less nor greater.
    case Op::less_equal:
      return Value(is_less(a, b) || equal(a, b));
    case Op::greater_equal:
      return Value(is_less(b, a) || equal(a, b));
    case Op::in:
      return contains(a, b);
    default:
      break;
  }
  if (a.is(Kind::integer) && b.is(Kind::integer))
    return on_integers(op, *a.get_if<std::int64_t>(), *b.get_if<std::int64_t>());
  if (a.is_number() && b.is_number()) return on_numbers(op, a.as_number("operand"), b.as_number("operand"));
  if (a.is(Kind::handle) || b.is(Kind::handle))
    return apply_binary(op, a.is(Kind::handle) ? Value(a.as_tensor("operand")) : a,
                        b.is(Kind::handle) ? Value(b.as_tensor("operand")) : b);
  if (a.is_tensor() || b.is_tensor()) return on_tensors(op, a, b);
  if (op == Op::add && a.is(Kind::text) && b.is(Kind::text)) {
    const std::string &x = *a.get_if<std::string>(), &y = *b.get_if<std::string>();
    scenario::Budget::ask(static_cast<std::int64_t>(x.size() + y.size()),
                          [&] { return str("a text of ", x.size() + y.size(), " characters"); });
    return Value(x + y);
  }
  if (op == Op::add && a.is(Kind::list) && b.is(Kind::list)) {
    List items = a.as_list("list");
    const List& more = b.as_list("list");
    items.insert(items.end(), more.begin(), more.end());
    return Value::list(std::move(items));
  }
  if (op == Op::multiply && a.is(Kind::list) && b.is(Kind::integer))
    return repeated(a.as_list("list"), *b.get_if<std::int64_t>());
  if (op == Op::multiply && a.is(Kind::integer) && b.is(Kind::list))
    return repeated(b.as_list("list"), *a.get_if<std::int64_t>());
  no_operator(op, a, b);
}

Value index_into(const Value& of, const Value& at) {
  switch (of.kind()) {
    case Kind::list: {
      const List& list = of.as_list("list");
      const auto count = static_cast<std::int64_t>(list.size());
      return list[static_cast<std::size_t>(position(at.as_int("the index of a list"), count, "the list"))];
    }
    case Kind::text: {
      const std::string& text = *of.get_if<std::string>();
      const std::int64_t index = position(at.as_int("the index of a text"), scenario::num_characters(text), "the text");
      return Value(std::string(scenario::characters(text, index, index + 1)));
    }
    case Kind::map: {
      const std::int64_t* integer = at.get_if<std::int64_t>();
      const Key key = integer ? Key(*integer) : Key(at.as_text("the key of a map"));
      if (const Value* value = of.find(key)) return *value;
      throw Error(str("the map has no key ", describe(at)), "test has(map, key) first");
    }
    case Kind::module: {
      const nn::ModulePtr& module = *of.get_if<nn::ModulePtr>();
      const std::int64_t index = at.as_int("the index of a module");
      const auto count = static_cast<std::int64_t>(module->children.size());
      return Value(module->children[static_cast<std::size_t>(position(index, count, "the module"))].module);
    }
    case Kind::mesh: {
      std::vector<std::string> axes;
      for (const Value& name : at.as_list("the index of a mesh")) axes.push_back(name.as_text("the name of an axis"));
      return Value(std::make_shared<const DeviceMesh>(of.as_mesh("the indexed value")->slice(axes)));
    }
    case Kind::handle:
    case Kind::tensor: {
      if (of.is(Kind::handle) && of.get_if<Handle>()->result && !of.get_if<Handle>()->result->is_tensor())
        return index_into(*of.get_if<Handle>()->result, at);
      const Tensor& tensor = of.as_tensor("the indexed value");
      if (const Tensor* index = at.get_if<Tensor>())
        return noted_result("index_select", {tensor, *index}, ops::index_select(tensor, 0, *index));
      if (tensor.num_dims() == 0) throw Error("a tensor without dims cannot be indexed", "take item() of it");
      return Value(ops::select(tensor, 0,
                               position(at.as_int("the index of a tensor"), tensor.size(0), "the tensor's first dim")));
    }
    default:
      throw Error(str(describe(of), " cannot be indexed"));
  }
}

Value slice_of(const Value& of, const Value& from, const Value& to) {
  if (const std::string* text = of.get_if<std::string>()) {
    const auto [first, last] = bounds(from, to, scenario::num_characters(*text));
    return Value(std::string(scenario::characters(*text, first, last)));
  }
  if (of.is(Kind::list)) {
    const List& list = of.as_list("list");
    const auto [first, last] = bounds(from, to, static_cast<std::int64_t>(list.size()));
    return Value::list(List(list.begin() + first, list.begin() + last));
  }
  const Tensor& tensor = of.as_tensor("the sliced value");
  if (tensor.num_dims() == 0) throw Error("a tensor without dims cannot be sliced");
  const auto [first, last] = bounds(from, to, tensor.size(0));
  return Value(ops::slice(tensor, 0, first, last));
}

}  // namespace lockstep::run
