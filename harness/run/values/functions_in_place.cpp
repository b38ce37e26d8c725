// Functions that change a tensor in place and return it.
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
    const double number = value.as_number("value");
    if (!is_floating(x.dtype()) && value.is(Value::Kind::number))
      throw Error(str("a floating-point number into ", describe_sharded(x)), "cast the target, or give an integer");
    on_number(x, number);
  }
  return Value(x);
}

}  // namespace

Value add_in_place(const CallArguments& call) {
  const double alpha = number_at(call, "alpha", 1.0);
  return change(
      call, [alpha](const Tensor& x, double value) { ops::add_(x, alpha * value); },
      [alpha](const Tensor& x, const Tensor& value) { ops::add_(x, value, alpha); });
}

Value sub_in_place(const CallArguments& call) {
  return change(
      call, [](const Tensor& x, double value) { ops::sub_(x, value); },
      [](const Tensor& x, const Tensor& value) { ops::sub_(x, value); });
}

Value mul_in_place(const CallArguments& call) {
  return change(
      call, [](const Tensor& x, double value) { ops::mul_(x, value); },
      [](const Tensor& x, const Tensor& value) { ops::mul_(x, value); });
}

Value div_in_place(const CallArguments& call) {
  return change(
      call, [](const Tensor& x, double value) { ops::div_(x, value); },
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
  ops::fill_(x, flag ? (*flag ? 1.0 : 0.0) : value.as_number("value"));
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
