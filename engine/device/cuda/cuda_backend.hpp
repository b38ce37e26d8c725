// The backend of Nvidia GPUs. Internal to engine/device.
#pragma once

#include <cstddef>
#include <memory>

#include "engine/device/backend.hpp"

namespace lockstep::device {

// The rank of index i on its host (place_on_host.hpp) uses GPU i modulo their number. Throws UnsupportedError where the
// build has no CUDA, the machine no usable driver or no GPU, and under a schedule; ResourceError where CUDA refuses the
// memory of the rank.
std::unique_ptr<Backend> open_cuda(const RankContext& context);
// Throws UnsupportedError where the build has no CUDA or the machine no usable driver. Does not initialise CUDA.
void require_cuda();

namespace cuda {

// What a rank allocates on its GPU: its share of 90 % of the memory, besides what the contexts of the processes take,
// and no more than 90 % of `free`, nor than `wanted`. All in bytes; 0 if nothing is left.
struct GpuMemory {
  std::size_t total = 0, free = 0;
};
std::size_t share_of(GpuMemory memory, int ranks_per_gpu, std::size_t wanted);

}  // namespace cuda

}  // namespace lockstep::device
