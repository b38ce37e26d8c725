#include "engine/autograd/ops_gradients.hpp"

namespace lockstep::ops {

Tensor neg(const Tensor& a) {
  return record("neg", raw::neg(a), {a}, {}, [](const Backward& at) -> Gradients { return {raw::neg(at.grad())}; });
}

// Where the result tells the derivative, the result is kept and not the input.
Tensor sqrt(const Tensor& a) {
  const Tensor result = raw::sqrt(a);
  return record("sqrt", result, {a}, {result},
                [](const Backward& at) -> Gradients { return {raw::div(at.grad(), raw::mul(at.saved(0), 2.0))}; });
}

Tensor rsqrt(const Tensor& a) {
  const Tensor result = raw::rsqrt(a);
  return record("rsqrt", result, {a}, {result}, [](const Backward& at) -> Gradients {
    return {raw::mul(raw::mul(at.grad(), raw::pow(at.saved(0), 3.0)), -0.5)};
  });
}

Tensor exp(const Tensor& a) {
  const Tensor result = raw::exp(a);
  return record("exp", result, {a}, {result},
                [](const Backward& at) -> Gradients { return {raw::mul(at.grad(), at.saved(0))}; });
}

Tensor log(const Tensor& a) {
  return record("log", raw::log(a), {a}, {a},
                [](const Backward& at) -> Gradients { return {raw::div(at.grad(), at.saved(0))}; });
}

Tensor abs(const Tensor& a) {
  return record("abs", raw::abs(a), {a}, {a},
                [](const Backward& at) -> Gradients { return {raw::mul(at.grad(), raw::sign(at.saved(0)))}; });
}

Tensor relu(const Tensor& a) {
  const Tensor result = raw::relu(a);
  return record("relu", result, {a}, {result},
                [](const Backward& at) -> Gradients { return {raw::relu_backward(at.grad(), at.saved(0))}; });
}

Tensor pow(const Tensor& a, double exponent) {
  return record("pow", raw::pow(a, exponent), {a}, {a}, [exponent](const Backward& at) -> Gradients {
    if (exponent == 0.0) return {zeros(at.sizes(0), at.dtype(0), at.device(0))};  // also where a is 0
    return {raw::mul(at.grad(), raw::mul(raw::pow(at.saved(0), exponent - 1.0), exponent))};
  });
}

}  // namespace lockstep::ops
