// Starts work on a backend (internal to engine/kernels). The functor is called with each index in [0, count). It reads
// only its own members, because a device has no other access to them.
//
// Only backend.cpp compiles Kokkos, with one functor type for all kernels: one parallel_for per functor would take most
// of the compile time of this folder. A backend that does not run on the host cannot call a host function pointer and
// would have to be instantiated here.
#pragma once

#include <cstdint>

#include <Kokkos_Macros.hpp>

#include "engine/core/error.hpp"
#include "engine/kernels/backend.hpp"
#include "engine/kernels/view.hpp"

namespace lockstep::kernels {

// The number of elements that one functor call handles, large enough to vectorise and to amortise the call.
inline constexpr std::int64_t tile = 4096;

inline std::int64_t num_tiles(std::int64_t count) { return (count + tile - 1) / tile; }

// Whether loops must go through Kokkos: its backend has threads, or a profiler is loaded. Otherwise they are plain
// loops, because passing a label costs an allocation, which takes longer than many kernels of a small model.
bool loops_go_through_kokkos();
// Kokkos::parallel_for over [0, count) on the host.
void loop_through_kokkos(const char* label, std::int64_t count, const void* functor,
                         void (*call)(const void* functor, std::int64_t index));

// `label` starts with "lockstep::" and appears in profiles. Throws UnsupportedError for a space other than host.
template <class Functor>
void run(Space space, const char* label, std::int64_t count, const Functor& functor) {
  if (count <= 0) return;
  if (space != Space::host)
    throw UnsupportedError(str(label, ": this build has no Cuda backend"), "build against a Kokkos with Cuda");
  if (!is_initialized()) [[unlikely]]
    initialize();
  if (!loops_go_through_kokkos()) {
    for (std::int64_t i = 0; i < count; ++i) functor(i);
    return;
  }
  loop_through_kokkos(label, count, &functor,
                      [](const void* of, std::int64_t index) { (*static_cast<const Functor*>(of))(index); });
}

}  // namespace lockstep::kernels
