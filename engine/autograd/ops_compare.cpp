#include "engine/autograd/ops_gradients.hpp"
#include "engine/tensor/ops_network.hpp"

namespace lockstep::ops {

Tensor eq(const Tensor& a, const Tensor& b) { return raw::eq(a, b); }
Tensor ne(const Tensor& a, const Tensor& b) { return raw::ne(a, b); }
Tensor lt(const Tensor& a, const Tensor& b) { return raw::lt(a, b); }
Tensor le(const Tensor& a, const Tensor& b) { return raw::le(a, b); }
Tensor gt(const Tensor& a, const Tensor& b) { return raw::gt(a, b); }
Tensor ge(const Tensor& a, const Tensor& b) { return raw::ge(a, b); }
Tensor max(const Tensor& a, int dim, bool keep_dim) { return raw::max(a, dim, keep_dim); }
Tensor min(const Tensor& a, int dim, bool keep_dim) { return raw::min(a, dim, keep_dim); }
Tensor argmax(const Tensor& a, int dim, bool keep_dim) { return raw::argmax(a, dim, keep_dim); }

Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  return record("where", raw::where(condition, a, b), {a, b}, {condition}, [](const Backward& at) -> Gradients {
    const Tensor nothing = zeros({}, at.grad().dtype(), at.grad().device());
    Gradients grads(2);
    if (at.needs(0)) grads[0] = fit(at, 0, raw::where(at.saved(0), at.grad(), nothing));
    if (at.needs(1)) grads[1] = fit(at, 1, raw::where(at.saved(0), nothing, at.grad()));
    return grads;
  });
}

}  // namespace lockstep::ops
