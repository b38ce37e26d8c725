// The backend of Kokkos on the host (internal to engine/kernels).
#pragma once

#include <Kokkos_Core.hpp>

namespace lockstep::kernels {

// With Cuda, Kokkos starts with the first kernel on a GPU: its start needs a driver, and must come after the fork. The
// host's kernels do without it.
#ifdef KOKKOS_ENABLE_CUDA
inline constexpr bool host_needs_kokkos = false;
#else
inline constexpr bool host_needs_kokkos = true;
#endif

#ifdef KOKKOS_ENABLE_SERIAL
using HostBackend = Kokkos::Serial;
inline constexpr bool host_is_serial = true;
#else
using HostBackend = Kokkos::DefaultHostExecutionSpace;
inline constexpr bool host_is_serial = false;
#endif

}  // namespace lockstep::kernels
