#include "engine/autograd/ops_gradients.hpp"
#include "engine/autograd/ops_on_sharded.hpp"

namespace lockstep::ops {

Tensor add(const Tensor& a, const Tensor& b) {
  if (any_sharded(a, b)) [[unlikely]]
    return on_sharded("add", a, b, Keeps::sums, [](const Tensor& x, const Tensor& y) { return add(x, y); });
  return record(
      "add", computed("add", [&] { return raw::add(a, b); }), {a, b}, {}, [](const Backward& at) -> Gradients {
        return {at.needs(0) ? fit(at, 0, at.grad()) : Tensor(), at.needs(1) ? fit(at, 1, at.grad()) : Tensor()};
      });
}

Tensor sub(const Tensor& a, const Tensor& b) {
  if (any_sharded(a, b)) [[unlikely]]
    return on_sharded("sub", a, b, Keeps::sums, [](const Tensor& x, const Tensor& y) { return sub(x, y); });
  return record("sub", computed("sub", [&] { return raw::sub(a, b); }), {a, b}, {},
                [](const Backward& at) -> Gradients {
                  return {at.needs(0) ? fit(at, 0, at.grad()) : Tensor(),
                          at.needs(1) ? raw::neg(fit(at, 1, at.grad())) : Tensor()};
                });
}

Tensor mul(const Tensor& a, const Tensor& b) {
  if (any_sharded(a, b)) [[unlikely]]
    return on_sharded("mul", a, b, Keeps::nothing, [](const Tensor& x, const Tensor& y) { return mul(x, y); });
  return record("mul", computed("mul", [&] { return raw::mul(a, b); }), {a, b}, {kept_for(b, a), kept_for(a, b)},
                [](const Backward& at) -> Gradients {
                  return {at.needs(0) ? fit(at, 0, raw::mul(at.grad(), at.saved(1))) : Tensor(),
                          at.needs(1) ? fit(at, 1, raw::mul(at.grad(), at.saved(0))) : Tensor()};
                });
}

Tensor div(const Tensor& a, const Tensor& b) {
  if (any_sharded(a, b)) [[unlikely]]
    return on_sharded("div", a, b, Keeps::nothing, [](const Tensor& x, const Tensor& y) { return div(x, y); });
  return record("div", computed("div", [&] { return raw::div(a, b); }), {a, b}, {kept_for(b, a), b},
                [](const Backward& at) -> Gradients {
                  const Tensor divisor = at.saved(1);
                  Gradients grads(2);
                  if (at.needs(0)) grads[0] = fit(at, 0, raw::div(at.grad(), divisor));
                  if (at.needs(1))  // -grad * (a / b) / b
                    grads[1] =
                        fit(at, 1, raw::neg(raw::mul(at.grad(), raw::div(raw::div(at.saved(0), divisor), divisor))));
                  return grads;
                });
}

Tensor add(const Tensor& a, Number b) {
  if (is_sharded(a)) [[unlikely]]
    return on_sharded("add", a, Keeps::nothing, [=](const Tensor& x) { return add(x, b); });
  return record("add", computed("add", [&] { return raw::add(a, b); }), {a}, {},
                [](const Backward& at) -> Gradients { return {at.grad()}; });
}
Tensor sub(const Tensor& a, Number b) {
  if (is_sharded(a)) [[unlikely]]
    return on_sharded("sub", a, Keeps::nothing, [=](const Tensor& x) { return sub(x, b); });
  return record("sub", computed("sub", [&] { return raw::sub(a, b); }), {a}, {},
                [](const Backward& at) -> Gradients { return {at.grad()}; });
}
Tensor rsub(Number a, const Tensor& b) {
  if (is_sharded(b)) [[unlikely]]
    return on_sharded("rsub", b, Keeps::nothing, [=](const Tensor& x) { return rsub(a, x); });
  return record("rsub", computed("rsub", [&] { return raw::rsub(a, b); }), {b}, {},
                [](const Backward& at) -> Gradients { return {raw::neg(at.grad())}; });
}
Tensor mul(const Tensor& a, Number b) {
  if (is_sharded(a)) [[unlikely]]
    return on_sharded("mul", a, Keeps::sums, [=](const Tensor& x) { return mul(x, b); });
  return record("mul", computed("mul", [&] { return raw::mul(a, b); }), {a}, {},
                [b](const Backward& at) -> Gradients { return {raw::mul(at.grad(), b)}; });
}
Tensor div(const Tensor& a, Number b) {
  if (is_sharded(a)) [[unlikely]]
    return on_sharded("div", a, Keeps::sums, [=](const Tensor& x) { return div(x, b); });
  return record("div", computed("div", [&] { return raw::div(a, b); }), {a}, {},
                [b](const Backward& at) -> Gradients { return {raw::div(at.grad(), b)}; });
}
Tensor rdiv(Number a, const Tensor& b) {
  if (is_sharded(b)) [[unlikely]]
    return on_sharded("rdiv", b, Keeps::nothing, [=](const Tensor& x) { return rdiv(a, x); });
  return record("rdiv", computed("rdiv", [&] { return raw::rdiv(a, b); }), {b}, {b},
                [a](const Backward& at) -> Gradients {
                  const Tensor reciprocal = raw::rdiv(1, at.saved(0));
                  return {raw::neg(raw::mul(raw::mul(at.grad(), a), raw::mul(reciprocal, reciprocal)))};
                });
}

}  // namespace lockstep::ops
