// Functions that change a tensor in place and return it.
#include <cmath>
#include <cstdint>

#include "engine/autograd/ops.hpp"
#include "engine/mesh/sharded.hpp"
#include "harness/run/values/functions.hpp"

namespace lockstep::run::functions {

namespace {

// Calls one of two functions: for a number, or for a tensor. A bool is a tensor without dims, because its type counts.
template <class OnNumber, class OnTensor>
Value change(const CallArguments& call, OnNumber&& on_number, OnTensor&& on_tensor) {
  const Tensor& x = call.tensor(0, "x");
  const Value& value = call.at(1, "value");
  if (value.is_tensor()) {
    on_tensor(x, value.as_tensor("value"));
  } else if (const bool* flag = value.get_if<bool>(); flag && !x.is_sharded()) {
    on_tensor(x, lockstep::full(Dims(), *flag ? 1.0 : 0.0, DType::boolean, x.device()));
  } else {
    const Number number = number_of(value, "value");
    if (!is_floating(x.dtype()) && value.is(Value::Kind::number))
      throw Error(str("a floating-point number into ", describe_sharded(x)), "cast the target, or give an integer");
    on_number(x, number);
  }
  return Value(x);
}

// alpha * value as it is added to x; exact for an integer x, whose value is an integer.
Number scaled(const Tensor& x, Number value, double alpha) {
  if (alpha == 1.0) return value;
  if (is_floating(x.dtype())) return alpha * value.value();
  constexpr double beyond = 0x1p63;
  if (std::trunc(alpha) != alpha || std::abs(alpha) >= beyond)
    throw Error(str("add_: alpha ", alpha, " for ", describe_sharded(x)), "give an integer, or cast the target");
  std::int64_t product = 0;
  if (__builtin_mul_overflow(static_cast<std::int64_t>(alpha), value.integer(), &product))
    throw Error(str("add_: ", alpha, " * ", value.integer(), " does not fit in a 64-bit integer"));
  return product;
}

}  // namespace

Value add_in_place(const CallArguments& call) {
  const double alpha = number_at(call, "alpha", 1.0);
  return change(
      call, [alpha](const Tensor& x, Number value) { ops::add_(x, scaled(x, value, alpha)); },
      [alpha](const Tensor& x, const Tensor& value) { ops::add_(x, value, alpha); });
}

Value sub_in_place(const CallArguments& call) {
  return change(
      call, [](const Tensor& x, Number value) { ops::sub_(x, value); },
      [](const Tensor& x, const Tensor& value) { ops::sub_(x, value); });
}

Value mul_in_place(const CallArguments& call) {
  return change(
      call, [](const Tensor& x, Number value) { ops::mul_(x, value); },
      [](const Tensor& x, const Tensor& value) { ops::mul_(x, value); });
}

Value div_in_place(const CallArguments& call) {
  return change(
      call, [](const Tensor& x, Number value) { ops::div_(x, value.value()); },
      [](const Tensor& x, const Tensor& value) { ops::div_(x, value); });
}

Value relu_in_place(const CallArguments& call) {
  const Tensor& x = call.tensor(0, "x");
  ops::relu_(x);
  return Value(x);
}

Value fill_in_place(const CallArguments& call) {
  const Tensor& x = call.tensor(0, "x");
  const Value& value = call.at(1, "value");
  const bool* flag = value.get_if<bool>();
  ops::fill_(x, flag ? Number(*flag) : number_of(value, "value"));
  return Value(x);
}

Value zero_in_place(const CallArguments& call) {
  const Tensor& x = call.tensor(0, "x");
  ops::zero_(x);
  return Value(x);
}

Value copy_in_place(const CallArguments& call) {
  const Tensor& x = call.tensor(0, "x");
  ops::copy_(x, call.tensor(1, "from"));
  return Value(x);
}

}  // namespace lockstep::run::functions
