// Differentiable conversions between plain tensors, local shards and layouts; engine/mesh/sharded.hpp has the versions
// without gradients, whose errors these throw too. All ranks of the mesh call them together, in forward and backward.
//
// The gradient of a sharded tensor has the layout of the tensor, but is replicated where the tensor is partial: each
// summand has the gradient of the sum. So backward of a redistribution is a redistribution. Its cost: for Replicate to
// Shard one all-gather, Shard to Replicate a local slice, Partial to Replicate nothing, Partial to Shard one
// all-gather, Shard(i) to Shard(j) one all-to-all. The gradient of the result of full_tensor, and of the local shard
// along a replicated axis, is assumed to be equal on all ranks.
//
// A replicated tensor that each rank used for its own shard of an operation has one summand of its gradient on each
// rank. The summands of all its uses are added before they are reduced: with one all-reduce, or on the way to a shard
// with one reduce-scatter.
//
//   Tensor weight = ops::distribute(full, mesh, {layout::shard(0)});
//   backward({ops::sum(ops::full_tensor(ops::mul(weight, weight)))});    // grad(weight) is sharded as the weight is
#pragma once

#include "engine/autograd/autograd.hpp"
#include "engine/mesh/sharded.hpp"

namespace lockstep::ops {

// `full` is a plain tensor that is equal on all ranks; each rank keeps its shard. Ranks whose sizes or placements
// differ get an error from their next collective of the mesh axis (comm/statements.hpp).
Tensor distribute(const Tensor& full, const DeviceMesh& mesh, const Placements& placements);
// The sharded tensor whose local shard is `local`, over the same memory. `sizes`: global; see layout_of_local. Ranks
// whose global sizes or placements differ get an error as from distribute.
Tensor from_local(const Tensor& local, const DeviceMesh& mesh, const Placements& placements,
                  const Dims* sizes = nullptr);
Tensor from_local(const Tensor& local, const LayoutPtr& layout);
// The local shard as a plain tensor over the same memory; `a` itself when it is plain. `gradient`: the layout in which
// the gradients of the local shards form the gradient of `a`, if that is not its gradient layout. (A replicated weight
// that each rank used for its shard of the batch has partial gradients.) Backward redistributes it to the gradient
// layout of `a`.
Tensor to_local(const Tensor& a);
Tensor to_local(const Tensor& a, const LayoutPtr& gradient);
// Throws Error while recording when a placement is partial with an operation other than sum and mean.
Tensor redistribute(const Tensor& a, const Placements& placements);
Tensor redistribute(const Tensor& a, const LayoutPtr& to);
// The full tensor as a plain tensor; `a` itself when it is plain.
Tensor full_tensor(const Tensor& a);

}  // namespace lockstep::ops
