// Sharded tensors: a sharded tensor has a layout, and its storage holds the local shard of this rank. Functions to make
// them and to change their layout. Differentiable versions are in engine/autograd/ops_sharded.hpp.
//
// All ranks of the mesh call distribute, redistribute and full_tensor together, with equal layouts. Their collectives
// have the family tensor_parallel, for any axis; redistribute_steps (engine/layout/redistribute.hpp) lists them. Uneven
// shards are padded during communication only.
//
// Operations without gradients (engine/tensor/ops.hpp) compute on the local shards. Those in place keep the layout of
// the written tensor, the others return plain tensors; sharded_like (engine/tensor/tensor.hpp) makes these sharded
// again. The differentiable operations (engine/autograd/ops.hpp) follow the rules of sharding_rules.hpp or refuse.
//
//   Tensor weight = distribute(full, mesh, {layout::shard(0)});
//   local_tensor(weight);      // the local shard, a plain tensor over the same storage
//   full_tensor(weight);       // one all-gather; the full tensor on every rank
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/layout/placement.hpp"
#include "engine/mesh/device_mesh.hpp"
#include "engine/tensor/tensor.hpp"

namespace lockstep {

using Placements = std::vector<layout::Placement>;

// The sharded tensor over the storage of `local` with a layout, without gradient history. Throws Error when `local`
// does not have the sizes of the local shard of this rank.
Tensor make_sharded(const Tensor& local, LayoutPtr layout);
Tensor make_sharded(const Tensor& local, layout::ShardedLayout layout);

// The local shard that a full tensor has under a layout: a view if it is one range of each dim, else a copy. No
// communication. Throws Error when the sizes differ or an axis is partial.
Tensor local_shard_of(const Tensor& full, const layout::ShardedLayout& layout);
// A sharded tensor made of a plain tensor that is equal on all ranks: each rank copies its shard. No communication.
// Throws Error when `full` is sharded already and for placements that do not fit.
Tensor distribute(const Tensor& full, const DeviceMesh& mesh, const Placements& placements);
// The layout of a sharded tensor whose local shard is `local`. Without `sizes` (global) all shards are assumed to be as
// large as this one. Throws Error for placements that do not fit.
layout::ShardedLayout layout_of_local(const Tensor& local, const DeviceMesh& mesh, const Placements& placements,
                                      const Dims* sizes = nullptr);
// The same values in another layout on the same mesh; `tensor` itself when it has that layout. Throws Error for a plain
// tensor, another mesh or other sizes, and a change that redistribute_steps refuses.
Tensor redistribute(const Tensor& tensor, const Placements& placements);
Tensor redistribute(const Tensor& tensor, const LayoutPtr& to);
// The full tensor as a plain tensor; `tensor` itself when it is plain.
Tensor full_tensor(const Tensor& tensor);

// The sizes of the full tensor; those of the tensor itself when it is plain.
const Dims& global_sizes(const Tensor& tensor);
// "float32 (9, 4) as (Shard(0)) on dp 2, on cpu"; describe() for plain tensors.
std::string describe_sharded(const Tensor& tensor);

}  // namespace lockstep
