// One parameter that is sharded along a dim: its sharded and its unsharded tensor.
//
// The sharded tensor holds the shard of this rank. It lives as long as the model and is the one that optimizers see.
// The unsharded tensor is a leaf whose storage has memory only while the group is unsharded; graphs that saved it refer
// to the same storage.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/layout/flat_shards.hpp"
#include "engine/mesh/sharded.hpp"
#include "engine/parallel/gather_extension.hpp"
#include "engine/parallel/group_shards.hpp"
#include "engine/parallel/shard_mesh.hpp"
#include "engine/parallel/unsharded_parameter.hpp"

namespace lockstep::parallel {

class ShardParameter final : public UnshardedParameter {
 public:
  // Shards the tensor in the first slot along `dim` and puts the sharded tensor into all slots. If tensor parallelism
  // has sharded it already, its local shard is sharded. The shard of an offloading group is on the host.
  ShardParameter(std::string name, std::vector<ParameterSlotRef> slots, int dim, const GroupSettings& settings);

  // How the group shards the parameter. With tensor parallelism, all sizes are those of its local shard, which are
  // equal on all ranks of the group.
  const layout::ShardedParameter& cut() const { return cut_; }
  const Tensor& sharded() const { return sharded_; }
  bool requires_grad() const override;

  // Adopts a tensor that was assigned to the slots since (by an assigning load, or a cast). Throws Error when it is not
  // sharded in the same way, and when some slots still hold the old one, which they then all do.
  void adopt_slots();

  // Allocates the unsharded tensor. The result is a tensor over the same memory that copy-out fills: writing to it does
  // not raise the version of the parameter.
  Tensor allocate_unsharded(DType dtype, device::Device device);
  void free_unsharded(const char* why);

  // ---- which tensor the slots hold ----
  void put_sharded();
  void put_unsharded();
  void put(const Tensor& kept);  // the shards that are kept after forward

  std::shared_ptr<const GatherExtension> extension;  // null: the all-gather sends the shard itself
  Tensor partial_sum;  // sharded gradients that were not yet all-reduced, in the reduce type

  // At each copy-in of the shard for an all-gather.
  void note_gathered();
  // Whether the shard has changed since then, so that the gathered or unsharded values are stale.
  bool is_stale() const;

 private:
  void put_in_slots(const Tensor& tensor) const;
  const Tensor& seen_by_optimizers() const;
  bool keeps_inner_layout() const;

  layout::ShardedParameter cut_;
  LayoutPtr layout_;  // of the sharded one
  Tensor sharded_;
  ShardVersion gathered_;   // at the last copy-in
  ShardVersion unsharded_;  // whose values the leaf got last
};

}  // namespace lockstep::parallel
