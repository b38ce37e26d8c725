// Convolution and batch norm on sharded operands.
#include "engine/autograd/ops.hpp"
#include "engine/autograd/ops_on_sharded_internal.hpp"
#include "engine/autograd/ops_sharded.hpp"
#include "engine/core/rank_context.hpp"

namespace lockstep::ops {

Tensor conv2d_on_sharded(const Tensor& x, const Tensor& weight, const Tensor* bias, const Dims& result_sizes,
                         const std::function<Tensor(const Tensor&, const Tensor&, const Tensor*)>& f) {
  require_unmixed("conv2d", given(x, &weight, bias));
  const sharding::Linear rule =
      sharding::conv2d(layout_of(x), layout_of(weight), bias ? &layout_of(*bias) : nullptr, result_sizes);
  const Tensor local_x = local_for(x, rule.x, rule.x_grad);
  const Tensor local_weight = local_for(weight, rule.weight, rule.weight_grad);
  const Tensor local_bias = bias ? local_for(*bias, rule.bias, rule.bias_grad) : Tensor();
  const Tensor* const own_bias = bias ? &local_bias : nullptr;
  if (local_weight.num_elements() > 0 || num_elements(rule.weight.sizes) == 0)
    return from_local(f(local_x, local_weight, own_bias), make_layout(rule.result));
  // No input or no output channels on this rank. The result depends on all operands all the same, so that they get
  // gradients on every rank: sums of no elements, or a result without elements.
  const Dims sizes = layout::local_sizes(rule.result, RankContext::current().rank());
  Tensor none = add(zeros(sizes, local_x.dtype(), local_x.device()), add(sum(local_x), sum(local_weight)));
  if (own_bias) none = add(none, ops::view(*own_bias, {sizes[1], 1, 1}));
  return from_local(none, make_layout(rule.result));
}

Tensor batch_norm_on_sharded(const Tensor& x, const std::array<const Tensor*, 4>& per_channel, bool training,
                             const OnChannels& f) {
  std::vector<Tensor> operands = {x};
  std::vector<sharding::ShardedLayout> read, written;
  for (const Tensor* tensor : per_channel)
    if (tensor) operands.push_back(*tensor);
  require_unmixed("batch_norm", operands);
  for (std::size_t i = 0; i < per_channel.size(); ++i)
    if (per_channel[i]) (training && i >= 2 ? written : read).push_back(layout_of(*per_channel[i]));
  const sharding::BatchNorm rule = sharding::batch_norm(layout_of(x), read, written, training);
  const Tensor local_x = local_for(x, rule.x, rule.x);
  std::array<Tensor, 4> locals;
  std::array<const Tensor*, 4> at = {};
  for (std::size_t i = 0; i < per_channel.size(); ++i) {
    if (!per_channel[i]) continue;
    locals[i] = local_for(*per_channel[i], rule.per_channel, rule.per_channel_grad);
    at[i] = &locals[i];
  }
  if (local_x.num_elements() > 0 || num_elements(rule.x.sizes) == 0)
    return from_local(f(local_x, at), make_layout(rule.x));
  // An empty shard depends on its operands all the same, so that they get gradients on every rank.
  Tensor none = ops::clone(local_x);
  for (std::size_t i = 0; i < 2; ++i)
    if (at[i]) none = add(none, cast(sum(*at[i]), none.dtype()));
  return from_local(none, make_layout(rule.x));
}

}  // namespace lockstep::ops
