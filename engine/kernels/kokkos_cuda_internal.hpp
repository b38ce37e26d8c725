// Starts portable bodies on Cuda, on the stream of the execution (internal to engine/kernels). Empty for a Kokkos
// without Cuda.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include <Kokkos_Macros.hpp>
#ifdef KOKKOS_ENABLE_CUDA
#include <Kokkos_Core.hpp>

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

// A team per short row has few threads, so that more rows are under way: a kernel says how long its rows are.
template <class Kernel>
int threads_of_team(const Kernel& kernel) {
  if constexpr (requires { kernel.row_length(); }) {
    if (kernel.row_length() <= short_row) return warp;
  }
  return 128;
}

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

// Kokkos' handle of a team, with the interface of HostTeam.
struct DeviceTeam {
  using Member = Kokkos::TeamPolicy<Kokkos::Cuda>::member_type;
  const Member& member;
  std::byte* memory;
  KOKKOS_FUNCTION std::int64_t index() const { return member.league_rank(); }
  KOKKOS_FUNCTION int rank() const { return member.team_rank(); }
  KOKKOS_FUNCTION int size() const { return member.team_size(); }
  KOKKOS_FUNCTION void barrier() const { member.team_barrier(); }
  KOKKOS_FUNCTION std::byte* scratch() const { return memory; }

  // ExchangesLanes: the value of the thread `distance` above, and of the first one.
  KOKKOS_FUNCTION bool is_one_warp() const { return member.team_size() == warp; }
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

 private:
  static constexpr unsigned all_lanes = 0xffffffff;
};

template <class Kernel>
struct TeamBody {
  Kernel kernel;
  KOKKOS_FUNCTION void operator()(const DeviceTeam::Member& member) const {
    kernel.team(DeviceTeam{member, static_cast<std::byte*>(member.team_scratch(0).get_shmem_aligned(
                                       static_cast<std::ptrdiff_t>(Kernel::scratch_bytes), 16))});
  }
};

template <class Kernel>
void teams(device::Execution on, const char* label, std::int64_t count, const Kernel& kernel) {
  LOCKSTEP_CHECK(count <= std::numeric_limits<int>::max(), label, ": ", count, " teams");
  Kokkos::TeamPolicy<Kokkos::Cuda> policy(instance_on(on), static_cast<int>(count), threads_of_team(kernel));
  policy.set_scratch_size(0, Kokkos::PerTeam(static_cast<int>(Kernel::scratch_bytes) + 16));
  Kokkos::parallel_for(label, by_argument<Kernel>(policy), TeamBody<Kernel>{kernel});
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
