#include "engine/layout/compose.hpp"

#include <algorithm>
#include <utility>

#include "engine/core/error.hpp"

namespace lockstep::layout {

namespace {

bool has(const MeshShape& mesh, const std::string& name) {
  return std::find(mesh.names().begin(), mesh.names().end(), name) != mesh.names().end();
}

bool is_slice_of(const MeshShape& mesh, const MeshShape& root, int rank) {
  return std::all_of(mesh.names().begin(), mesh.names().end(),
                     [&root](const std::string& name) { return has(root, name); }) &&
         root.slice(mesh.names(), rank) == mesh;
}

void check_not_partial(const std::string& name, const ShardedLayout& inner) {
  if (has_partial(inner))
    throw Error(str(name, " is ", inner.text(), ": a partial tensor has no shards"),
                "redistribute it to a replicated or sharded placement first");
}

// Ranks of one slice that is taken twice are the same mesh, whatever root they come from.
void check_axes_differ(const std::string& name, const DataParallelAxes& axes, const ShardedLayout& inner) {
  for (const std::string& axis : inner.mesh.names())
    if (has(axes.mesh, axis))
      throw Error(str(name, " is distributed over the axis `", axis, "` already, as ", inner.text(),
                      ": it cannot be sharded over the mesh ", axes.mesh.text(), ", which has an axis of that name"),
                  "shard it over another axis of the mesh, or distribute it over an axis of its own");
}

void check_slices(const std::string& name, const DataParallelAxes& axes, const ShardedLayout& inner, int rank) {
  if (is_slice_of(axes.mesh, axes.root, rank) && is_slice_of(inner.mesh, axes.root, rank)) return;
  throw Error(str(name, " is distributed as ", inner.text(), ", over a mesh that is not a slice of the mesh ",
                  axes.root.text(), " to which the axes ", axes.mesh.text(),
                  " belong: FSDP requires the DP and TP mesh to have the same parent mesh"),
              str("make one mesh with all axes, such as ", axes.mesh.names().back(), " x ", inner.mesh.names().front(),
                  ", and slice both from it"));
}

void check_order(const std::string& name, const DataParallelAxes& axes, const ShardedLayout& inner) {
  for (const std::string& inside : inner.mesh.names())
    for (const std::string& outside : axes.mesh.names())
      if (axes.root.axis(inside) < axes.root.axis(outside))
        throw Error(str(name, " is ", inner.text(), ": Found TP device_mesh on the ", axes.root.axis(inside),
                        " dimension of its parent mesh ", axes.root.text(), ", outside the axis `", outside,
                        "` of data parallelism"),
                    str("order the axes of the mesh so that `", inside, "` comes after `", outside, "`"));
}

// The number of shards that the layout makes of a dim.
int num_shards_of(const ShardedLayout& layout, int dim) {
  int num_shards = 1;
  for (std::size_t axis = 0; axis < layout.placements.size(); ++axis)
    if (layout.placements[axis].is_shard(dim)) num_shards *= layout.mesh.size(static_cast<int>(axis));
  return num_shards;
}

}  // namespace

ShardedLayout data_parallel_layout(const DataParallelAxes& axes, const Dims& sizes, int dim) {
  ShardedLayout layout{axes.mesh, {}, sizes};
  for (int axis = 0; axis < axes.mesh.num_axes(); ++axis)
    layout.placements.push_back(axis == axes.shard_axis ? shard(dim) : replicate());
  check(layout);
  return layout;
}

ShardedLayout compose(const std::string& name, const DataParallelAxes& axes, const ShardedLayout& inner, int dim,
                      int rank) {
  check(inner);
  check_not_partial(name, inner);
  check_axes_differ(name, axes, inner);
  check_slices(name, axes, inner, rank);
  check_order(name, axes, inner);
  std::vector<std::string> names = axes.mesh.names();
  names.insert(names.end(), inner.mesh.names().begin(), inner.mesh.names().end());
  std::vector<Placement> placements(static_cast<std::size_t>(axes.mesh.num_axes()));
  const int num_inner = num_shards_of(inner, dim);
  placements[static_cast<std::size_t>(axes.shard_axis)] = num_inner == 1 ? shard(dim) : strided_shard(dim, num_inner);
  placements.insert(placements.end(), inner.placements.begin(), inner.placements.end());
  ShardedLayout made{axes.root.slice(names, rank), std::move(placements), inner.sizes};
  check(made);
  return made;
}

ShardedLayout kept_layout(const DataParallelAxes& axes, const ShardedLayout* inner, const Dims& sizes, int dim,
                          int num_kept, int rank) {
  std::vector<std::string> names = {axes.mesh.names()[static_cast<std::size_t>(axes.shard_axis)]};
  const int num_shards = axes.mesh.size(axes.shard_axis);
  LOCKSTEP_CHECK(num_kept > 0 && num_shards % num_kept == 0, num_shards, " shards among ", num_kept, " ranks");
  std::vector<std::string> kept_names = {"kept_replicate", "kept_shard"};
  std::vector<int> kept_sizes = {num_shards / num_kept, num_kept};
  if (inner) {
    names.insert(names.end(), inner->mesh.names().begin(), inner->mesh.names().end());
    kept_names.insert(kept_names.end(), inner->mesh.names().begin(), inner->mesh.names().end());
    kept_sizes.insert(kept_sizes.end(), inner->mesh.sizes().begin(), inner->mesh.sizes().end());
  }
  const MeshShape root(kept_sizes, kept_names, axes.root.slice(names, rank).ranks());
  const DataParallelAxes kept{root, root.slice({"kept_replicate", "kept_shard"}, rank), 1};
  return inner ? compose("a kept shard", kept, *inner, dim, rank) : data_parallel_layout(kept, sizes, dim);
}

}  // namespace lockstep::layout
