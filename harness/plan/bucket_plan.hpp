// How a replicated module groups gradients into buckets. The plan computes this independently of the engine, after
// DistributedDataParallel.
//
// A bucket holds parameters of one dtype. It closes when its bytes reach the cap, so its last parameter may exceed the
// cap. The first bucket of each dtype has a cap of 1 MiB and the others 25 MiB; a cap from the user applies to all.
// (Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", section 3.2.3;
// torch.nn.parallel.DistributedDataParallel, `bucket_cap_mb`.)
//
//   before the gradient order is known   one bucket per dtype, the dtype that is registered last first
//   find_unused_parameters               filled in registration order; reduced from the last bucket to the first
//   rebuilt                              filled in gradient order; closed buckets first, in the order in which they
//                                        close, then the open ones, by dtype
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
using BucketList = std::vector<std::vector<int>>;  // indices of members; buckets in the order of their reductions

BucketList first_buckets(const std::vector<BucketMember>& members);
BucketList registered_buckets(const std::vector<BucketMember>& members, std::optional<std::int64_t> cap_bytes);
// `gradient_order`: the index of every member once, in the order in which the gradients were computed.
BucketList rebuilt_buckets(const std::vector<BucketMember>& members, const std::vector<int>& gradient_order,
                           std::optional<std::int64_t> cap_bytes);

}  // namespace lockstep::plan
