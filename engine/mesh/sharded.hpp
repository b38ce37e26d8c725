// Sharded tensors: a tensor with a layout, whose storage is this rank's part.
//
//   Tensor weight = make_sharded(local, {mesh.shape(), {layout::shard(0)}, {9, 4}});
//   local_tensor(weight);      // the part of this rank, a plain tensor over the same storage
//   full_tensor(weight);       // one all_gather, on every rank the whole
#pragma once

#include <memory>

#include "engine/layout/placement.hpp"
#include "engine/mesh/device_mesh.hpp"
#include "engine/tensor/tensor.hpp"

namespace lockstep {

using LayoutPtr = std::shared_ptr<const layout::ShardedLayout>;

// A sharded tensor over the storage of `local`. Throws Error when local is not of the size that the layout gives this
// rank.
Tensor make_sharded(const Tensor& local, LayoutPtr layout);
Tensor make_sharded(const Tensor& local, layout::ShardedLayout layout);
// The part of this rank: a plain tensor over the same storage, without gradient history; itself when it is plain.
Tensor local_tensor(const Tensor& tensor);

}  // namespace lockstep
