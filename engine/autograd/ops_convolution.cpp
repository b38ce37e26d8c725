// conv2d and batch_norm.
#include "engine/autograd/ops_gradients.hpp"
#include "engine/autograd/ops_on_sharded.hpp"
#include "engine/core/error.hpp"
#include "engine/tensor/ops_network.hpp"

namespace lockstep::ops {

Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor* bias, const Dims& stride, const Dims& padding) {
  require_plain("conv2d", x, weight, bias);
  std::vector<Tensor> inputs = {x, weight};
  if (bias) inputs.push_back(*bias);
  return record("conv2d", raw::conv2d(x, weight, bias, stride, padding), inputs, {x, weight},
                [stride, padding, has_bias = bias != nullptr](const Backward& at) -> Gradients {
                  raw::ConvolutionGradients grads =
                      raw::conv2d_backward(at.grad(), at.saved(0), at.saved(1), stride, padding, at.needs(0),
                                           at.needs(1), has_bias && at.needs(2));
                  Gradients out = {grads.x, grads.weight};
                  if (has_bias) out.push_back(grads.bias);
                  return out;
                });
}

namespace {

// One number a channel, in the type that is computed in, as it broadcasts over (batch, channels, ...).
Tensor per_channel(const char* what, const Tensor& x, const Tensor& given, DType wide) {
  if (given.num_dims() != 1 || given.size(0) != x.size(1))
    throw Error(str("batch_norm: the ", what, " is ", describe(given), " for ", describe(x)),
                str("give one number a channel: (", x.size(1), ")"));
  Dims sizes = {x.size(1)};
  for (int dim = 2; dim < x.num_dims(); ++dim) sizes.push_back(1);
  return reshape(cast(given, wide), sizes);
}

void move_towards(const Tensor& running, const Tensor& value, double momentum) {
  raw::copy_(running, raw::add(raw::mul(raw::cast(running, value.dtype()), 1.0 - momentum), raw::mul(value, momentum)));
}

}  // namespace

// Of other operations: a channel is a row of layer_norm once it lies in one piece.
Tensor batch_norm(const Tensor& x, const Tensor* weight, const Tensor* bias, const Tensor* running_mean,
                  const Tensor* running_var, bool training, double momentum, double eps) {
  require_plain("batch_norm", x, weight, bias, running_mean, running_var);
  if (!x.defined() || x.num_dims() < 2 || !is_floating(x.dtype()))
    throw Error(str("batch_norm: of ", x.defined() ? describe(x) : "no tensor"),
                "give a floating-point tensor (batch, channels, ...)");
  if (!training && (!running_mean || !running_var))
    throw Error("batch_norm: evaluation without running statistics", "give both, or train");
  const DType wide = size_of(x.dtype()) == 2 ? DType::float32 : x.dtype();
  Tensor normed;
  if (training) {
    const std::int64_t channels = x.size(1), count = channels == 0 ? 0 : x.num_elements() / channels;
    if (count < 2)
      throw Error(str("batch_norm: training on ", count, " value a channel: ", describe(x)), "give at least two");
    const Tensor turned = ops::transpose(cast(x, wide), 0, 1);
    const Tensor rows = reshape(turned, Dims{channels, count});
    if (running_mean || running_var) {
      const Tensor values = raw::contiguous(rows), mean = raw::mean(values, Dims{1}, true);
      const Tensor off = raw::sub(values, mean);
      if (running_mean) move_towards(*running_mean, raw::reshape(mean, Dims{channels}), momentum);
      if (running_var)
        move_towards(*running_var,
                     raw::div(raw::sum(raw::mul(off, off), Dims{1}, false), static_cast<double>(count - 1)), momentum);
    }
    normed = ops::transpose(ops::view(layer_norm(rows, 1, nullptr, nullptr, eps), turned.sizes()), 0, 1);
  } else {
    const Tensor mean = per_channel("running mean", x, *running_mean, wide);
    const Tensor rstd = rsqrt(add(per_channel("running variance", x, *running_var, wide), eps));
    normed = mul(sub(cast(x, wide), mean), rstd);
  }
  if (weight) normed = mul(normed, per_channel("weight", x, *weight, wide));
  if (bias) normed = add(normed, per_channel("bias", x, *bias, wide));
  return contiguous(cast(normed, x.dtype()));
}

}  // namespace lockstep::ops
