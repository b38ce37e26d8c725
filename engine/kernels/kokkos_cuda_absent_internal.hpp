// In place of kokkos_cuda_internal.hpp where Kokkos has no Cuda (internal to engine/kernels).
#pragma once

#include <cstdint>

#include "engine/core/error.hpp"
#include "engine/device/execution.hpp"

namespace lockstep::kernels::cuda {

[[noreturn]] inline void refuse(const char* label) {
  throw UnsupportedError(str(label, ": this build has no Cuda backend"), "build against a Kokkos with Cuda");
}

inline void forget_instances() {}
inline int current_device() { return -1; }

template <class Functor>
void loop(device::Execution, const char* label, std::int64_t, const Functor&) {
  refuse(label);
}
template <class Kernel>
void teams(device::Execution, const char* label, std::int64_t, const Kernel&) {
  refuse(label);
}
template <class Predicate>
std::int64_t first_index(device::Execution, const char* label, std::int64_t, const Predicate&) {
  refuse(label);
}
template <class T>
T value_at(device::Execution, const T*) {
  refuse("lockstep::value_at");
}

}  // namespace lockstep::kernels::cuda
