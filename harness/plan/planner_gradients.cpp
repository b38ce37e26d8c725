// The collectives of steps that read all gradients: clip_grad_norm and the gradient scaler.
#include <algorithm>
#include <utility>

#include "harness/plan/planner.hpp"

namespace lockstep::plan {

namespace {

Collective reduction_of(const char* owner, const std::string& axis, int group_size, std::int64_t bytes) {
  Collective collective;
  collective.family = "tensor_parallel";
  collective.operation = "all_reduce";
  collective.axis = axis;
  collective.group_size = group_size;
  collective.owner = owner;
  collective.bytes = bytes;
  return collective;
}

// A norm, or a sum of norms, of gradients that the same axes shard.
struct Norm {
  std::vector<std::pair<std::string, int>> axes;  // name and size, in the order of the mesh
  DType dtype = DType::float32;
};

}  // namespace

// The norms of gradients with the same axes are added on the rank. Axes are reduced from the innermost, in the order in
// which the gradients have named them. The norms that share an axis are reduced together.
void Planner::clip_gradients(const std::vector<Gradient>& gradients) {
  std::vector<Norm> norms;
  std::vector<std::pair<std::string, int>> axes;
  const auto add = [&norms](const Norm& norm) {
    const auto same =
        std::find_if(norms.begin(), norms.end(), [&](const Norm& known) { return known.axes == norm.axes; });
    if (same == norms.end())
      norms.push_back(norm);
    else
      same->dtype = std::max(same->dtype, norm.dtype, [](DType a, DType b) { return size_of(a) < size_of(b); });
  };
  for (const Gradient& gradient : gradients) {
    Norm norm{{}, gradient.norm_type};
    for (std::size_t axis = 0; axis < gradient.layout.placements.size(); ++axis)
      if (gradient.layout.placements[axis].is_shard())
        norm.axes.emplace_back(gradient.layout.mesh.names()[axis], gradient.layout.mesh.size(static_cast<int>(axis)));
    for (const auto& axis : norm.axes)
      if (std::find(axes.begin(), axes.end(), axis) == axes.end()) axes.push_back(axis);
    add(norm);
  }
  while (!axes.empty()) {
    const auto is_innermost = [&norms](const auto& axis) {
      return std::all_of(norms.begin(), norms.end(), [&](const Norm& norm) {
        const auto at = std::find(norm.axes.begin(), norm.axes.end(), axis);
        return at == norm.axes.end() || at + 1 == norm.axes.end();
      });
    };
    auto next = std::find_if(axes.begin(), axes.end(), is_innermost);
    if (next == axes.end()) next = axes.begin();
    const auto axis = *next;
    axes.erase(next);
    std::vector<Norm> reduced;
    std::erase_if(norms, [&](Norm& norm) {
      if (std::erase(norm.axes, axis) == 0) return false;
      reduced.push_back(norm);
      return true;
    });
    DType widest = DType::float32;
    for (const Norm& norm : reduced)
      if (size_of(norm.dtype) > size_of(widest)) widest = norm.dtype;
    issue()(reduction_of("clip_grad_norm", axis.first, axis.second,
                         bytes_of({static_cast<std::int64_t>(reduced.size())}, widest)));
    for (Norm& norm : reduced) {
      norm.dtype = widest;
      add(norm);
    }
  }
}

void Planner::unscale_gradients(const std::vector<Gradient>& gradients) {
  std::vector<layout::MeshShape> meshes;
  for (const Gradient& gradient : gradients)
    if (std::find(meshes.begin(), meshes.end(), gradient.layout.mesh) == meshes.end())
      meshes.push_back(gradient.layout.mesh);
  for (const layout::MeshShape& mesh : meshes)
    issue()(reduction_of("grad_scaler", mesh.num_axes() == 1 ? mesh.names()[0] : "", mesh.num_ranks(),
                         bytes_of({1}, DType::float32)));
}

}  // namespace lockstep::plan
