#include <cmath>

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

// Casts and broadcasts the operands to the common type and sizes and launches the kernel.
Tensor binary(const char* name, BinaryKernel kernel, const Tensor& a, const Tensor& b, DType dtype) {
  const Dims sizes = broadcast_sizes(a.sizes(), b.sizes(), name);
  const Tensor out = empty(sizes, dtype, a.device());
  run_kernel(name, kernel, out, broadcast(cast(a, dtype), sizes), broadcast(cast(b, dtype), sizes));
  return out;
}
Tensor binary(const char* name, BinaryKernel kernel, const Tensor& a, const Tensor& b) {
  require_same_device(name, a, b);
  return binary(name, kernel, a, b, promote(a.dtype(), b.dtype()));
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

bool is_integer(double number) { return std::trunc(number) == number && std::fabs(number) < 9.2e18; }

// The operand for a constant: an integer tensor stays for a constant without a fraction and becomes float32 for any
// other; bool counts as int64.
Tensor for_number(const char* name, const Tensor& a, double number) {
  require_defined(name, a);
  if (is_floating(a.dtype())) return a;
  if (!is_integer(number)) return cast(a, DType::float32);
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
Tensor as_floating(const char* name, const Tensor& a) {
  require_defined(name, a);
  return is_floating(a.dtype()) ? a : cast(a, DType::float32);
}

}  // namespace

Tensor add(const Tensor& a, const Tensor& b) { return binary("add", kernels::add, a, b); }
Tensor sub(const Tensor& a, const Tensor& b) {
  require_not_bool("sub", a);
  return binary("sub", kernels::sub, a, b);
}
Tensor mul(const Tensor& a, const Tensor& b) { return binary("mul", kernels::mul, a, b); }
Tensor div(const Tensor& a, const Tensor& b) {
  require_same_device("div", a, b);
  const DType dtype = promote(a.dtype(), b.dtype());
  return binary("div", kernels::div, a, b, is_floating(dtype) ? dtype : DType::float32);
}
Tensor maximum(const Tensor& a, const Tensor& b) { return binary("maximum", kernels::maximum, a, b); }
Tensor minimum(const Tensor& a, const Tensor& b) { return binary("minimum", kernels::minimum, a, b); }

Tensor add(const Tensor& a, double b) { return with_number("add", kernels::add_number, for_number("add", a, b), b); }
Tensor sub(const Tensor& a, double b) { return with_number("sub", kernels::add_number, for_number("sub", a, b), -b); }
Tensor rsub(double a, const Tensor& b) {
  return with_number("rsub", kernels::rsub_number, for_number("rsub", b, a), a);
}
Tensor mul(const Tensor& a, double b) { return with_number("mul", kernels::mul_number, for_number("mul", a, b), b); }
Tensor div(const Tensor& a, double b) { return with_number("div", kernels::div_number, as_floating("div", a), b); }
Tensor rdiv(double a, const Tensor& b) { return with_number("rdiv", kernels::rdiv_number, as_floating("rdiv", b), a); }
Tensor pow(const Tensor& a, double exponent) {
  require_defined("pow", a);
  const bool keeps_integers = is_integer(exponent) && exponent >= 0.0;
  const Tensor base = keeps_integers ? for_number("pow", a, exponent) : as_floating("pow", a);
  return with_number("pow", kernels::pow_number, base, exponent);
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
