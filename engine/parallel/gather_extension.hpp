// What travels when a sharded parameter is gathered, and what becomes of it, decided by whoever owns the parameter:
// a narrower type, a transformed or compressed form, several tensors instead of one.
//
//   send    on each rank, when a gather is issued, on the stream of its copy-in: the part of this rank in, the tensors
//           to gather out, of the same sizes and types on all ranks, and metadata that stays on this rank
//   build   when compute needs the parameter, on its stream: the gathered tensors and the metadata in, the whole out
//
// Still one all_gather a group: what its parameters send travels together. Nothing else changes: when a group is
// gathered, ahead or not, and when it is put back; with `reshard_after_forward: n` the parts that are kept are those of
// the whole that was built, and are gathered as they are. Gradients are those of the whole, and travel as ever.
//
//   extend_gather(linear, 0, {[](const Tensor& part, const GatherSite&) {
//                               return GatherInputs{{raw::cast(part, DType::bfloat16)}, {}};
//                             },
//                             [](const std::vector<Tensor>& gathered, const nn::Value&, const GatherSite& site) {
//                               return raw::cast(gathered[0], site.type);
//                             }});
//
// After PyTorch's fsdp_pre_all_gather and fsdp_post_all_gather; ours hands out the part padded to one size on all
// ranks, and cuts that padding off again.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/mesh/device_mesh.hpp"
#include "engine/nn/module.hpp"

namespace lockstep::parallel {

// Of which parameter, and where.
struct GatherSite {
  std::string parameter;  // path below the module of the group
  DeviceMesh mesh;        // the ranks that gather: 1-d, also where a 2-d mesh replicates
  Dims sizes;             // of the whole
  int dim = 0;            // that is cut
  Dims part_sizes;        // of the part that is handed out, with its padding
  DType type;             // that the group computes in
};

struct GatherInputs {
  std::vector<Tensor> tensors;
  nn::Value metadata;
};

struct GatherExtension {
  // `part`: of the parameter's own type, on the device that computes, with zeros for the rows that this rank has less
  // than the first. It is the parameter's memory where nothing is padded: not to be written.
  std::function<GatherInputs(const Tensor& part, const GatherSite& site)> send;
  // `gathered`: of each tensor that was sent those of all ranks, joined along dim 0 in the order of ranks. Gives the
  // whole, of site.type, with or without the padding of the last ranks along site.dim.
  std::function<Tensor(const std::vector<Tensor>& gathered, const nn::Value& metadata, const GatherSite& site)> build;
};

// From the next gather of its group on; instead of the one there was. Throws Error when no group holds the parameter in
// that slot.
void extend_gather(const nn::ModulePtr& owner, std::size_t slot, GatherExtension extension);

}  // namespace lockstep::parallel
