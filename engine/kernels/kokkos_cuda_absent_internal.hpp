// In place of kokkos_cuda_internal.hpp where Kokkos has no Cuda (internal to engine/kernels). Kernels go to the
// stand-in of CUDA, if the process has one (engine/device/cuda/stand_in.hpp): a copy of the kernel waits on its stream.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/device/cuda/stand_in.hpp"
#include "engine/device/execution.hpp"
#include "engine/kernels/kokkos_team_internal.hpp"

namespace lockstep::kernels::cuda {

inline void forget_instances() {}
// For kernels that wait on a stream of the stand-in. Memory that has become too small stays, because they may use it.
std::byte* scratch_on(device::Execution on, std::size_t bytes);
inline int current_device() { return -1; }

template <class Functor>
void loop(device::Execution on, const char* label, std::int64_t count, const Functor& functor) {
  device::cuda::launch_on_stand_in(label, on.stream, [functor, count] {
    for (std::int64_t i = 0; i < count; ++i) functor(i);
  });
}
template <class Kernel>
void teams(device::Execution on, const char* label, std::int64_t num_teams, const Kernel& kernel) {
  device::cuda::launch_on_stand_in(label, on.stream, [kernel, label, num_teams] {
    teams_in_turn(label, num_teams, Kernel::scratch_bytes, &kernel,
                  [](const void* of, const HostTeam& team) { static_cast<const Kernel*>(of)->team(team); });
  });
}
template <class Predicate>
std::int64_t first_index(device::Execution on, const char* label, std::int64_t count, const Predicate& holds) {
  std::int64_t first = 0;
  device::cuda::launch_on_stand_in(label, on.stream, [&] {
    while (first < count && !holds(first)) ++first;
  });
  device::cuda::wait_for_stand_in(label, on.stream);
  return first;
}
template <class T>
T value_at(device::Execution on, const T* address) {
  constexpr const char* label = "lockstep::value_at";
  T value{};
  device::cuda::launch_on_stand_in(label, on.stream, [&] { value = *address; });
  device::cuda::wait_for_stand_in(label, on.stream);
  return value;
}

}  // namespace lockstep::kernels::cuda
