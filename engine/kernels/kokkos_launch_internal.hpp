// For the sources of this folder only: the one way they start work on a backend. A functor is called with an index in
// [0, count); what it is handed must be its own members (a device has no other way to see it).
//
// Kokkos itself is compiled in backend.cpp alone, with one functor for all: a parallel_for of its own for each of the
// many functors would take most of the time that this folder takes to compile. A backend that runs elsewhere than on
// the host cannot follow a pointer to code of the host, and would have to be instantiated here.
#pragma once

#include <cstdint>

#include <Kokkos_Macros.hpp>

#include "engine/core/error.hpp"
#include "engine/kernels/backend.hpp"
#include "engine/kernels/view.hpp"

namespace lockstep::kernels {

// Elements that one call of a functor handles: enough to vectorise over, and to be worth a call.
inline constexpr std::int64_t tile = 4096;

inline std::int64_t num_tiles(std::int64_t count) { return (count + tile - 1) / tile; }

// Whether loops must go through Kokkos: its backend has threads, or somebody profiles. Else they are plain loops: a
// label alone would cost an allocation, which is more than many of the kernels of a small model take.
bool loops_go_through_kokkos();
// Kokkos::parallel_for over [0, count) on the host.
void loop_through_kokkos(const char* label, std::int64_t count, const void* functor,
                         void (*call)(const void* functor, std::int64_t index));

// `label` starts with "lockstep::", for profilers.
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
