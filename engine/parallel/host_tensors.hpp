// Small blocking collectives over numbers on the host, and one broadcast of many tensors. All ranks of the group call
// them together.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/comm/process_group.hpp"
#include "engine/tensor/tensor.hpp"

namespace lockstep::parallel {

// The numbers of rank 0. All ranks give as many.
std::vector<std::int64_t> broadcast_numbers(comm::ProcessGroup& group, const std::vector<std::int64_t>& mine,
                                            const comm::Call& call);
// One number per rank, in group order.
std::vector<std::int64_t> gather_numbers(comm::ProcessGroup& group, std::int64_t mine, const comm::Call& call);
// The element-wise sums over the ranks, computed in int32.
std::vector<std::int64_t> sum_numbers(comm::ProcessGroup& group, const std::vector<std::int64_t>& mine,
                                      const comm::Call& call);

// The values of rank 0 in these tensors, with one broadcast per device. The results are contiguous; those of one device
// share one memory. The tensors have the same sizes and types on all ranks; several types may be mixed.
std::vector<Tensor> broadcast_together(comm::ProcessGroup& group, const std::vector<Tensor>& tensors,
                                       const comm::Call& call);

}  // namespace lockstep::parallel
