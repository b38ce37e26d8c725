#include "engine/core/error.hpp"
#include "engine/device/cuda_backend.hpp"

namespace lockstep::device {

void require_cuda() {
  throw UnsupportedError("this build has no cuda device", "use sim, or build with a Kokkos that has its Cuda backend");
}

std::unique_ptr<Backend> open_cuda(const RankContext&) {
  require_cuda();
  return nullptr;
}

}  // namespace lockstep::device
