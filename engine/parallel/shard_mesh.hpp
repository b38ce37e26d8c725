// The mesh of a sharded group: parameters are sharded over one axis, and replicated over the other one if there is one.
#pragma once

#include <string>
#include <utility>

#include "engine/layout/compose.hpp"
#include "engine/mesh/device_mesh.hpp"
#include "engine/tensor/tensor.hpp"

namespace lockstep::parallel {

// A parameter that tensor parallelism distributes over other axes of the same root mesh keeps that layout: its group
// shards and gathers the local shard of tensor parallelism.
struct ShardMesh {
  DeviceMesh mesh;
  int shard_axis = 0;       // -1: parameters are replicated over the only axis (no_shard)
  int replicate_axis = -1;  // -1: none
  // 1-d: shards; 2-d: replicates over the first axis and shards over the second.
  explicit ShardMesh(DeviceMesh of) : mesh(std::move(of)) {
    shard_axis = mesh.num_axes() - 1;
    if (mesh.num_axes() == 2) replicate_axis = 0;
  }
  // Every rank of a 1-d mesh holds all parameters.
  static ShardMesh replicated(DeviceMesh of) {
    ShardMesh made(std::move(of));
    made.shard_axis = -1;
    made.replicate_axis = 0;
    return made;
  }
  bool is_sharded() const { return shard_axis >= 0; }
  comm::ProcessGroup& shard_group() const { return mesh.group(shard_axis); }  // of a mesh that shards
  comm::ProcessGroup* replicate_group() const { return replicate_axis < 0 ? nullptr : &mesh.group(replicate_axis); }
  int num_shards() const { return is_sharded() ? mesh.shape().size(shard_axis) : 1; }
  int num_ranks() const { return mesh.num_ranks(); }
  int shard_rank() const { return is_sharded() ? mesh.coordinates()[static_cast<std::size_t>(shard_axis)] : 0; }
  layout::DataParallelAxes axes() const { return {mesh.root_shape(), mesh.shape(), shard_axis}; }
  // The layout of a parameter after the group has sharded it along `dim`. `name`: for messages. Throws Error as
  // layout::compose() does for a parameter that is sharded already.
  layout::ShardedLayout layout_of(const std::string& name, const Tensor& parameter, int dim) const;
  // The same of a parameter with the layout `inner`, or of a plain one of `sizes`.
  layout::ShardedLayout layout_of(const std::string& name, const Dims& sizes, const LayoutPtr& inner, int dim) const;
};

}  // namespace lockstep::parallel
