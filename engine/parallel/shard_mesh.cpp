#include "engine/parallel/shard_mesh.hpp"

#include "engine/core/defects.hpp"
#include "engine/core/rank_context.hpp"

namespace lockstep::parallel {

layout::ShardedLayout ShardMesh::layout_of(const std::string& name, const Tensor& parameter, int dim) const {
  return layout_of(name, parameter.sizes(), parameter.layout(), dim);
}

layout::ShardedLayout ShardMesh::layout_of(const std::string& name, const Dims& sizes, const LayoutPtr& inner,
                                           int dim) const {
  if (!inner) return layout::data_parallel_layout(axes(), sizes, dim);
  layout::ShardedLayout made = layout::compose(name, axes(), *inner, dim, RankContext::current().rank());
  if (defect_armed(Defect::shard_layout_not_strided)) [[unlikely]]
    for (layout::Placement& placement : made.placements)
      if (placement.is_shard()) placement = layout::shard(placement.dim);
  if (defect_armed(Defect::shard_layout_axes_swapped)) [[unlikely]]
    std::swap(made.placements[static_cast<std::size_t>(shard_axis)], made.placements.back());
  return made;
}

}  // namespace lockstep::parallel
