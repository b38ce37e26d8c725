#include "engine/autograd/ops_gradients.hpp"
#include "engine/autograd/ops_on_sharded.hpp"
#include "engine/tensor/ops_network.hpp"

namespace lockstep::ops {

namespace {

sharding::Unary argmax_rule(const Tensor& a, int dim, bool keep_dim) {
  return sharding::along("argmax", *a.layout(), dim, keep_dim ? sharding::Dim::kept_as_one : sharding::Dim::removed);
}

}  // namespace

Tensor eq(const Tensor& a, const Tensor& b) {
  if (any_sharded(a, b)) [[unlikely]]
    return on_sharded("eq", a, b, Keeps::nothing, [](const Tensor& x, const Tensor& y) { return eq(x, y); });
  return raw::eq(a, b);
}
Tensor ne(const Tensor& a, const Tensor& b) {
  if (any_sharded(a, b)) [[unlikely]]
    return on_sharded("ne", a, b, Keeps::nothing, [](const Tensor& x, const Tensor& y) { return ne(x, y); });
  return raw::ne(a, b);
}
Tensor lt(const Tensor& a, const Tensor& b) {
  if (any_sharded(a, b)) [[unlikely]]
    return on_sharded("lt", a, b, Keeps::nothing, [](const Tensor& x, const Tensor& y) { return lt(x, y); });
  return raw::lt(a, b);
}
Tensor le(const Tensor& a, const Tensor& b) {
  if (any_sharded(a, b)) [[unlikely]]
    return on_sharded("le", a, b, Keeps::nothing, [](const Tensor& x, const Tensor& y) { return le(x, y); });
  return raw::le(a, b);
}
Tensor gt(const Tensor& a, const Tensor& b) {
  if (any_sharded(a, b)) [[unlikely]]
    return on_sharded("gt", a, b, Keeps::nothing, [](const Tensor& x, const Tensor& y) { return gt(x, y); });
  return raw::gt(a, b);
}
Tensor ge(const Tensor& a, const Tensor& b) {
  if (any_sharded(a, b)) [[unlikely]]
    return on_sharded("ge", a, b, Keeps::nothing, [](const Tensor& x, const Tensor& y) { return ge(x, y); });
  return raw::ge(a, b);
}
Tensor max(const Tensor& a, int dim, bool keep_dim) {
  if (is_sharded(a)) [[unlikely]]
    return extreme_on_sharded("max", a, dim, keep_dim, true, [=](const Tensor& x) { return max(x, dim, keep_dim); });
  return raw::max(a, dim, keep_dim);
}
Tensor min(const Tensor& a, int dim, bool keep_dim) {
  if (is_sharded(a)) [[unlikely]]
    return extreme_on_sharded("min", a, dim, keep_dim, false, [=](const Tensor& x) { return min(x, dim, keep_dim); });
  return raw::min(a, dim, keep_dim);
}
Tensor argmax(const Tensor& a, int dim, bool keep_dim) {
  if (is_sharded(a)) [[unlikely]]
    return by_rule(a, argmax_rule(a, dim, keep_dim), [=](const Tensor& x) { return argmax(x, dim, keep_dim); });
  return raw::argmax(a, dim, keep_dim);
}

Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  if (any_sharded(condition, a, b)) [[unlikely]]
    return where_on_sharded(condition, a, b);
  return record("where", computed("where", [&] { return raw::where(condition, a, b); }), {a, b}, {condition},
                [](const Backward& at) -> Gradients {
                  const Tensor nothing = zeros({}, at.grad().dtype(), at.grad().device());
                  Gradients grads(2);
                  if (at.needs(0)) grads[0] = fit(at, 0, raw::where(at.saved(0), at.grad(), nothing));
                  if (at.needs(1)) grads[1] = fit(at, 1, raw::where(at.saved(0), nothing, at.grad()));
                  return grads;
                });
}

}  // namespace lockstep::ops
