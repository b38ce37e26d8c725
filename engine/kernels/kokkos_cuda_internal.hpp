// Starts portable bodies on Cuda, on the stream of the execution (internal to engine/kernels). Empty for a Kokkos
// without Cuda.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include <Kokkos_Macros.hpp>
#ifdef KOKKOS_ENABLE_CUDA
#include <Kokkos_Core.hpp>

#include "engine/core/checked.hpp"
#include "engine/core/error.hpp"
#include "engine/device/execution.hpp"
#include "engine/kernels/kokkos_team_internal.hpp"

namespace lockstep::kernels::cuda {

// The execution space instance on the stream. It is created at the first use of the stream and kept until finalize().
// It does not own the stream.
Kokkos::Cuda instance_on(device::Execution on);
// Memory of the stream, kept as long. It grows in stream order, without a wait for the device.
std::byte* scratch_on(device::Execution on, std::size_t bytes);
void forget_instances();
int current_device();  // of the calling thread; -1 if CUDA cannot tell

inline constexpr int warp = 32;
static_assert(warp == reduce_lanes);

// Has Kokkos hand over the functor as the argument of the kernel. It would put one of more than 512 bytes into constant
// memory, whose last kernel the host waits for.
template <class Functor, class Policy>
auto by_argument(const Policy& policy) {
  static_assert(sizeof(Functor) <= 3072, "arguments of a kernel have 4 KiB");
  return Kokkos::Experimental::require(policy, Kokkos::Experimental::WorkItemProperty::HintLightWeight);
}

template <class Functor>
void loop(device::Execution on, const char* label, std::int64_t count, const Functor& functor) {
  const Kokkos::RangePolicy<Kokkos::Cuda, Kokkos::IndexType<std::int64_t>> policy(instance_on(on), 0, count);
  Kokkos::parallel_for(label, by_argument<Functor>(policy), functor);
}

using Member = Kokkos::TeamPolicy<Kokkos::Cuda>::member_type;

// ExchangesLanes: the value of the thread `distance` above in the warp, and of its first one.
struct Warp {
  template <class V>
  KOKKOS_FUNCTION V from_above(V value, int distance) const {
    KOKKOS_IF_ON_DEVICE((return __shfl_down_sync(all_lanes, value, distance);))
    KOKKOS_IF_ON_HOST((static_cast<void>(distance); return value;))
  }
  template <class V>
  KOKKOS_FUNCTION V from_first(V value) const {
    KOKKOS_IF_ON_DEVICE((return __shfl_sync(all_lanes, value, 0);))
    KOKKOS_IF_ON_HOST((return value;))
  }
  static constexpr unsigned all_lanes = 0xffffffff;
};

// Kokkos' handle of a team, with the interface of HostTeam.
struct DeviceTeam : Warp {
  static constexpr bool is_one_warp = false;
  const Member& member;
  std::byte* memory;
  KOKKOS_FUNCTION DeviceTeam(const Member& of, std::byte* scratch) : member(of), memory(scratch) {}
  KOKKOS_FUNCTION std::int64_t index() const { return member.league_rank(); }
  KOKKOS_FUNCTION int rank() const { return member.team_rank(); }
  KOKKOS_FUNCTION int size() const { return member.team_size(); }
  KOKKOS_FUNCTION void barrier() const { member.team_barrier(); }
  KOKKOS_FUNCTION std::byte* scratch() const { return memory; }
  KOKKOS_FUNCTION std::byte* row_scratch() const { return memory + sum_scratch_bytes; }
};

// A warp of Kokkos' team as a team of its own.
struct WarpTeam : Warp {
  static constexpr bool is_one_warp = true;
  std::int64_t number;
  int lane;
  std::byte* memory;
  KOKKOS_FUNCTION WarpTeam(std::int64_t index, int rank, std::byte* scratch)
      : number(index), lane(rank), memory(scratch) {}
  KOKKOS_FUNCTION std::int64_t index() const { return number; }
  KOKKOS_FUNCTION int rank() const { return lane; }
  KOKKOS_FUNCTION static constexpr int size() { return warp; }
  KOKKOS_FUNCTION void barrier() const { KOKKOS_IF_ON_DEVICE((__syncwarp();)) }
  KOKKOS_FUNCTION std::byte* row_scratch() const { return memory; }
};

template <class Kernel>
struct TeamBody {
  Kernel kernel;
  KOKKOS_FUNCTION void operator()(const Member& member) const {
    kernel.team(DeviceTeam(member, static_cast<std::byte*>(member.team_scratch(0).get_shmem_aligned(
                                       static_cast<std::ptrdiff_t>(Kernel::scratch_bytes), 16))));
  }
};

// Several rows per block of threads, because a GPU starts blocks slowly and has few under way.
template <class Kernel>
struct RowsBody {
  Kernel kernel;
  std::int64_t count;  // of rows
  int rows_of_block;
  int bytes;  // of scratch memory per row
  KOKKOS_FUNCTION void operator()(const Member& member) const {
    auto* const memory =
        static_cast<std::byte*>(member.team_scratch(0).get_shmem_aligned(element_offset(rows_of_block, bytes), 16));
    const int row_of_block = member.team_rank() / warp;
    const std::int64_t row = std::int64_t{member.league_rank()} * rows_of_block + row_of_block;
    if (row < count)
      kernel.team(WarpTeam(row, member.team_rank() % warp, memory + element_offset(row_of_block, bytes)));
  }
};

// As many as the scratch memory of a block permits, but few rows are shared among more blocks.
inline int rows_of_block(std::int64_t rows, std::size_t bytes_of_row) {
  constexpr std::size_t most_bytes = 32 << 10;
  constexpr std::int64_t enough_blocks = 512;
  int together = 8;
  while (together > 1 &&
         (static_cast<std::size_t>(together) * bytes_of_row > most_bytes || rows < together * enough_blocks))
    together /= 2;
  return together;
}

template <class Body>
void start_teams(device::Execution on, const char* label, std::int64_t count, int threads, std::size_t scratch_bytes,
                 const Body& body) {
  LOCKSTEP_CHECK(count <= std::numeric_limits<int>::max(), label, ": ", count, " teams");
  Kokkos::TeamPolicy<Kokkos::Cuda> policy(instance_on(on), static_cast<int>(count), threads);
  policy.set_scratch_size(0, Kokkos::PerTeam(static_cast<int>(scratch_bytes) + 16));
  Kokkos::parallel_for(label, by_argument<Body>(policy), body);
}

template <class Kernel>
void teams(device::Execution on, const char* label, std::int64_t count, const Kernel& kernel) {
  if constexpr (requires { kernel.row_length(); }) {
    if (kernel.row_length() <= short_row) {
      std::size_t bytes = 0;
      if constexpr (requires { kernel.row_scratch_bytes(); }) bytes = kernel.row_scratch_bytes();
      const int rows = rows_of_block(count, bytes);
      return start_teams(on, label, (count + rows - 1) / rows, rows * warp, bounded_bytes(rows, bytes),
                         RowsBody<Kernel>{kernel, count, rows, static_cast<int>(bytes)});
    }
  }
  start_teams(on, label, count, 128, Kernel::scratch_bytes, TeamBody<Kernel>{kernel});
}

template <class Predicate>
struct FirstIndex {
  Predicate holds;
  KOKKOS_FUNCTION void operator()(std::int64_t index, std::int64_t& first) const {
    if (index < first && holds(index)) first = index;
  }
};
template <class Predicate>
std::int64_t first_index(device::Execution on, const char* label, std::int64_t count, const Predicate& holds) {
  if (count == 0) return 0;
  std::int64_t first = count;
  Kokkos::parallel_reduce(label,
                          Kokkos::RangePolicy<Kokkos::Cuda, Kokkos::IndexType<std::int64_t>>(instance_on(on), 0, count),
                          FirstIndex<Predicate>{holds}, Kokkos::Min<std::int64_t>(first));
  return first < count ? first : count;
}

template <class T>
T value_at(device::Execution on, const T* address) {
  using Unmanaged = Kokkos::MemoryTraits<Kokkos::Unmanaged>;
  T value{};
  const Kokkos::View<T, Kokkos::HostSpace, Unmanaged> to(&value);
  const Kokkos::View<const T, Kokkos::CudaSpace, Unmanaged> from(address);
  const Kokkos::Cuda instance = instance_on(on);
  Kokkos::deep_copy(instance, to, from);
  instance.fence("lockstep::value_at");
  return value;
}

}  // namespace lockstep::kernels::cuda

#endif  // KOKKOS_ENABLE_CUDA
