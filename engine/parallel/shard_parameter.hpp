// One parameter of a sharded group: the tensors that stand for it, the slots that show one of them, and its gradients
// on the way from whole to sharded.
//
// The part of this rank is a sharded tensor that lives as long as the model and is what optimizers see. The whole
// parameter is a leaf whose storage has memory only while the group is gathered; graphs that saved it follow the
// storage. A shared parameter is one parameter with several slots.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/layout/flat_shards.hpp"
#include "engine/mesh/device_mesh.hpp"
#include "engine/mesh/sharded.hpp"
#include "engine/nn/module.hpp"
#include "engine/parallel/gather_extension.hpp"

namespace lockstep::parallel {

// Over which ranks a group is cut and summed.
struct ShardMesh {
  DeviceMesh mesh;
  int shard_axis = 0;
  int replicate_axis = -1;  // none on a 1-d mesh
  explicit ShardMesh(DeviceMesh of) : mesh(std::move(of)) {
    shard_axis = mesh.num_axes() - 1;
    if (mesh.num_axes() == 2) replicate_axis = 0;
  }
  comm::ProcessGroup& shard_group() const { return mesh.group(shard_axis); }
  comm::ProcessGroup* replicate_group() const { return replicate_axis < 0 ? nullptr : &mesh.group(replicate_axis); }
  int num_shards() const { return mesh.shape().size(shard_axis); }
  int num_ranks() const { return mesh.num_ranks(); }
  int shard_rank() const { return mesh.coordinates()[static_cast<std::size_t>(shard_axis)]; }
};

struct ParameterSlotRef {
  std::weak_ptr<nn::Module> owner;
  std::size_t slot = 0;
  nn::ParameterSlot& get() const;
};

class ShardParameter {
 public:
  // Cuts the tensor in the first slot, which is plain, and puts the part of this rank in all of them.
  ShardParameter(std::string name, std::vector<ParameterSlotRef> slots, int dim, const ShardMesh& mesh, bool offload,
                 bool pinned);

  const std::string& name() const { return name_; }  // the path below the module of the group
  const layout::CutParameter& cut() const { return cut_; }
  const Tensor& sharded() const { return sharded_; }
  const Tensor& full() const { return full_; }  // undefined before the first gather
  bool requires_grad() const;
  const std::vector<ParameterSlotRef>& slots() const { return slots_; }

  // Takes over what was put in the slots since (a state dict that was assigned, a cast). Throws Error when that is no
  // tensor of this sharding.
  void adopt_slots();

  // The whole parameter on memory of its own, to be filled through the tensor that comes back; the slots show it after
  // show_full().
  Tensor attach_full(DType dtype, device::Device device);
  void release_full(const char* why);

  // ---- which tensor the slots show ----
  void show_sharded();
  void show_full();
  void show(const Tensor& kept);

  std::shared_ptr<const GatherExtension> extension;  // null: the part travels as it is

  // ---- gradients, whole ----
  Tensor fresh;        // of the backward that runs
  Tensor accumulated;  // of backwards without synchronisation
  // ---- gradients, sharded: partial sums that wait for their all_reduce, in the type of the reduction ----
  Tensor partial_sum;

  // Whether the parts changed since the last attach_full(): whole parameters made of them are stale.
  bool is_stale() const;

 private:
  void put_in_slots(const Tensor& tensor) const;

  std::string name_;
  std::vector<ParameterSlotRef> slots_;
  layout::CutParameter cut_;
  LayoutPtr layout_;
  Tensor sharded_;
  Tensor full_;
  std::uint64_t gathered_version_ = 0;  // of the parts, at the last gather
  const Storage* gathered_from_ = nullptr;
};

}  // namespace lockstep::parallel
