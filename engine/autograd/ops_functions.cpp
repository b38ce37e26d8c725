#include "engine/autograd/ops_gradients.hpp"
#include "engine/autograd/ops_on_sharded.hpp"

namespace lockstep::ops {

Tensor neg(const Tensor& a) {
  if (is_sharded(a)) [[unlikely]]
    return on_sharded("neg", a, Keeps::sums, [](const Tensor& x) { return neg(x); });
  return record("neg", computed("neg", [&] { return raw::neg(a); }), {a}, {},
                [](const Backward& at) -> Gradients { return {raw::neg(at.grad())}; });
}

// If the derivative is a function of the result, the result is saved instead of the input.
Tensor sqrt(const Tensor& a) {
  if (is_sharded(a)) [[unlikely]]
    return on_sharded("sqrt", a, Keeps::nothing, [](const Tensor& x) { return sqrt(x); });
  const Tensor result = computed("sqrt", [&] { return raw::sqrt(a); });
  return record("sqrt", result, {a}, {result},
                [](const Backward& at) -> Gradients { return {raw::div(at.grad(), raw::mul(at.saved(0), 2.0))}; });
}

Tensor rsqrt(const Tensor& a) {
  if (is_sharded(a)) [[unlikely]]
    return on_sharded("rsqrt", a, Keeps::nothing, [](const Tensor& x) { return rsqrt(x); });
  const Tensor result = computed("rsqrt", [&] { return raw::rsqrt(a); });
  return record("rsqrt", result, {a}, {result}, [](const Backward& at) -> Gradients {
    return {raw::mul(raw::mul(at.grad(), raw::pow(at.saved(0), 3.0)), -0.5)};
  });
}

Tensor exp(const Tensor& a) {
  if (is_sharded(a)) [[unlikely]]
    return on_sharded("exp", a, Keeps::nothing, [](const Tensor& x) { return exp(x); });
  const Tensor result = computed("exp", [&] { return raw::exp(a); });
  return record("exp", result, {a}, {result},
                [](const Backward& at) -> Gradients { return {raw::mul(at.grad(), at.saved(0))}; });
}

Tensor log(const Tensor& a) {
  if (is_sharded(a)) [[unlikely]]
    return on_sharded("log", a, Keeps::nothing, [](const Tensor& x) { return log(x); });
  return record("log", computed("log", [&] { return raw::log(a); }), {a}, {a},
                [](const Backward& at) -> Gradients { return {raw::div(at.grad(), at.saved(0))}; });
}

Tensor abs(const Tensor& a) {
  if (is_sharded(a)) [[unlikely]]
    return on_sharded("abs", a, Keeps::nothing, [](const Tensor& x) { return abs(x); });
  return record("abs", computed("abs", [&] { return raw::abs(a); }), {a}, {a},
                [](const Backward& at) -> Gradients { return {raw::mul(at.grad(), raw::sign(at.saved(0)))}; });
}

Tensor relu(const Tensor& a) {
  if (is_sharded(a)) [[unlikely]]
    return on_sharded("relu", a, Keeps::nothing, [](const Tensor& x) { return relu(x); });
  const Tensor result = computed("relu", [&] { return raw::relu(a); });
  return record("relu", result, {a}, {result},
                [](const Backward& at) -> Gradients { return {raw::relu_backward(at.grad(), at.saved(0))}; });
}

Tensor pow(const Tensor& a, Number exponent) {
  if (is_sharded(a)) [[unlikely]]
    return on_sharded("pow", a, Keeps::nothing, [=](const Tensor& x) { return pow(x, exponent); });
  return record("pow", computed("pow", [&] { return raw::pow(a, exponent); }), {a}, {a},
                [exponent = exponent.value()](const Backward& at) -> Gradients {
                  if (exponent == 0.0)
                    return {zeros(at.sizes(0), at.dtype(0), at.device(0))};  // also for elements that are 0
                  return {raw::mul(at.grad(), raw::mul(raw::pow(at.saved(0), exponent - 1.0), exponent))};
                });
}

}  // namespace lockstep::ops
