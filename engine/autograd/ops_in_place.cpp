#include <cmath>

#include "engine/autograd/node.hpp"
#include "engine/autograd/ops_gradients.hpp"
#include "engine/autograd/ops_on_sharded.hpp"
#include "engine/core/error.hpp"

namespace lockstep::ops {

namespace {

// The value as the kernel reads it: the local shard of a sharded one. Throws, before the memory is written, where the
// operation may not change `to`.
Tensor checked(const char* name, const Tensor& to, const Tensor& value, Keeps keeps) {
  if (any_sharded(to, value)) [[unlikely]] {
    Tensor local = in_place_value(name, to, value, keeps);
    require_changeable(name, to, {to, local});
    return local;
  }
  require_changeable(name, to, {to, value});
  return value;
}

void check(const char* name, const Tensor& to, Keeps keeps) {
  if (is_sharded(to)) [[unlikely]]
    require_in_place(name, to, keeps);
  require_changeable(name, to, {to});
}

// A number as a scalar of the type of an integer tensor.
Tensor scalar_for(const char* name, const Tensor& to, Number value) {
  const DType dtype = to.dtype() == DType::boolean ? DType::int64 : to.dtype();
  if (value.is_integer()) return from_values(std::vector<std::int64_t>{value.integer()}, Dims(), dtype, to.device());
  if (std::trunc(value.value()) != value.value())
    throw Error(str(name, ": the number ", value.value(), " into ", describe(to)),
                "cast the target to a floating-point type");
  return from_values(std::vector<double>{value.value()}, Dims(), dtype, to.device());
}

// The derivative in the layout of the target.
Tensor like_result(const Backward& at, const Tensor& grad) { return sharded_like(grad, at.grad()); }
Tensor local_grad(const Backward& at) { return local_tensor(at.grad()); }

Gradients passed_on(const Backward& at) { return {at.grad()}; }
// The gradient of values that are replaced: zeros, as in PyTorch, so that the operands count as used.
Tensor of_replaced(const Backward& at) { return at.needs(0) ? zeros_like(at.grad()) : Tensor(); }
Gradients replaced(const Backward& at) { return {of_replaced(at)}; }

}  // namespace

void add_(const Tensor& to, const Tensor& value, double alpha) {
  const Tensor by = checked("add_", to, value, Keeps::sums);
  raw::add_(to, by, alpha);
  record_in_place("add_", to, {to, by}, {}, [alpha](const Backward& at) -> Gradients {
    Gradients grads(2);
    if (at.needs(0)) grads[0] = at.grad();
    if (at.needs(1)) grads[1] = fit(at, 1, alpha == 1.0 ? local_grad(at) : raw::mul(local_grad(at), alpha));
    return grads;
  });
}

void add_(const Tensor& to, Number value) {
  check("add_", to, Keeps::nothing);
  if (is_floating(to.dtype()))
    raw::add_(to, value.value());
  else
    raw::add_(to, scalar_for("add_", to, value));
  record_in_place("add_", to, {to}, {}, passed_on);
}

void sub_(const Tensor& to, const Tensor& value) {
  const Tensor by = checked("sub_", to, value, Keeps::sums);
  raw::sub_(to, by);
  record_in_place("sub_", to, {to, by}, {}, [](const Backward& at) -> Gradients {
    return {at.needs(0) ? at.grad() : Tensor(), at.needs(1) ? raw::neg(fit(at, 1, local_grad(at))) : Tensor()};
  });
}

void sub_(const Tensor& to, Number value) {
  check("sub_", to, Keeps::nothing);
  if (is_floating(to.dtype()))
    raw::sub_(to, value.value());
  else
    raw::sub_(to, scalar_for("sub_", to, value));
  record_in_place("sub_", to, {to}, {}, passed_on);
}

namespace {

// The operand of a product or quotient, to be saved: a copy if the operation overwrites it.
Tensor kept_operand(const Tensor& to, const Tensor& operand) {
  return operand.storage() == to.storage() ? raw::clone(operand) : operand;
}

}  // namespace

void mul_(const Tensor& to, const Tensor& value) {
  const Tensor by = checked("mul_", to, value, Keeps::nothing);
  const bool records = recording({to, by});
  const Tensor before = records && requires_grad(by) ? raw::clone(to) : Tensor();
  const Tensor factor = records && requires_grad(to) ? kept_operand(to, by) : Tensor();
  raw::mul_(to, by);
  record_in_place("mul_", to, {to, by}, {before, factor}, [](const Backward& at) -> Gradients {
    return {at.needs(0) ? like_result(at, fit(at, 0, raw::mul(local_grad(at), at.saved(1)))) : Tensor(),
            at.needs(1) ? fit(at, 1, raw::mul(local_grad(at), at.saved(0))) : Tensor()};
  });
}

void mul_(const Tensor& to, Number value) {
  check("mul_", to, Keeps::sums);
  if (is_floating(to.dtype()))
    raw::mul_(to, value.value());
  else
    raw::mul_(to, scalar_for("mul_", to, value));
  record_in_place("mul_", to, {to}, {}, [value](const Backward& at) -> Gradients {
    return {like_result(at, raw::mul(local_grad(at), value))};
  });
}

void div_(const Tensor& to, const Tensor& value) {
  const Tensor by = checked("div_", to, value, Keeps::nothing);
  const bool records = recording({to, by});
  const Tensor before = records && requires_grad(by) ? raw::clone(to) : Tensor();
  const Tensor divisor = records ? kept_operand(to, by) : Tensor();
  raw::div_(to, by);
  record_in_place("div_", to, {to, by}, {before, divisor}, [](const Backward& at) -> Gradients {
    const Tensor grad = local_grad(at);
    Gradients grads(2);
    if (at.needs(0)) grads[0] = like_result(at, fit(at, 0, raw::div(grad, at.saved(1))));
    if (at.needs(1))  // -grad * (before / divisor) / divisor
      grads[1] = fit(at, 1, raw::neg(raw::mul(grad, raw::div(raw::div(at.saved(0), at.saved(1)), at.saved(1)))));
    return grads;
  });
}

void div_(const Tensor& to, double value) {
  check("div_", to, Keeps::sums);
  raw::div_(to, value);
  record_in_place("div_", to, {to}, {}, [value](const Backward& at) -> Gradients {
    return {like_result(at, raw::div(local_grad(at), value))};
  });
}

void relu_(const Tensor& to) {
  check("relu_", to, Keeps::nothing);
  raw::relu_(to);
  record_in_place("relu_", to, {to}, {local_tensor(to)}, [](const Backward& at) -> Gradients {
    return {like_result(at, raw::relu_backward(local_grad(at), at.saved(0)))};
  });
}

void copy_(const Tensor& to, const Tensor& from) {
  const bool are_sharded = is_sharded(to) && is_sharded(from);
  const bool keeps_partial = !are_sharded || converts_summands(from.dtype(), to.dtype());
  const Tensor source = checked("copy_", to, from, keeps_partial ? Keeps::all : Keeps::nothing);
  raw::copy_(to, source);
  record_in_place("copy_", to, {to, source}, {}, [](const Backward& at) -> Gradients {
    return {of_replaced(at), at.needs(1) ? raw::to_device(fit(at, 1, local_grad(at)), at.device(1)) : Tensor()};
  });
}

void zero_(const Tensor& to) {
  check("zero_", to, Keeps::all);
  raw::zero_(to);
  record_in_place("zero_", to, {to}, {}, replaced);
}

void fill_(const Tensor& to, Number value) {
  check("fill_", to, Keeps::nothing);
  raw::fill_(to, value);
  record_in_place("fill_", to, {to}, {}, replaced);
}

}  // namespace lockstep::ops
