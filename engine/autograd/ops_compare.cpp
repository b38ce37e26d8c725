#include <algorithm>

#include "engine/autograd/ops_gradients.hpp"
#include "engine/autograd/ops_on_sharded.hpp"
#include "engine/core/error.hpp"
#include "engine/mesh/sharded.hpp"
#include "engine/tensor/ops_network.hpp"

namespace lockstep::ops {

namespace {

sharding::Unary argmax_rule(const Tensor& a, int dim, bool keep_dim) {
  return sharding::along("argmax", *a.layout(), dim, keep_dim ? sharding::Dim::kept_as_one : sharding::Dim::removed);
}

bool has_partial(const Tensor& a) {
  const auto& placements = a.layout()->placements;
  return std::any_of(placements.begin(), placements.end(),
                     [](const auto& placement) { return placement.is_partial(); });
}

// Elements that are equal to the result share its gradient evenly.
Gradients extreme_backward(const Backward& at, int dim, bool keep_dim) {
  const Tensor& a = at.saved(0);
  const bool restores = !keep_dim && a.num_dims() > 0;
  const auto kept = [&](const Tensor& x) { return restores ? lockstep::unsqueeze(x, dim) : x; };
  const Tensor chosen = raw::cast(raw::eq(a, kept(at.saved(1))), a.dtype());
  const Tensor count = a.num_dims() == 0 ? chosen : raw::sum(chosen, {dim}, true);
  return {raw::div(raw::mul(kept(at.grad()), chosen), count)};
}

Tensor extreme(const char* name, const Tensor& a, int dim, bool keep_dim, bool largest) {
  if (is_sharded(a)) [[unlikely]] {
    const Tensor result = extreme_on_sharded(name, a, dim, keep_dim, largest,
                                             [=](const Tensor& x) { return extreme(name, x, dim, keep_dim, largest); });
    if (recording({a}) && has_partial(result))
      throw Error(
          str(name, ": the gradient of ", describe_sharded(a), " along dim ", dim, " depends on values of other ranks"),
          "redistribute it so that each rank has the whole dim, or detach it");
    return result;
  }
  const Tensor result =
      computed(name, [&] { return largest ? raw::max(a, dim, keep_dim) : raw::min(a, dim, keep_dim); });
  return record(name, result, {a}, {a, result},
                [=](const Backward& at) -> Gradients { return extreme_backward(at, dim, keep_dim); });
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
Tensor max(const Tensor& a, int dim, bool keep_dim) { return extreme("max", a, dim, keep_dim, true); }
Tensor min(const Tensor& a, int dim, bool keep_dim) { return extreme("min", a, dim, keep_dim, false); }
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
