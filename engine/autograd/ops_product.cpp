#include <array>

#include "engine/autograd/ops_gradients.hpp"
#include "engine/autograd/ops_on_sharded.hpp"
#include "engine/core/checked.hpp"

namespace lockstep::ops {

namespace {

// (..., n) as (rows, n).
Tensor as_rows(const Tensor& a) {
  if (a.num_dims() == 2) return a;
  std::int64_t rows = 1;
  for (int dim = 0; dim < a.num_dims() - 1; ++dim) rows = bounded_product(rows, a.sizes()[dim]);
  return raw::reshape(a, Dims{rows, a.size(-1)});
}
Tensor transposed(const Tensor& a) { return lockstep::transpose(a, -2, -1); }

// PyTorch multiplies two matrices. A vector or a batch on the left becomes a matrix through a view, which is a separate
// node.
std::span<const int> order_of_matmul(const Tensor& a, const Tensor& b) {
  static constexpr std::array b_first{1, 0};
  const bool left_is_viewed = a.num_dims() > 2 || (a.num_dims() == 1 && b.num_dims() == 2);
  return left_is_viewed ? std::span<const int>(b_first) : std::span<const int>();
}

// PyTorch computes addmm(bias, x, weight.t()). The transposition is a separate node, and so is the view of an x that is
// not a matrix.
std::span<const int> order_of_linear(const Tensor& x, const Tensor* bias) {
  static constexpr std::array of_matrix{2, 0, 1}, of_view{2, 1, 0};
  if (!bias) return {};
  return x.num_dims() == 2 ? of_matrix : of_view;
}

}  // namespace

Tensor matmul(const Tensor& a, const Tensor& b) {
  if (any_sharded(a, b)) [[unlikely]]
    return matmul_on_sharded(a, b);
  return record(
      "matmul", computed("matmul", [&] { return raw::matmul(a, b); }), {a, b}, {kept_for(b, a), kept_for(a, b)},
      [](const Backward& at) -> Gradients {
        // A vector is a matrix of one row or one column.
        const bool row = at.sizes(0).size() == 1, column = at.sizes(1).size() == 1;
        Tensor grad = at.grad();
        if (column) grad = lockstep::unsqueeze(grad, -1);
        if (row) grad = lockstep::unsqueeze(grad, -2);
        Gradients grads(2);
        if (at.needs(0)) {
          const Tensor b_matrix = column ? lockstep::unsqueeze(at.saved(1), 1) : at.saved(1);
          Dims sizes = at.sizes(0);
          if (row) sizes.insert(0, 1);
          grads[0] = raw::reshape(raw::sum_to(raw::matmul(grad, transposed(b_matrix)), sizes), at.sizes(0));
        }
        if (at.needs(1)) {
          const Tensor a_matrix = row ? lockstep::unsqueeze(at.saved(0), 0) : at.saved(0);
          Dims sizes = at.sizes(1);
          if (column) sizes.push_back(1);
          // The batches share the right operand: one product sums over their rows.
          const Tensor product = sizes.size() == 2 ? raw::matmul(transposed(as_rows(a_matrix)), as_rows(grad))
                                                   : raw::matmul(transposed(a_matrix), grad);
          grads[1] = raw::reshape(raw::sum_to(product, sizes), at.sizes(1));
        }
        return grads;
      },
      order_of_matmul(a, b));
}

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor* bias) {
  if (any_sharded(x, weight, bias)) [[unlikely]]
    return linear_on_sharded(x, weight, bias);
  std::vector<Tensor> inputs = {x, weight};
  if (bias) inputs.push_back(*bias);
  return record(
      "linear", computed("linear", [&] { return raw::linear(x, weight, bias); }), inputs,
      {kept_for(weight, x), kept_for(x, weight)},
      [num_inputs = inputs.size()](const Backward& at) -> Gradients {
        Gradients grads(num_inputs);
        const Tensor grad =
            raw::contiguous(at.grad());  // copied once, because both products would copy an expanded gradient
        const Tensor rows = as_rows(grad);
        if (at.needs(0)) grads[0] = raw::matmul(grad, at.saved(1));
        if (at.needs(1)) grads[1] = raw::matmul(transposed(rows), as_rows(at.saved(0)));
        if (num_inputs == 3 && at.needs(2)) grads[2] = raw::sum(rows, Dims{0}, false);
        return grads;
      },
      order_of_linear(x, bias));
}

}  // namespace lockstep::ops
