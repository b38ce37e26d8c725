// conv2d and batch_norm.
#include <array>

#include "engine/autograd/node.hpp"
#include "engine/autograd/ops_gradients.hpp"
#include "engine/autograd/ops_on_sharded.hpp"
#include "engine/core/checked.hpp"
#include "engine/core/error.hpp"
#include "engine/mesh/sharded.hpp"
#include "engine/tensor/ops_network.hpp"

namespace lockstep::ops {

namespace {

// The global sizes of the result. Throws Error for operands that do not fit.
Dims sizes_of_convolution(const Tensor& x, const Tensor& weight, const Dims& stride, const Dims& padding) {
  const Dims &from = global_sizes(x), &kernel = global_sizes(weight);
  bool fits =
      from.size() == 4 && kernel.size() == 4 && stride.size() == 2 && padding.size() == 2 && from[1] == kernel[1];
  Dims sizes = {from[0], kernel[0]};
  for (int i = 0; fits && i < 2; ++i) {
    const std::int64_t free =
        checked_add(from[i + 2], checked_multiply(2, padding[i], "conv2d"), "conv2d") - kernel[i + 2];
    fits = stride[i] > 0 && padding[i] >= 0 && free >= 0;
    if (fits) sizes.push_back(free / stride[i] + 1);
  }
  if (!fits)
    throw Error(str("conv2d: x ", describe_sharded(x), ", weight ", describe_sharded(weight), ", stride ",
                    to_text(stride), ", padding ", to_text(padding)),
                "give x (batch, in, height, width) and a weight (out, in, height, width), no larger than the image");
  return sizes;
}

}  // namespace

Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor* bias, const Dims& stride, const Dims& padding) {
  if (any_sharded(x, weight, bias)) [[unlikely]]
    return conv2d_on_sharded(x, weight, bias, sizes_of_convolution(x, weight, stride, padding),
                             [&](const Tensor& local_x, const Tensor& local_weight, const Tensor* local_bias) {
                               return conv2d(local_x, local_weight, local_bias, stride, padding);
                             });
  std::vector<Tensor> inputs = {x, weight};
  if (bias) inputs.push_back(*bias);
  return record("conv2d", computed("conv2d", [&] { return raw::conv2d(x, weight, bias, stride, padding); }), inputs,
                {x, weight}, [stride, padding, has_bias = bias != nullptr](const Backward& at) -> Gradients {
                  raw::ConvolutionGradients grads =
                      raw::conv2d_backward(at.grad(), at.saved(0), at.saved(1), stride, padding, at.needs(0),
                                           at.needs(1), has_bias && at.needs(2));
                  Gradients out = {grads.x, grads.weight};
                  if (has_bias) out.push_back(grads.bias);
                  return out;
                });
}

namespace {

// Sizes and tensors of one number per channel that broadcast over x (batch, channels, ...).
Dims channel_sizes(const Tensor& x) {
  Dims sizes = {x.size(1)};
  for (int dim = 2; dim < x.num_dims(); ++dim) sizes.push_back(1);
  return sizes;
}
Tensor per_channel(const Tensor& x, const Tensor& given, DType wide) {
  return raw::reshape(raw::cast(given, wide), channel_sizes(x));
}

void require_per_channel(const char* what, const Tensor& x, const Tensor* given) {
  if (given && (given->num_dims() != 1 || given->size(0) != x.size(1)))
    throw Error(str("batch_norm: the ", what, " is ", describe(*given), " for ", describe(x)),
                str("give one number per channel: (", x.size(1), ")"));
}
void require_statistics(const char* what, const Tensor& x, const Tensor* given) {
  require_per_channel(what, x, given);
  if (given && !is_floating(given->dtype()))
    throw Error(str("batch_norm: the ", what, " is ", describe(*given)), "cast it to a floating-point type");
}

// normed * weight + bias, per channel. One node, so that its gradients arrive in the order normed, weight, bias.
Tensor scale_and_shift(const Tensor& normed, const Tensor* weight, const Tensor* bias) {
  const DType wide = normed.dtype();
  Tensor result = normed;
  if (weight) result = raw::mul(result, per_channel(normed, *weight, wide));
  if (bias) result = raw::add(result, per_channel(normed, *bias, wide));
  std::vector<Tensor> inputs = {normed}, saved;
  if (weight) {
    inputs.push_back(*weight);
    saved = {kept_for(*weight, normed), kept_for(normed, *weight)};
  }
  if (bias) inputs.push_back(*bias);
  return record("batch_norm", result, inputs, saved,
                [has_weight = weight != nullptr, has_bias = bias != nullptr, wide](const Backward& at) -> Gradients {
                  const auto channel_sums = [&](const Tensor& grad, int input) {
                    const Tensor sum = raw::sum_to(grad, channel_sizes(grad));
                    return raw::cast(raw::reshape(sum, at.sizes(input)), at.dtype(input));
                  };
                  Gradients grads = {at.grad()};
                  if (has_weight) {
                    if (at.needs(0)) grads[0] = raw::mul(at.grad(), per_channel(at.grad(), at.saved(1), wide));
                    grads.push_back(at.needs(1) ? channel_sums(raw::mul(at.grad(), at.saved(0)), 1) : Tensor());
                  }
                  if (has_bias) {
                    const int of_bias = has_weight ? 2 : 1;
                    grads.push_back(at.needs(of_bias) ? channel_sums(at.grad(), of_bias) : Tensor());
                  }
                  return grads;
                });
}

void move_towards(const Tensor& running, const Tensor& value, double momentum) {
  raw::copy_(running, raw::add(raw::mul(raw::cast(running, value.dtype()), 1.0 - momentum), raw::mul(value, momentum)));
}

}  // namespace

