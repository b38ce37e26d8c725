// The execution space instances of Kokkos, one per stream of a GPU. Without Cuda in Kokkos this source is empty.
#include "engine/kernels/kokkos_launch_internal.hpp"

#ifdef KOKKOS_ENABLE_CUDA
#include <map>
#include <mutex>

namespace lockstep::kernels::cuda {

namespace {

struct Instances {
  std::mutex mutex;
  std::map<void*, Kokkos::Cuda> by_stream;
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

int current_device() {
  int device = -1;
  return cudaGetDevice(&device) == cudaSuccess ? device : -1;
}

void forget_instances() {
  Instances& all = instances();
  const std::lock_guard lock(all.mutex);
  all.by_stream.clear();
}

}  // namespace lockstep::kernels::cuda
#endif
