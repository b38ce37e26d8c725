// The layout of a tensor that data parallelism shards on top of the sharding it already has (tensor parallelism). A
// pure function of meshes and placements.
//
// Both meshes are slices of one root mesh, the axes of data parallelism outside. Where both shard one dim, the tensor
// is split over the axes of tensor parallelism first, and each of its shards over the axis of data parallelism, by
// ceiling division both times. So the placement of the outer axis is a strided shard:
//
//   root dp 2 x tp 2, 9 rows as Shard(0) on tp: (StridedShard(0, 2), Shard(0)) on dp 2 x tp 2
//   ranks (dp, tp)      0, 0: rows 0..2     0, 1: rows 5..6     1, 0: rows 3..4     1, 1: rows 7..8
//
// The semantics follow PyTorch's fully_shard on parameters that are DTensors.
#pragma once

#include <string>

#include "engine/layout/placement.hpp"

namespace lockstep::layout {

// The axes over which data parallelism distributes a tensor. All axes but `shard_axis` hold replicas.
struct DataParallelAxes {
  MeshShape root;      // the mesh from which `mesh` is sliced; equal to it if it is no slice
  MeshShape mesh;      // its axes
  int shard_axis = 0;  // of `mesh`
};

// The layout of a plain tensor whose dim `dim` is sharded over the axes.
ShardedLayout data_parallel_layout(const DataParallelAxes& axes, const Dims& sizes, int dim);
// The layout of a tensor of layout `inner` after each of its local shards was sharded over the axes along `dim`: on the
// submesh of the root that has the axes of data parallelism and then those of `inner`. `rank` is any rank of both
// meshes. `name` begins the message of an Error, thrown when
// - `inner` is partial on an axis,
// - an axis is an axis of both meshes,
// - one of the meshes is not a slice of the root,
// - an axis of `inner` comes before one of data parallelism in the root.
ShardedLayout compose(const std::string& name, const DataParallelAxes& axes, const ShardedLayout& inner, int dim,
                      int rank);
// The layout of a tensor that every `num_kept` consecutive ranks of the shard axis hold among them, on a mesh of the
// axes kept_replicate, kept_shard and those of `inner` (null: plain, of `sizes`). Its ranks are those of the shard axis
// and the axes of `inner`. `num_kept` divides the size of the shard axis.
ShardedLayout kept_layout(const DataParallelAxes& axes, const ShardedLayout* inner, const Dims& sizes, int dim,
                          int num_kept, int rank);

}  // namespace lockstep::layout
