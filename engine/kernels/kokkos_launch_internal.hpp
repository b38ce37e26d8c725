// For the sources of this folder only: the one way they start work on a backend. A functor is called with an index in
// [0, count); what it is handed must be its own members (a device has no other way to see it).
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>

#include <Kokkos_Core.hpp>

#include "engine/core/error.hpp"
#include "engine/kernels/backend.hpp"
#include "engine/kernels/view.hpp"

namespace lockstep::kernels {

#ifdef KOKKOS_ENABLE_SERIAL
using HostBackend = Kokkos::Serial;
inline constexpr bool host_is_serial = true;
#else
using HostBackend = Kokkos::DefaultHostExecutionSpace;
inline constexpr bool host_is_serial = false;
#endif

// Elements that one call of a functor handles: enough to vectorise over, and to be worth a call.
inline constexpr std::int64_t tile = 4096;

inline std::int64_t num_tiles(std::int64_t count) { return (count + tile - 1) / tile; }

// `label` starts with "lockstep::", for profilers.
template <class Functor>
void run(Space space, const char* label, std::int64_t count, const Functor& functor) {
  if (count <= 0) return;
  if (space != Space::host)
    throw UnsupportedError(str(label, ": this build has no Cuda backend"), "build against a Kokkos with Cuda");
  if (!is_initialized()) [[unlikely]]
    initialize();
  // One thread and nobody who profiles: the loop itself. A label alone would cost an allocation, which is more than
  // many of the kernels of a small model take.
  if constexpr (host_is_serial) {
    if (!Kokkos::Profiling::profileLibraryLoaded()) {
      for (std::int64_t i = 0; i < count; ++i) functor(i);
      return;
    }
  }
  Kokkos::parallel_for(label, Kokkos::RangePolicy<HostBackend, Kokkos::IndexType<std::int64_t>>(0, count), functor);
}

}  // namespace lockstep::kernels
