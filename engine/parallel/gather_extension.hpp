// Extensions of the all-gather: the owner of a sharded parameter chooses the tensors that ranks send, and builds the
// unsharded parameter from the gathered ones. Examples are a narrower type, a compressed form, or several tensors.
//
//   send    runs on each rank when an all-gather is issued, on the copy-in stream. It returns the tensors to send,
//           which have the same sizes and types on all ranks, and metadata that stays on this rank.
//   build   runs on the compute stream when a forward or backward needs the parameter. It returns the unsharded
//           parameter.
//
// A group still makes one all-gather, in which the tensors of all its parameters travel together. The times of
// all-gathers, prefetches and reshards are the same as without an extension. With `reshard_after_forward: n`, the
// shards that are kept after forward come from the built parameter and are gathered without the extension. Gradients
// have the sizes of the unsharded parameter and are reduced as usual.
//
//   extend_gather(linear, 0, {[](const Tensor& shard, const GatherSite&) {
//                               return GatherInputs{{raw::cast(shard, DType::bfloat16)}, {}};
//                             },
//                             [](const std::vector<Tensor>& gathered, const nn::Structure&, const GatherSite& site) {
//                               return raw::cast(gathered[0], site.type);
//                             }});
//
// After PyTorch's fsdp_pre_all_gather and fsdp_post_all_gather. Departure: `send` gets the shard padded to one size on
// all ranks, and `build` may return the parameter with that padding.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/mesh/device_mesh.hpp"
#include "engine/nn/module.hpp"

namespace lockstep::parallel {

// The parameter that is gathered, and where.
struct GatherSite {
  std::string parameter;  // path below the module of the group
  DeviceMesh mesh;        // the ranks of the all-gather: 1-d, the shard axis if the group has a 2-d mesh
  Dims sizes;             // of the unsharded parameter; with tensor parallelism of its local shard
  int dim = 0;            // the sharded dim
  Dims shard_sizes;       // of the padded shard
  DType type;             // in which the group computes
};

struct GatherInputs {
  std::vector<Tensor> tensors;
  nn::Structure metadata;
};

struct GatherExtension {
  // `shard`: of site.shard_sizes and the parameter's own type, on the device of the group, padded with zeros. It may
  // share the memory of the parameter and must not be written.
  std::function<GatherInputs(const Tensor& shard, const GatherSite& site)> send;
  // `gathered`: per sent tensor, those of all ranks joined along dim 0 in rank order. The result has site.type and
  // site.sizes, or is longer along site.dim by the padding of the last ranks.
  std::function<Tensor(const std::vector<Tensor>& gathered, const nn::Structure& metadata, const GatherSite& site)>
      build;
};

// Extends the all-gathers of the parameter in that slot, from the next one on, and replaces an earlier extension.
// Throws Error when no group holds the parameter.
void extend_gather(const nn::ModulePtr& owner, std::size_t slot, GatherExtension extension);

}  // namespace lockstep::parallel