// Composed of other operations: each channel, made contiguous, is a row of layer_norm. The backward of layer_norm
// multiplies gradients with its input, so that a large mean costs digits; PyTorch's backward of batch_norm multiplies
// with the distance from the mean. Hence the rows are centred first. A constant shift changes neither the result nor
// its gradient.
Tensor batch_norm(const Tensor& x, const Tensor* weight, const Tensor* bias, const Tensor* running_mean,
                  const Tensor* running_var, bool training, double momentum, double eps) {
  if (any_sharded(x, weight, bias, running_mean, running_var)) [[unlikely]]
    return batch_norm_on_sharded(x, {weight, bias, running_mean, running_var}, training,
                                 [=](const Tensor& local, const std::array<const Tensor*, 4>& at) {
                                   return batch_norm(local, at[0], at[1], at[2], at[3], training, momentum, eps);
                                 });
  if (!x.defined() || x.num_dims() < 2 || !is_floating(x.dtype()))
    throw Error(str("batch_norm: x is ", describe(x)), "give a floating-point tensor (batch, channels, ...)");
  require_per_channel("weight", x, weight);
  require_per_channel("bias", x, bias);
  require_statistics("running mean", x, running_mean);
  require_statistics("running variance", x, running_var);
  if (!training && (!running_mean || !running_var))
    throw Error("batch_norm: evaluation without running statistics", "give both running statistics, or use training");
  for (const Tensor* scale : {weight, bias})  // an error of a view comes before the statistics move
    if (scale && recording({*scale})) (void)edge_of(*scale);
  const DType wide = size_of(x.dtype()) == 2 ? DType::float32 : x.dtype();
  Tensor normed;
  if (training) {
    const std::int64_t channels = x.size(1), count = channels == 0 ? 0 : x.num_elements() / channels;
    if (count < 2)
      throw Error(str("batch_norm: training on ", count, " values per channel: ", describe(x)), "give at least two");
    const Tensor transposed = ops::transpose(cast(x, wide), 0, 1);
    const Tensor rows = reshape(transposed, Dims{channels, count});
    const Tensor mean = raw::mean(raw::contiguous(rows), Dims{1}, true);
    const Tensor centred = sub(rows, mean);
    if (running_mean) move_towards(*running_mean, raw::reshape(mean, Dims{channels}), momentum);
    if (running_var)
      move_towards(*running_var,
                   raw::div(raw::sum(raw::mul(centred, centred), Dims{1}, false), static_cast<double>(count - 1)),
                   momentum);
    normed = ops::transpose(ops::view(layer_norm(centred, 1, nullptr, nullptr, eps), transposed.sizes()), 0, 1);
  } else {
    const Tensor mean = per_channel(x, *running_mean, wide);
    const Tensor rstd = raw::rsqrt(raw::add(per_channel(x, *running_var, wide), eps));
    normed = mul(sub(cast(x, wide), mean), rstd);
  }
  if (weight || bias) normed = scale_and_shift(normed, weight, bias);
  return contiguous(cast(normed, x.dtype()));
}

}  // namespace lockstep::ops
