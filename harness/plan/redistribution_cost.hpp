// The collectives of a redistribution, from the plan's own reading of the documents. The code is independent of
// engine/layout/redistribute.hpp, which computes the steps that the engine runs; a test compares the two.
//
//   change of the placement along an axis     collective
//   Shard -> Replicate                        all_gather
//   Partial -> Replicate                      all_reduce
//   Partial -> Shard                          reduce_scatter
//   Shard(i) -> Shard(j)                      all_to_all
//   Replicate -> Shard, Replicate -> Partial  none
//
// Where several axes shard one dim, they shard it one inside the other. Only the innermost sharding can be removed, so
// shardings inside one that changes are gathered first and applied again later. Local changes come first, gathers last.
//
// Bytes follow from padded shards: an uneven dim counts with the largest shard on every rank.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/layout/placement.hpp"

namespace lockstep::plan {

struct Movement {
  std::string operation;      // the name in the results file
  int axis = 0;               // of the mesh
  std::int64_t elements = 0;  // of the larger of input and output on this rank
  friend bool operator==(const Movement&, const Movement&) = default;
};

// The collectives of `rank`, in their order. Throws Error for a change that no redistribution makes: to Partial from
// anything but Replicate.
std::vector<Movement> redistribution(const layout::ShardedLayout& from, const std::vector<layout::Placement>& to,
                                     int rank);
// Those of its backward. The gradient of a tensor has the layout of the tensor, replicated where that is partial.
std::vector<Movement> redistribution_backward(const layout::ShardedLayout& from,
                                              const std::vector<layout::Placement>& to, int rank);
std::vector<layout::Placement> gradient_placements(std::vector<layout::Placement> placements);
// The collectives after which every rank has the full tensor.
std::vector<Movement> gather_in_full(const layout::ShardedLayout& from, int rank);

}  // namespace lockstep::plan
