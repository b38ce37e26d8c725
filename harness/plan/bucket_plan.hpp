// How a replicated module groups gradients into buckets: the plan's own reading of DistributedDataParallel.
//
// Parameters of different types never share a bucket. A bucket closes once its bytes reach the cap, so that its last
// parameter may carry it past. The first bucket of each type has a cap of its own, 1 MiB, unless the user gives a cap,
// which then holds for all; without one the others have 25 MiB. (Li et al., "PyTorch Distributed: Experiences on
// Accelerating Data Parallel Training", section 3.2.3; torch.nn.parallel.DistributedDataParallel, `bucket_cap_mb`.)
//
//   before the order of gradients is known   one bucket per type, the type that is registered last first
//   with unused parameters looked for        cut in the order of registration; reduced from the last to the first
//   rebuilt                                  cut in the order in which gradients came: each bucket as it closes, then
//                                            those that stay open, by type
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/core/types.hpp"

namespace lockstep::plan {

struct BucketMember {
  std::int64_t bytes = 0;
  DType dtype = DType::float32;
};
using BucketList = std::vector<std::vector<int>>;  // indices of members, in the order of reduction

BucketList first_buckets(const std::vector<BucketMember>& members);
BucketList registered_buckets(const std::vector<BucketMember>& members, std::optional<std::int64_t> cap_bytes);
// `came`: every member once, in the order of their gradients.
BucketList rebuilt_buckets(const std::vector<BucketMember>& members, const std::vector<int>& came,
                           std::optional<std::int64_t> cap_bytes);

}  // namespace lockstep::plan
