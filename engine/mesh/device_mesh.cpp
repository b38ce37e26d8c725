#include "engine/mesh/device_mesh.hpp"

#include <numeric>
#include <utility>

#include "engine/core/error.hpp"
#include "engine/core/rank_context.hpp"

namespace lockstep {

namespace {

std::vector<int> all_ranks() {
  std::vector<int> ranks(static_cast<std::size_t>(RankContext::current().world_size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace

DeviceMesh::DeviceMesh(std::vector<int> sizes, std::vector<std::string> names)
    : DeviceMesh(layout::MeshShape(std::move(sizes), std::move(names), all_ranks())) {
  make_groups();
}

DeviceMesh::DeviceMesh(std::vector<int> sizes, std::vector<std::string> names, std::vector<int> ranks)
    : DeviceMesh(layout::MeshShape(std::move(sizes), std::move(names), std::move(ranks))) {
  make_groups();
}

// All groups of the mesh at once, so that no collective waits for one to be made.
void DeviceMesh::make_groups() const {
  for (int axis = 0; axis < num_axes(); ++axis) group(axis);
  mesh_group();
}

void DeviceMesh::prepare(device::Device device) const {
  for (int axis = 0; axis < num_axes(); ++axis) comm::prepare(group(axis), device);
  comm::prepare(mesh_group(), device);
}

DeviceMesh::DeviceMesh(layout::MeshShape shape) : shape_(std::move(shape)) {
  const RankContext& context = RankContext::current();
  for (const int rank : shape_.ranks())
    if (rank >= context.world_size())
      throw Error(str("mesh ", shape_.text(), ": there is no rank ", rank, " in a world of ", context.world_size()),
                  "use ranks of the world");
  coordinates_ = shape_.coordinates_of(context.rank());
}

DeviceMesh DeviceMesh::world(std::string name) {
  return DeviceMesh({RankContext::current().world_size()}, {std::move(name)});
}

DeviceMesh DeviceMesh::slice(const std::vector<std::string>& axes) const {
  return DeviceMesh(shape_.slice(axes, RankContext::current().rank()));
}

comm::ProcessGroup& DeviceMesh::group(int axis) const {
  return comm::group_of(shape_.axis_members(axis, RankContext::current().rank()),
                        shape_.names()[static_cast<std::size_t>(axis)]);
}

comm::ProcessGroup& DeviceMesh::mesh_group() const {
  return num_axes() == 1 ? group(0) : comm::group_of(shape_.ranks());
}

}  // namespace lockstep
