// Differentiable ways into, between and out of layouts (engine/mesh/sharded.hpp has those without gradients).
//
// The gradient of a sharded tensor lies like the tensor, but whole where that is partial: each rank's part of a sum has
// the gradient of the sum. So backward of a redistribution is a redistribution: of Replicate to Shard one all_gather,
// of Shard to Replicate a local cut, of Partial to Replicate nothing, of Partial to Shard one all_gather, of Shard(i)
// to Shard(j) one all_to_all. A gradient that comes to the whole of full_tensor, or to the local part of a replicated
// axis, is taken to be the same on all ranks.
//
//   Tensor weight = ops::distribute(whole, mesh, {layout::shard(0)});
//   backward({ops::sum(ops::full_tensor(ops::mul(weight, weight)))});    // grad(weight) is sharded as the weight is
#pragma once

#include "engine/autograd/autograd.hpp"
#include "engine/mesh/sharded.hpp"

namespace lockstep::ops {

// Each rank takes its part of what all have.
Tensor distribute(const Tensor& whole, const DeviceMesh& mesh, const Placements& placements);
// What each rank has, as its part: see layout_of_local for the sizes.
Tensor from_local(const Tensor& local, const DeviceMesh& mesh, const Placements& placements,
                  const Dims* sizes = nullptr);
Tensor from_local(const Tensor& local, const LayoutPtr& layout);
// The part of this rank, over the same memory. `gradient`: how the parts' gradients are to be read, where that is not
// how the tensor lies (a replicated weight of which each rank used a part of the batch has a partial one); it is
// brought to the tensor's layout by one redistribution.
Tensor to_local(const Tensor& a);
Tensor to_local(const Tensor& a, const LayoutPtr& gradient);
Tensor redistribute(const Tensor& a, const Placements& placements);
Tensor redistribute(const Tensor& a, const LayoutPtr& to);
Tensor full_tensor(const Tensor& a);

}  // namespace lockstep::ops
