// The execution space instances of Kokkos, one per stream of a GPU. Without Cuda in Kokkos this source is empty.
#include "engine/kernels/kokkos_launch_internal.hpp"

#ifdef KOKKOS_ENABLE_CUDA
#include <algorithm>
#include <bit>
#include <map>
#include <mutex>

#include "engine/core/resources.hpp"

namespace lockstep::kernels::cuda {

namespace {

struct Scratch {
  void* memory = nullptr;
  std::size_t bytes = 0;
};
struct Instances {
  std::mutex mutex;
  std::map<void*, Kokkos::Cuda> by_stream;
  std::map<void*, Scratch> scratch;
};
Instances& instances() {
  static Instances all;
  return all;
}

}  // namespace

Kokkos::Cuda instance_on(device::Execution on) {
  initialize_device();
  if (on.stream == nullptr) return Kokkos::Cuda();
  Instances& all = instances();
  const std::lock_guard lock(all.mutex);
  const auto found = all.by_stream.find(on.stream);
  if (found != all.by_stream.end()) return found->second;
  return all.by_stream.emplace(on.stream, Kokkos::Cuda(static_cast<cudaStream_t>(on.stream))).first->second;
}

std::byte* scratch_on(device::Execution on, std::size_t bytes) {
  Instances& all = instances();
  const std::lock_guard lock(all.mutex);
  Scratch& scratch = all.scratch[on.stream];
  if (scratch.bytes < bytes) {
    auto* const stream = static_cast<cudaStream_t>(on.stream);
    if (scratch.memory != nullptr) static_cast<void>(cudaFreeAsync(scratch.memory, stream));
    scratch = {};
    void* memory = nullptr;
    const std::size_t wanted = std::bit_ceil(std::max(bytes, std::size_t{1} << 16));
    if (const cudaError_t error = cudaMallocAsync(&memory, wanted, stream); error != cudaSuccess)
      throw ResourceError(str("cudaMallocAsync of ", wanted, " bytes: ", cudaGetErrorString(error)),
                          "use fewer ranks per GPU, or a GPU with more memory");
    scratch = {memory, wanted};
  }
  return static_cast<std::byte*>(scratch.memory);
}

int current_device() {
  int device = -1;
  return cudaGetDevice(&device) == cudaSuccess ? device : -1;
}

void forget_instances() {
  Instances& all = instances();
  const std::lock_guard lock(all.mutex);
  all.by_stream.clear();
  for (const auto& [stream, scratch] : all.scratch) static_cast<void>(cudaFree(scratch.memory));
  all.scratch.clear();
}

}  // namespace lockstep::kernels::cuda
#endif
