// One parameter of a sharded group: its sharded and its unsharded tensor, the slots that hold one of them, and its
// gradients before they are reduced.
//
// The sharded tensor holds the shard of this rank. It lives as long as the model and is the one that optimizers see.
// The unsharded tensor is a leaf whose storage has memory only while the group is unsharded; graphs that saved it refer
// to the same storage. A shared parameter is one parameter with several slots.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/layout/compose.hpp"
#include "engine/layout/flat_shards.hpp"
#include "engine/mesh/device_mesh.hpp"
#include "engine/mesh/sharded.hpp"
#include "engine/nn/module.hpp"
#include "engine/parallel/gather_extension.hpp"

namespace lockstep::parallel {

// The mesh of a group: parameters are sharded over one axis, and replicated over the other one if there is one. A
// parameter that tensor parallelism distributes over other axes of the same root mesh keeps that layout: its group
// shards and gathers the local shard of tensor parallelism.
struct ShardMesh {
  DeviceMesh mesh;
  int shard_axis = 0;
  int replicate_axis = -1;  // -1 on a 1-d mesh
  explicit ShardMesh(DeviceMesh of) : mesh(std::move(of)) {
    shard_axis = mesh.num_axes() - 1;
    if (mesh.num_axes() == 2) replicate_axis = 0;
  }
  comm::ProcessGroup& shard_group() const { return mesh.group(shard_axis); }
  comm::ProcessGroup* replicate_group() const { return replicate_axis < 0 ? nullptr : &mesh.group(replicate_axis); }
  int num_shards() const { return mesh.shape().size(shard_axis); }
  int num_ranks() const { return mesh.num_ranks(); }
  int shard_rank() const { return mesh.coordinates()[static_cast<std::size_t>(shard_axis)]; }
  layout::DataParallelAxes axes() const { return {mesh.root_shape(), mesh.shape(), shard_axis}; }
  // The layout of a parameter after the group has sharded it along `dim`. `name`: for messages. Throws Error as
  // layout::compose() does for a parameter that is sharded already.
  layout::ShardedLayout layout_of(const std::string& name, const Tensor& parameter, int dim) const;
};

struct ParameterSlotRef {
  std::weak_ptr<nn::Module> owner;
  std::size_t slot = 0;
  nn::ParameterSlot& get() const;
};

// A gradient of an unsharded parameter.
struct FullGradient {
  Tensor local;      // plain; undefined: none
  LayoutPtr layout;  // null without tensor parallelism
  bool defined() const { return local.defined(); }
};
// The same gradient in the layout of the unsharded parameter, without partial sums: one all-reduce over the axis of
// tensor parallelism if it is partial there.
FullGradient reduced_over_inner_axes(const FullGradient& gradient, const std::string& owner);

class ShardParameter {
 public:
  // Shards the tensor in the first slot along `dim` and puts the sharded tensor into all slots. If tensor parallelism
  // has sharded it already, its local shard is sharded. `offload`: the shard is kept on the host, in pinned memory if
  // `pinned`.
  ShardParameter(std::string name, std::vector<ParameterSlotRef> slots, int dim, const ShardMesh& mesh, bool offload,
                 bool pinned);

  const std::string& name() const { return name_; }  // the path below the module of the group
  // How the group shards the parameter. With tensor parallelism, all sizes are those of its local shard, which are
  // equal on all ranks of the group.
  const layout::ShardedParameter& cut() const { return cut_; }
  // The layout of the unsharded parameter: that of tensor parallelism, null without it.
  const LayoutPtr& inner_layout() const { return inner_layout_; }
  const Tensor& sharded() const { return sharded_; }
  const Tensor& unsharded() const { return unsharded_; }  // undefined before the first all-gather
  bool requires_grad() const;
  const std::vector<ParameterSlotRef>& slots() const { return slots_; }

  // Adopts a tensor that was assigned to the slots since (by an assigning load, or a cast). Throws Error when it is not
  // sharded in the same way.
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

  // ---- full gradients; with tensor parallelism their local shards, which may be partial sums over its axes ----
  FullGradient fresh;        // of the running backward
  FullGradient accumulated;  // of backwards without gradient synchronization
  // ---- sharded gradients: partial sums that were not yet all-reduced, in the reduce type ----
  Tensor partial_sum;

  // Whether the shards have changed since the last allocate_unsharded(), so that the unsharded values are stale.
  bool is_stale() const;

 private:
  void put_in_slots(const Tensor& tensor) const;
  const Tensor& seen_by_optimizers() const;
  bool keeps_inner_layout() const;

  std::string name_;
  std::vector<ParameterSlotRef> slots_;
  layout::ShardedParameter cut_;
  LayoutPtr inner_layout_;  // of the unsharded parameter
  LayoutPtr layout_;        // of the sharded one
  Tensor sharded_;
  Tensor unsharded_;
  std::uint64_t gathered_version_ = 0;  // of the shard, at the last all-gather
  const Storage* gathered_from_ = nullptr;
};

}  // namespace lockstep::parallel
