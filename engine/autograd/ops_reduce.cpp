#include <algorithm>

#include "engine/autograd/ops_gradients.hpp"
#include "engine/autograd/ops_on_sharded.hpp"

namespace lockstep::ops {

namespace {

// The sizes with 1 at the reduced dims; a result of these sizes broadcasts to the input.
Dims kept_sizes(const Dims& sizes, const Dims& dims) {
  Dims kept = sizes;
  for (std::int64_t dim : dims)
    if (!sizes.empty()) kept[normalize_dim(dim, sizes.size(), "sum")] = 1;
  return kept;
}

// The gradient of a sum: the gradient of the result for every element. An expanded view.
Tensor expand_to_input(const Backward& at, const Tensor& grad, const Dims& dims) {
  return lockstep::expand(raw::reshape(grad, kept_sizes(at.sizes(0), dims)), at.sizes(0));
}

}  // namespace

Tensor sum(const Tensor& a) {
  if (is_sharded(a)) [[unlikely]]
    return sum_on_sharded(a, all_dims_of(a), false);
  return record("sum", computed("sum", [&] { return raw::sum(a); }), {a}, {},
                [](const Backward& at) -> Gradients { return {lockstep::expand(at.grad(), at.sizes(0))}; });
}
Tensor sum(const Tensor& a, const Dims& dims, bool keep_dims) {
  if (is_sharded(a)) [[unlikely]]
    return sum_on_sharded(a, dims, keep_dims);
  return record("sum", computed("sum", [&] { return raw::sum(a, dims, keep_dims); }), {a}, {},
                [dims](const Backward& at) -> Gradients { return {expand_to_input(at, at.grad(), dims)}; });
}

Tensor mean(const Tensor& a, const Dims& dims, bool keep_dims) {
  if (is_sharded(a)) [[unlikely]]
    return mean_on_sharded(a, dims, keep_dims);
  return record("mean", computed("mean", [&] { return raw::mean(a, dims, keep_dims); }), {a}, {},
                [dims](const Backward& at) -> Gradients {
                  const std::int64_t results = std::max<std::int64_t>(1, num_elements(kept_sizes(at.sizes(0), dims)));
                  const std::int64_t each = num_elements(at.sizes(0)) / results;
                  const double count = static_cast<double>(each);
                  return {expand_to_input(at, raw::div(at.grad(), count), dims)};
                });
}
Tensor mean(const Tensor& a) { return mean(a, all_dims_of(a), false); }

Tensor mse_loss(const Tensor& input, const Tensor& target) {
  if (any_sharded(input, target)) [[unlikely]]
    return mean(pow(sub(input, target), 2.0));
  return record(
      "mse_loss", computed("mse_loss", [&] { return raw::mse_loss(input, target); }), {input, target}, {input, target},
      [](const Backward& at) -> Gradients {
        const double factor = 2.0 / static_cast<double>(num_elements(at.sizes(0)));
        const Tensor grad = raw::mul(raw::mul(raw::sub(at.saved(0), at.saved(1)), factor), at.grad());
        return {at.needs(0) ? fit(at, 0, grad) : Tensor(), at.needs(1) ? fit(at, 1, raw::neg(grad)) : Tensor()};
      });
}

Tensor index_select(const Tensor& a, int dim, const Tensor& index) {
  if (any_sharded(a, index)) [[unlikely]]
    return index_select_on_sharded(a, dim, index);
  return record("index_select", computed("index_select", [&] { return raw::index_select(a, dim, index); }), {a},
                {index}, [dim](const Backward& at) -> Gradients {
                  const Tensor grad = zeros(at.sizes(0), at.dtype(0), at.device(0));
                  raw::add_selected_(grad, dim, at.saved(0), at.grad());
                  return {grad};
                });
}

}  // namespace lockstep::ops
