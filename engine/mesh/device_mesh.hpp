// A mesh of ranks with the process groups of its axes, as seen from one rank.
//
// All ranks of the mesh construct it with the same arguments; construction does not communicate. prepare() does, on
// devices whose transport has something to open. A DeviceMesh is a value that belongs to its rank; copies are
// independent.
//
//   DeviceMesh mesh({2, 4}, {"dp", "tp"});
//   comm::all_reduce(mesh.group("dp"), gradient, comm::ReduceOp::mean);
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/comm/process_group.hpp"
#include "engine/layout/mesh_shape.hpp"

namespace lockstep {

class DeviceMesh {
 public:
  // All ranks of the world, or the listed ones, in row-major order. Throws Error as MeshShape does, and when a rank is
  // not in the world or this rank is not in the mesh.
  explicit DeviceMesh(std::vector<int> sizes, std::vector<std::string> names = {});
  DeviceMesh(std::vector<int> sizes, std::vector<std::string> names, std::vector<int> ranks);
  explicit DeviceMesh(layout::MeshShape shape);
  // One axis over the whole world.
  static DeviceMesh world(std::string name = "dp");

  const layout::MeshShape& shape() const { return shape_; }
  int num_axes() const { return shape_.num_axes(); }
  int num_ranks() const { return shape_.num_ranks(); }
  int size(std::string_view axis) const { return shape_.size(shape_.axis(axis)); }
  const std::vector<int>& coordinates() const { return coordinates_; }  // of this rank
  int coordinate(std::string_view axis) const { return coordinates_[static_cast<std::size_t>(shape_.axis(axis))]; }
  // The submesh of these axes that contains this rank. Throws Error for unknown or repeated names.
  DeviceMesh slice(const std::vector<std::string>& axes) const;
  // The mesh from which this one was sliced, directly or through other slices; its own shape if it is no slice. The
  // mesh of a layout (ShardedLayout::mesh) has the root of the mesh on which the tensor was made.
  const layout::MeshShape& root_shape() const { return shape_.root(); }

  // The process group of the ranks along one axis that contains this rank. Throws Error for an unknown name.
  comm::ProcessGroup& group(int axis) const;
  comm::ProcessGroup& group(std::string_view axis) const { return group(shape_.axis(axis)); }
  comm::ProcessGroup& mesh_group() const;  // all ranks of the mesh, in mesh order
  // Opens what collectives of these groups need on the device (comm::prepare()). All ranks of the mesh call it, in the
  // same order with their collectives.
  void prepare(device::Device device) const;

  friend bool operator==(const DeviceMesh& a, const DeviceMesh& b) { return a.shape_ == b.shape_; }

 private:
  void make_groups() const;
  layout::MeshShape shape_;
  std::vector<int> coordinates_;
};

}  // namespace lockstep
