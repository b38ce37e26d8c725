// The backend of Nvidia GPUs. Internal to engine/device.
#pragma once

#include <cstddef>
#include <memory>

#include "engine/device/backend.hpp"

namespace lockstep::device {

// The rank of index i on its host (place_on_host.hpp) uses GPU i, if the host has a GPU per rank, else GPU 0. Throws
// UnsupportedError where the build has no CUDA, the machine no usable driver or no GPU, for more ranks than a GPU can
// have, and under a schedule; ResourceError where other programs use the memory, or CUDA refuses it.
std::unique_ptr<Backend> open_cuda(const RankContext& context);
// Throws UnsupportedError where the build has no CUDA or the machine no usable driver. Does not initialise CUDA.
void require_cuda();

namespace cuda {

// The transport of ranks that share a GPU has no more members (kernels::max_members).
inline constexpr int max_ranks_per_gpu = 64;

// The memory that each rank on a GPU allocates. The contexts (one per process) have theirs first; the rank gets its
// share of 90 % of the rest, at most 90 % of `free`, and at most `wanted`. All in bytes; 0 if nothing is left.
struct GpuMemory {
  std::size_t total = 0, free = 0;
};
std::size_t share_of(GpuMemory memory, int ranks, int contexts, std::size_t wanted);

}  // namespace cuda

}  // namespace lockstep::device
