// Small collectives over numbers on the host, and one broadcast of many tensors. They block until the numbers are
// there.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/comm/process_group.hpp"
#include "engine/tensor/tensor.hpp"

namespace lockstep::parallel {

// Rank 0's numbers; all ranks give equally many.
std::vector<std::int64_t> broadcast_numbers(comm::ProcessGroup& group, const std::vector<std::int64_t>& mine,
                                            const comm::Call& call);
// The numbers of all ranks, in group order.
std::vector<std::int64_t> gather_numbers(comm::ProcessGroup& group, std::int64_t mine, const comm::Call& call);
// Sums over the ranks, one a place; as 32-bit integers on the way.
std::vector<std::int64_t> sum_numbers(comm::ProcessGroup& group, const std::vector<std::int64_t>& mine,
                                      const comm::Call& call);

// The values that rank 0 has in these tensors, in one broadcast a device: contiguous tensors over one common memory.
// Types may be mixed. Rank 0 gets its own values. `tensors` have the same sizes and types on all ranks.
std::vector<Tensor> broadcast_together(comm::ProcessGroup& group, const std::vector<Tensor>& tensors,
                                       const comm::Call& call);

}  // namespace lockstep::parallel
