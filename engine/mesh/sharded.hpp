// Sharded tensors: a tensor with a layout, whose storage is this rank's part; and moving them from layout to layout.
// Differentiable forms are in engine/autograd/ops.hpp.
//
// All ranks of the mesh call distribute, redistribute and full_tensor together, with the same layouts. The collectives
// are of the family tensor_parallel, whatever the axis; what a change costs is told by redistribute_steps
// (engine/layout/redistribute.hpp). Uneven parts are padded for the way and the padding never shows.
//
// Operations without gradients (engine/tensor/ops.hpp) work on the local parts and know no layouts: those in place keep
// the layout of what they write, the others give plain tensors. The differentiable ones (engine/autograd/ops.hpp)
// follow the rules of sharding_rules.hpp or refuse.
//
//   Tensor weight = distribute(whole, mesh, {layout::shard(0)});
//   local_tensor(weight);      // the part of this rank, a plain tensor over the same storage
//   full_tensor(weight);       // one all_gather, on every rank the whole
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/layout/placement.hpp"
#include "engine/mesh/device_mesh.hpp"
#include "engine/tensor/tensor.hpp"

namespace lockstep {

using Placements = std::vector<layout::Placement>;

// A sharded tensor over the storage of `local`. Throws Error when local is not of the size that the layout gives this
// rank.
Tensor make_sharded(const Tensor& local, LayoutPtr layout);
Tensor make_sharded(const Tensor& local, layout::ShardedLayout layout);

// What this rank holds of a whole tensor under a layout: a view where it is one range of each dim, else a copy. No
// communication. Throws Error when the sizes differ or an axis is partial.
Tensor local_part(const Tensor& whole, const layout::ShardedLayout& layout);
// A sharded tensor of a whole one that every rank has: each takes its part, in memory of its own. No communication.
Tensor distribute(const Tensor& whole, const DeviceMesh& mesh, const Placements& placements);
// The layout of a tensor whose part on this rank is `local`: a sharded dim is as large as if all ranks held as much.
// Uneven parts: give the sizes.
layout::ShardedLayout layout_of_local(const Tensor& local, const DeviceMesh& mesh, const Placements& placements,
                                      const Dims* sizes = nullptr);
// The same values in another layout of the mesh; itself when that is the one it has.
Tensor redistribute(const Tensor& tensor, const Placements& placements);
Tensor redistribute(const Tensor& tensor, const LayoutPtr& to);
// The whole, a plain tensor; itself when it is plain.
Tensor full_tensor(const Tensor& tensor);

// Sizes of the whole, be it sharded or plain.
const Dims& global_sizes(const Tensor& tensor);
// "float32 (9, 4) as (Shard(0)) on dp 2, on cpu"; as describe() for plain tensors.
std::string describe_sharded(const Tensor& tensor);

}  // namespace lockstep
