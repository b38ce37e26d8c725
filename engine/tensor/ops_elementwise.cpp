#include <cstdint>
#include <limits>
#include <vector>

#include "engine/core/error.hpp"
#include "engine/kernels/elementwise.hpp"
#include "engine/tensor/ops.hpp"
#include "engine/tensor/ops_launch.hpp"

namespace lockstep::raw {

namespace {

using BinaryKernel = void (*)(kernels::Execution, const kernels::View&, const kernels::View&, const kernels::View&);
using UnaryKernel = void (*)(kernels::Execution, const kernels::View&, const kernels::View&);
using NumberKernel = void (*)(kernels::Execution, const kernels::View&, const kernels::View&, double);

Tensor broadcast(const Tensor& a, const Dims& sizes) { return a.sizes() == sizes ? a : expand(a, sizes); }

// Broadcasts the operands, which have the types that the kernel reads, and launches the kernel.
Tensor launch_binary(const char* name, BinaryKernel kernel, const Tensor& a, const Tensor& b, DType dtype) {
  const Dims sizes = broadcast_sizes(a.sizes(), b.sizes(), name);
  const Tensor out = empty(sizes, dtype, a.device());
  run_kernel(name, kernel, out, broadcast(a, sizes), broadcast(b, sizes));
  return out;
}
Tensor binary(const char* name, BinaryKernel kernel, const Tensor& a, const Tensor& b) {
  require_same_device(name, a, b);
  const DType dtype = result_type(a, b);
  return launch_binary(name, kernel, cast(a, dtype), cast(b, dtype), dtype);
}
// A product or a quotient.
Tensor binary_by_factor(const char* name, BinaryKernel kernel, const Tensor& a, const Tensor& b, DType dtype) {
  return launch_binary(name, kernel, cast(a, dtype), factor_in(b, dtype), dtype);
}

Tensor unary(const char* name, UnaryKernel kernel, const Tensor& a) {
  const Tensor out = empty(a.sizes(), a.dtype(), a.device());
  run_kernel(name, kernel, out, a);
  return out;
}
Tensor unary_floating(const char* name, UnaryKernel kernel, const Tensor& a) {
  require_floating(name, a);
  return unary(name, kernel, a);
}

[[noreturn]] void fail_number(const char* name, const Tensor& a, std::int64_t number) {
  throw Error(str(name, ": ", number, " does not fit int32, the type of ", describe(a)), "cast the tensor to int64");
}

// The operand for a number: an integer tensor stays beside an integer and becomes float32 beside any other number; bool
// counts as int64.
Tensor for_number(const char* name, const Tensor& a, Number number) {
  require_defined(name, a);
  if (is_floating(a.dtype())) return a;
  if (!number.is_integer()) return cast(a, DType::float32);
  using Narrow = std::numeric_limits<std::int32_t>;
  if (a.dtype() == DType::int32 && (number.integer() < Narrow::min() || number.integer() > Narrow::max()))
    fail_number(name, a, number.integer());
  return a.dtype() == DType::boolean ? cast(a, DType::int64) : a;
}
Tensor with_number(const char* name, NumberKernel kernel, const Tensor& a, double number) {
  const Tensor out = empty(a.sizes(), a.dtype(), a.device());
  run_kernel(
      name,
      [kernel, number](kernels::Execution execution, const kernels::View& to, const kernels::View& from) {
        kernel(execution, to, from, number);
      },
      out, a);
  return out;
}
// Kernels take the number as a double. An integer that a double cannot represent becomes a tensor, so that int64
// results are exact. An int64 operand of for_number() stands beside an integer.
bool needs_tensor(const Tensor& a, Number number) { return a.dtype() == DType::int64 && !number.is_exact(); }
Tensor as_tensor(Number number, const Tensor& like) {
  return from_values(std::vector<std::int64_t>{number.integer()}, {}, DType::int64, like.device());
}
Tensor as_floating(const char* name, const Tensor& a) {
  require_defined(name, a);
  return is_floating(a.dtype()) ? a : cast(a, DType::float32);
}

// bool, integers, floating-point types.
int kind_of(DType dtype) { return is_floating(dtype) ? 2 : dtype == DType::boolean ? 0 : 1; }

}  // namespace

DType result_type(const Tensor& a, const Tensor& b) {
  const bool a_has_dims = a.num_dims() > 0, b_has_dims = b.num_dims() > 0;
  if (a_has_dims != b_has_dims) {
    const Tensor &with_dims = a_has_dims ? a : b, &without = a_has_dims ? b : a;
    if (kind_of(without.dtype()) <= kind_of(with_dims.dtype())) return with_dims.dtype();
  }
  return promote(a.dtype(), b.dtype());
}

Tensor add(const Tensor& a, const Tensor& b) { return binary("add", kernels::add, a, b); }
Tensor sub(const Tensor& a, const Tensor& b) {
  require_not_bool("sub", a);
  require_not_bool("sub", b);
  return binary("sub", kernels::sub, a, b);
}
Tensor mul(const Tensor& a, const Tensor& b) {
  require_same_device("mul", a, b);
  return binary_by_factor("mul", kernels::mul, a, b, result_type(a, b));
}
Tensor div(const Tensor& a, const Tensor& b) {
  require_same_device("div", a, b);
  const DType dtype = result_type(a, b);
  return binary_by_factor("div", kernels::div, a, b, is_floating(dtype) ? dtype : DType::float32);
}
Tensor maximum(const Tensor& a, const Tensor& b) { return binary("maximum", kernels::maximum, a, b); }
Tensor minimum(const Tensor& a, const Tensor& b) { return binary("minimum", kernels::minimum, a, b); }

Tensor add(const Tensor& a, Number b) {
  const Tensor x = for_number("add", a, b);
  if (needs_tensor(x, b)) return add(x, as_tensor(b, x));
  return with_number("add", kernels::add_number, x, b.value());
}
Tensor sub(const Tensor& a, Number b) {
  require_not_bool("sub", a);
  const Tensor x = for_number("sub", a, b);
  if (needs_tensor(x, b)) return sub(x, as_tensor(b, x));
  return with_number("sub", kernels::add_number, x, -b.value());
}
Tensor rsub(Number a, const Tensor& b) {
  require_not_bool("rsub", b);
  const Tensor x = for_number("rsub", b, a);
  if (needs_tensor(x, a)) return sub(as_tensor(a, x), x);
  return with_number("rsub", kernels::rsub_number, x, a.value());
}
Tensor mul(const Tensor& a, Number b) {
  const Tensor x = for_number("mul", a, b);
  if (needs_tensor(x, b)) return mul(x, as_tensor(b, x));
  return with_number("mul", kernels::mul_number, x, b.value());
}
Tensor div(const Tensor& a, Number b) {
  return with_number("div", kernels::div_number, as_floating("div", a), b.value());
}
Tensor rdiv(Number a, const Tensor& b) {
  return with_number("rdiv", kernels::rdiv_number, as_floating("rdiv", b), a.value());
}
Tensor pow(const Tensor& a, Number exponent) {
  const bool keeps_integers = exponent.is_integer() && exponent.integer() >= 0;
  const Tensor base = keeps_integers ? for_number("pow", a, exponent) : as_floating("pow", a);
  return with_number("pow", kernels::pow_number, base, exponent.value());
}

Tensor neg(const Tensor& a) {
  require_not_bool("neg", a);
  return unary("neg", kernels::neg, a);
}
Tensor abs(const Tensor& a) {
  require_not_bool("abs", a);
  return unary("abs", kernels::abs, a);
}
Tensor sign(const Tensor& a) {
  require_not_bool("sign", a);
  return unary("sign", kernels::sign, a);
}
Tensor relu(const Tensor& a) {
  require_not_bool("relu", a);
  return unary("relu", kernels::relu, a);
}
Tensor sqrt(const Tensor& a) { return unary_floating("sqrt", kernels::sqrt, a); }
Tensor rsqrt(const Tensor& a) { return unary_floating("rsqrt", kernels::rsqrt, a); }
Tensor exp(const Tensor& a) { return unary_floating("exp", kernels::exp, a); }
Tensor log(const Tensor& a) { return unary_floating("log", kernels::log, a); }

Tensor relu_backward(const Tensor& grad, const Tensor& result) {
  require_floating("relu_backward", grad);
  return binary("relu_backward", kernels::relu_backward, grad, result);
}

}  // namespace lockstep::raw
