// Activations, embedding, norms.
#include "engine/tensor/ops_network.hpp"

#include "engine/core/checked.hpp"
#include "engine/core/error.hpp"
#include "engine/kernels/activations.hpp"
#include "engine/kernels/normalize.hpp"
#include "engine/tensor/ops.hpp"
#include "engine/tensor/ops_launch.hpp"

namespace lockstep::raw {

namespace {

using device::Mode;

template <class Kernel>
Tensor unary(const char* name, Kernel kernel, const Tensor& a) {
  require_floating(name, a);
  const Tensor out = empty_like(a);
  run_kernel(name, kernel, out, a);
  return out;
}
template <class Kernel>
Tensor backward_of(const char* name, Kernel kernel, const Tensor& grad, const Tensor& other) {
  require_floating(name, grad);
  require_same_device(name, grad, other);
  const Tensor out = empty_like(other);
  run_kernel(name, kernel, out, grad, other);
  return out;
}

DType compute_type(DType dtype) { return size_of(dtype) == 2 ? DType::float32 : dtype; }

std::int64_t row_length(const char* name, const Tensor& x, int num_dims) {
  if (num_dims < 1 || num_dims > x.num_dims())
    throw Error(str(name, ": over the last ", num_dims, " dims of ", describe(x)),
                str("give a count from 1 to ", x.num_dims()));
  std::int64_t length = 1;
  for (int dim = x.num_dims() - num_dims; dim < x.num_dims(); ++dim) length = bounded_product(length, x.sizes()[dim]);
  return length;
}

Tensor row_parameter(const char* name, const char* what, const Tensor& x, int num_dims, const Tensor* given) {
  if (!given) return {};
  require_same_device(name, x, *given);
  Dims sizes;
  for (int dim = x.num_dims() - num_dims; dim < x.num_dims(); ++dim) sizes.push_back(x.sizes()[dim]);
  if (!(given->sizes() == sizes) || given->dtype() != x.dtype())
    throw Error(str(name, ": the ", what, " is ", describe(*given), " for ", describe(x)),
                str("give one of sizes ", to_text(sizes), " and type ", name_of(x.dtype())));
  return contiguous(*given);
}

NormResult norm(const char* name, bool centred, const Tensor& x, int num_dims, const Tensor* weight, const Tensor* bias,
                double eps) {
  require_floating(name, x);
  const kernels::NormRows rows{row_length(name, x, num_dims), eps, centred};
  const Tensor w = row_parameter(name, "weight", x, num_dims, weight);
  const Tensor b = row_parameter(name, "bias", x, num_dims, bias);
  Dims kept;
  for (int dim = 0; dim < x.num_dims() - num_dims; ++dim) kept.push_back(x.sizes()[dim]);
  NormResult out{empty_like(x), {}, empty(kept, compute_type(x.dtype()), x.device())};
  if (centred) out.mean = empty(kept, compute_type(x.dtype()), x.device());
  run_operands(name, x.device(), x.num_elements(),
               {{out.result, Mode::write}, {out.mean, Mode::write}, {out.rstd, Mode::write}, {contiguous(x)}, {w}, {b}},
               [rows](kernels::Execution execution, const auto& at) {
                 kernels::norm(execution, rows, at[0], at[1], at[2], at[3], at[4], at[5]);
               });
  return out;
}

}  // namespace

Tensor gelu(const Tensor& a) { return unary("gelu", kernels::gelu, a); }
Tensor tanh(const Tensor& a) { return unary("tanh", kernels::tanh, a); }
Tensor sigmoid(const Tensor& a) { return unary("sigmoid", kernels::sigmoid, a); }
Tensor gelu_backward(const Tensor& grad, const Tensor& a) {
  return backward_of("gelu_backward", kernels::gelu_backward, grad, a);
}
Tensor tanh_backward(const Tensor& grad, const Tensor& result) {
  return backward_of("tanh_backward", kernels::tanh_backward, grad, result);
}
Tensor sigmoid_backward(const Tensor& grad, const Tensor& result) {
  return backward_of("sigmoid_backward", kernels::sigmoid_backward, grad, result);
}

Tensor embedding(const Tensor& weight, const Tensor& indices) {
  require_same_device("embedding", weight, indices);
  if (weight.num_dims() != 2)
    throw Error(str("embedding: the weight is ", describe(weight)), "give one of two dims: (rows, width)");
  if (indices.dtype() != DType::int64 && indices.dtype() != DType::int32)
    throw Error(str("embedding: the indices are ", describe(indices)), "give int64");
  Dims sizes = indices.sizes();
  sizes.push_back(weight.size(1));
  return view(index_select(weight, 0, reshape(indices, Dims{indices.num_elements()})), sizes);
}

Tensor embedding_backward(const Tensor& grad, const Tensor& indices, const Dims& weight_sizes) {
  const Tensor out = zeros(weight_sizes, grad.dtype(), grad.device());
  add_selected_(out, 0, reshape(indices, Dims{indices.num_elements()}),
                reshape(grad, Dims{indices.num_elements(), weight_sizes[1]}));
  return out;
}

NormResult layer_norm(const Tensor& x, int num_dims, const Tensor* weight, const Tensor* bias, double eps) {
  return norm("layer_norm", true, x, num_dims, weight, bias, eps);
}
NormResult rms_norm(const Tensor& x, int num_dims, const Tensor* weight, double eps) {
  return norm("rms_norm", false, x, num_dims, weight, nullptr, eps);
}

NormGradients norm_backward(const Tensor& grad, const Tensor& x, const Tensor& mean, const Tensor& rstd,
                            const Tensor& weight, int num_dims, bool for_x, bool for_weight, bool for_bias) {
  const kernels::NormRows rows{row_length("norm_backward", x, num_dims), 0.0, mean.defined()};
  const Tensor g = contiguous(grad), from = contiguous(x);
  Dims sizes;
  for (int dim = x.num_dims() - num_dims; dim < x.num_dims(); ++dim) sizes.push_back(x.sizes()[dim]);
  NormGradients out;
  if (for_x) {
    out.x = empty_like(x);
    run_operands(
        "norm_backward", x.device(), x.num_elements(),
        {{out.x, Mode::write}, {g}, {from}, {mean}, {rstd}, {weight.defined() ? contiguous(weight) : Tensor()}},
        [rows](kernels::Execution execution, const auto& at) {
          kernels::norm_backward(execution, rows, at[0], at[1], at[2], at[3], at[4], at[5]);
        });
  }
  if (!for_weight && !for_bias) return out;
  // Without rows the sums are zero and no kernel runs.
  const bool none = x.num_elements() == 0;
  if (for_weight) out.weight = none ? zeros(sizes, x.dtype(), x.device()) : empty(sizes, x.dtype(), x.device());
  if (for_bias) out.bias = none ? zeros(sizes, x.dtype(), x.device()) : empty(sizes, x.dtype(), x.device());
  run_operands("norm_backward_weights", x.device(), x.num_elements(),
               {{out.weight, Mode::write}, {out.bias, Mode::write}, {g}, {from}, {mean}, {rstd}},
               [rows](kernels::Execution execution, const auto& at) {
                 kernels::norm_backward_weights(execution, rows, at[0], at[1], at[2], at[3], at[4], at[5]);
               });
  return out;
}

}  // namespace lockstep::raw
