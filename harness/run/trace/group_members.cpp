#include "harness/run/trace/group_members.hpp"

#include <bit>
#include <cstdint>

#include "engine/core/checked.hpp"

namespace lockstep::run {

namespace {

// The group over the fewest axes with this product. All axes of the mesh come last.
std::vector<int> over_several_axes(const layout::MeshShape& mesh, int rank, int size) {
  constexpr int most_axes = 16;
  if (mesh.num_ranks() == size || mesh.num_axes() > most_axes)
    return mesh.num_ranks() == size ? mesh.ranks() : std::vector<int>();
  const auto num_sets = std::uint32_t{1} << mesh.num_axes();
  std::vector<std::string> best;
  for (std::uint32_t set = 1; set < num_sets; ++set) {
    std::vector<std::string> names;
    std::int64_t product = 1;
    for (int axis = 0; axis < mesh.num_axes(); ++axis) {
      if ((set >> axis & 1U) == 0) continue;
      names.push_back(mesh.names()[static_cast<std::size_t>(axis)]);
      product = bounded_product(product, std::int64_t{mesh.size(axis)});
    }
    if (product == size && (best.empty() || names.size() < best.size())) best = names;
  }
  return best.empty() ? std::vector<int>() : mesh.slice(best, rank).ranks();
}

}  // namespace

std::vector<int> members_of(const std::vector<layout::MeshShape>& meshes, int rank, const std::string& axis, int size) {
  for (auto mesh = meshes.rbegin(); mesh != meshes.rend(); ++mesh) {
    if (!mesh->contains(rank)) continue;
    if (axis.empty()) {
      const std::vector<int> members = over_several_axes(*mesh, rank, size);
      if (!members.empty()) return members;
      continue;
    }
    for (int at = 0; at < mesh->num_axes(); ++at)
      if (mesh->names()[static_cast<std::size_t>(at)] == axis && mesh->size(at) == size)
        return mesh->axis_members(at, rank);
  }
  return {};
}

}  // namespace lockstep::run
