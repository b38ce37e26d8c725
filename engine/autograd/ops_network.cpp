#include "engine/tensor/ops_network.hpp"

#include <array>

#include "engine/autograd/ops_gradients.hpp"
#include "engine/autograd/ops_on_sharded.hpp"

namespace lockstep::ops {

Tensor gelu(const Tensor& a) {
  if (is_sharded(a)) [[unlikely]]
    return on_sharded("gelu", a, Keeps::nothing, [](const Tensor& x) { return gelu(x); });
  return record("gelu", computed("gelu", [&] { return raw::gelu(a); }), {a}, {a},
                [](const Backward& at) -> Gradients { return {raw::gelu_backward(at.grad(), at.saved(0))}; });
}
Tensor tanh(const Tensor& a) {
  if (is_sharded(a)) [[unlikely]]
    return on_sharded("tanh", a, Keeps::nothing, [](const Tensor& x) { return tanh(x); });
  const Tensor result = computed("tanh", [&] { return raw::tanh(a); });
  return record("tanh", result, {a}, {result},
                [](const Backward& at) -> Gradients { return {raw::tanh_backward(at.grad(), at.saved(0))}; });
}
Tensor sigmoid(const Tensor& a) {
  if (is_sharded(a)) [[unlikely]]
    return on_sharded("sigmoid", a, Keeps::nothing, [](const Tensor& x) { return sigmoid(x); });
  const Tensor result = computed("sigmoid", [&] { return raw::sigmoid(a); });
  return record("sigmoid", result, {a}, {result},
                [](const Backward& at) -> Gradients { return {raw::sigmoid_backward(at.grad(), at.saved(0))}; });
}

Tensor embedding(const Tensor& weight, const Tensor& indices) {
  if (any_sharded(weight, indices)) [[unlikely]]
    return embedding_on_sharded(weight, indices);
  return record(
      "embedding", computed("embedding", [&] { return raw::embedding(weight, indices); }), {weight}, {indices},
      [](const Backward& at) -> Gradients { return {raw::embedding_backward(at.grad(), at.saved(0), at.sizes(0))}; });
}

Tensor layer_norm(const Tensor& x, int num_dims, const Tensor* weight, const Tensor* bias, double eps) {
  if (any_sharded(x, weight, bias)) [[unlikely]]
    return norm_on_sharded(
        "layer_norm", x, num_dims, weight, bias,
        [=](const Tensor& local, const Tensor* w, const Tensor* b) { return layer_norm(local, num_dims, w, b, eps); });
  const raw::NormResult normed =
      computed("layer_norm", [&] { return raw::layer_norm(x, num_dims, weight, bias, eps); });
  std::vector<Tensor> inputs = {x};
  if (weight) inputs.push_back(*weight);
  if (bias) inputs.push_back(*bias);
  return record(
      "layer_norm", normed.result, inputs, {x, normed.mean, normed.rstd, weight ? kept_for(x, *weight) : Tensor()},
      [num_dims, has_weight = weight != nullptr, has_bias = bias != nullptr](const Backward& at) -> Gradients {
        const bool for_weight = has_weight && at.needs(1);
        const bool for_bias = has_bias && at.needs(has_weight ? 2 : 1);
        raw::NormGradients grads = raw::norm_backward(at.grad(), at.saved(0), at.saved(1), at.saved(2), at.saved(3),
                                                      num_dims, at.needs(0), for_weight, for_bias);
        Gradients out = {grads.x};
        if (has_weight) out.push_back(grads.weight);
        if (has_bias) out.push_back(grads.bias);
        return out;
      });
}

Tensor rms_norm(const Tensor& x, int num_dims, const Tensor* weight, double eps) {
  if (any_sharded(x, weight)) [[unlikely]]
    return norm_on_sharded(
        "rms_norm", x, num_dims, weight, nullptr,
        [=](const Tensor& local, const Tensor* w, const Tensor*) { return rms_norm(local, num_dims, w, eps); });
  const raw::NormResult normed = computed("rms_norm", [&] { return raw::rms_norm(x, num_dims, weight, eps); });
  std::vector<Tensor> inputs = {x};
  if (weight) inputs.push_back(*weight);
  static constexpr std::array weight_first{1, 0};  // PyTorch multiplies by the weight last, in a separate node
  return record(
      "rms_norm", normed.result, inputs, {x, normed.rstd, weight ? kept_for(x, *weight) : Tensor()},
      [num_dims, has_weight = weight != nullptr](const Backward& at) -> Gradients {
        raw::NormGradients grads = raw::norm_backward(at.grad(), at.saved(0), Tensor(), at.saved(1), at.saved(2),
                                                      num_dims, at.needs(0), has_weight && at.needs(1), false);
        Gradients out = {grads.x};
        if (has_weight) out.push_back(grads.weight);
        return out;
      },
      weight ? std::span<const int>(weight_first) : std::span<const int>());
}

}  // namespace lockstep::ops
