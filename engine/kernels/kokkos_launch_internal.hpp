// Starts work on a backend (internal to engine/kernels).
//
// A kernel is a functor with value members only: pointers, sizes and numbers. It has up to two bodies:
//   the host's, operator()(index), a loop over a piece of work that vectorises;
//   the portable one, for accelerators, a function of one element (`portable(index)`) or of a team of threads
//   (`team(team)`, kokkos_team_internal.hpp). Space::portable runs it on the host, and tests compare the two.
// A kernel whose operator() is KOKKOS_FUNCTION needs no second body. Everything that portable bodies call is
// KOKKOS_FUNCTION too, or constexpr. They make no virtual call, keep no large array and write no result on the host.
//
// On the host only backend.cpp compiles Kokkos, with one functor type for all kernels, because one parallel_for per
// functor would take most of the compile time of this folder. A device cannot call a host function pointer:
// kokkos_cuda_internal.hpp instantiates Kokkos per kernel.
#pragma once

#include <cstddef>
#include <cstdint>

#include <Kokkos_Macros.hpp>

#include "engine/core/error.hpp"
#include "engine/kernels/backend.hpp"
#include "engine/kernels/kokkos_pack_internal.hpp"
#include "engine/kernels/kokkos_team_internal.hpp"
#include "engine/kernels/view.hpp"
#ifdef KOKKOS_ENABLE_CUDA
#include "engine/kernels/kokkos_cuda_internal.hpp"
#else
#include "engine/kernels/kokkos_cuda_absent_internal.hpp"
#endif

namespace lockstep::kernels {

// The number of elements that one call of a host body handles, large enough to vectorise and to amortise the call.
inline constexpr std::int64_t tile = 4096;

inline std::int64_t num_tiles(std::int64_t count) { return (count + tile - 1) / tile; }

std::byte* scratch_of_thread(std::size_t bytes);

// Whether loops must go through Kokkos: its backend has threads, or a profiler is loaded. Otherwise they are plain
// loops, because passing a label costs an allocation, which takes longer than many kernels of a small model.
bool loops_go_through_kokkos();
// Kokkos::parallel_for over [0, count) on the host.
void loop_through_kokkos(const char* label, std::int64_t count, const void* functor,
                         void (*call)(const void* functor, std::int64_t index));
template <class T>
T* data_of(const View& view) {
  return static_cast<T*>(view.data);
}

// Calls f<Word>() with the unsigned type that has the size of an element, for kernels that move bits.
template <class F>
void dispatch_words(DType dtype, F&& f) {
  switch (size_of(dtype)) {
    case 1:
      return f.template operator()<std::uint8_t>();
    case 2:
      return f.template operator()<std::uint16_t>();
    case 4:
      return f.template operator()<std::uint32_t>();
    default:
      return f.template operator()<std::uint64_t>();
  }
}

// Calls f<float>() or f<double>(), for kernels without a 16-bit type.
template <class F>
void dispatch_wide(const char* label, DType dtype, F&& f) {
  if (dtype == DType::float32) return f.template operator()<float>();
  LOCKSTEP_CHECK(dtype == DType::float64, label, " of ", name_of(dtype));
  f.template operator()<double>();
}

// The host bodies of indices [0, count). Always inlined, like the functions that choose it: a launch of a small model
// takes less time than copies of the kernel's members.
template <class Kernel>
[[gnu::always_inline]] inline void run_on_host(const char* label, std::int64_t count, const Kernel& kernel) {
  if (!is_initialized()) [[unlikely]]
    initialize();
  if (!loops_go_through_kokkos()) {
    for (std::int64_t i = 0; i < count; ++i) kernel(i);
    return;
  }
  loop_through_kokkos(label, count, &kernel,
                      [](const void* of, std::int64_t index) { (*static_cast<const Kernel*>(of))(index); });
}

// Calls the portable body where the loops call operator().
template <class Kernel>
struct PortableBody {
  Kernel kernel;
  KOKKOS_FUNCTION void operator()(std::int64_t index) const { kernel.portable(index); }
};

// `label` starts with "lockstep::" and appears in profiles. All throw UnsupportedError for a space that the build
// lacks.

// kernel(index) for each index in [0, count), everywhere.
template <class Kernel>
void run(Execution on, const char* label, std::int64_t count, const Kernel& kernel) {
  if (count <= 0) return;
  if (on.space == Space::cuda) return cuda::loop(on, label, count, kernel);
  run_on_host(label, count, kernel);
}

// kernel.portable(index) for [0, count), in packs if the kernel has them (kokkos_pack_internal.hpp); not in
// Space::host.
template <class Kernel>
[[gnu::noinline]] void run_portable(Execution on, const char* label, std::int64_t count, const Kernel& kernel) {
  if constexpr (requires { Kernel::width; }) {
    const Packed<Kernel> packed(kernel, count);
    run_portable(on, label, packed.num_indices(count), packed);
  } else {
    if (on.space == Space::cuda) return cuda::loop(on, label, count, PortableBody<Kernel>{kernel});
    run_on_host(label, count, PortableBody<Kernel>{kernel});
  }
}

// On the host kernel(index) for [0, count), elsewhere kernel.portable(index) for [0, portable_count).
template <class Kernel>
[[gnu::always_inline]] inline void run(Execution on, const char* label, std::int64_t count, const Kernel& kernel,
                                       std::int64_t portable_count) {
  if (count <= 0) return;
  if (on.space == Space::host) [[likely]]
    return run_on_host(label, count, kernel);
  run_portable(on, label, portable_count, kernel);
}

// kernel.team(team) for `num_teams` teams, which share Kernel::scratch_bytes of memory each; not in Space::host.
template <class Kernel>
[[gnu::noinline]] void run_portable_teams(Execution on, const char* label, std::int64_t num_teams,
                                          const Kernel& kernel) {
  if (num_teams <= 0) return;
  if (on.space == Space::cuda) return cuda::teams(on, label, num_teams, kernel);
  teams_on_host(on, label, num_teams, Kernel::scratch_bytes, &kernel,
                [](const void* of, const HostTeam& team) { static_cast<const Kernel*>(of)->team(team); });
}

// On the host kernel(index) for [0, count), elsewhere kernel.team(team) for `num_teams` teams.
template <class Kernel>
void run_teams(Execution on, const char* label, std::int64_t count, const Kernel& kernel, std::int64_t num_teams) {
  if (count <= 0) return;
  if (on.space == Space::host) [[likely]]
    return run_on_host(label, count, kernel);
  run_portable_teams(on, label, num_teams, kernel);
}
// One team per index.
template <class Kernel>
void run_teams(Execution on, const char* label, std::int64_t count, const Kernel& kernel) {
  run_teams(on, label, count, kernel, count);
}

// Memory of the space in which one kernel leaves values for the next one on the same stream. Each call for a stream
// gives the same memory, or larger memory.
inline std::byte* scratch_on(Execution on, std::size_t bytes) {
  return on.space == Space::cuda ? cuda::scratch_on(on, bytes) : scratch_of_thread(bytes);
}

// The first index below `count` for which holds(index) is true, or `count`. The host waits for it.
template <class Predicate>
std::int64_t first_index(Execution on, const char* label, std::int64_t count, const Predicate& holds) {
  if (on.space == Space::cuda) return cuda::first_index(on, label, count, holds);
  for (std::int64_t i = 0; i < count; ++i)
    if (holds(i)) return i;
  return count;
}
// The value at an address of the space. The host waits for it.
template <class T>
T value_at(Execution on, const T* address) {
  return on.space == Space::cuda ? cuda::value_at(on, address) : *address;
}

}  // namespace lockstep::kernels
