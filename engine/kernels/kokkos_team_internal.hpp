// Teams of threads: what a portable body with reductions sees of its backend (internal to engine/kernels).
//
// The functions that reduce give all threads of the team the same value, whatever the number of threads: the order of
// reduce.hpp belongs to the elements. All threads of a team call them together. They use the team's scratch memory from
// its start; copies of rows lie behind it (row_scratch).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

#include <Kokkos_Macros.hpp>

#include "engine/core/types.hpp"
#include "engine/device/execution.hpp"
#include "engine/kernels/reduce.hpp"

namespace lockstep::kernels {

// Blocks that a team sums at a time, and values that it compares at a time.
inline constexpr std::int64_t team_blocks = 8;
inline constexpr std::int64_t team_slots = team_blocks * reduce_lanes;
inline constexpr std::size_t sum_scratch_bytes = sizeof(double[team_slots]);

// A kernel with row_length() has one row per team. On a GPU, a row of up to this length has a team of one warp, which
// has row_scratch_bytes() of scratch memory, if the kernel has that function, and otherwise none.
inline constexpr std::int64_t short_row = 1024;

// One thread of a team on the host. Its functions are KOKKOS_FUNCTION because bodies for both kinds of teams call them.
class HostTeam {
 public:
  HostTeam(std::int64_t index, int rank, int size, std::byte* scratch, const void* barrier,
           void (*wait)(const void* barrier))
      : index_(index), rank_(rank), size_(size), scratch_(scratch), barrier_(barrier), wait_(wait) {}
  KOKKOS_FUNCTION std::int64_t index() const { return index_; }  // of the team
  KOKKOS_FUNCTION int rank() const { return rank_; }             // of the thread
  KOKKOS_FUNCTION int size() const { return size_; }
  KOKKOS_FUNCTION void barrier() const { wait_(barrier_); }
  KOKKOS_FUNCTION std::byte* scratch() const { return scratch_; }
  KOKKOS_FUNCTION std::byte* row_scratch() const { return scratch_ + sum_scratch_bytes; }

 private:
  std::int64_t index_;
  int rank_, size_;
  std::byte* scratch_;
  const void* barrier_;
  void (*wait_)(const void* barrier);
};

// The type in which elements of T are summed, and that of the total over the blocks.
template <class T>
using SumType = std::conditional_t<std::is_integral_v<T>, std::int64_t, ComputeType<T>>;
template <class C>
using TotalType = std::conditional_t<std::is_integral_v<C>, std::int64_t, double>;

// The sum over blocks: add() takes the block sums in order.
template <class C>
class BlockTotal {
 public:
  KOKKOS_FORCEINLINE_FUNCTION void add(C block_sum) {
    group_ += block_sum;
    if (++blocks_ % reduce_group != 0) return;
    total_ += group_;
    group_ = 0;
  }
  KOKKOS_FORCEINLINE_FUNCTION TotalType<C> value() const { return total_ + group_; }

 private:
  TotalType<C> total_ = 0, group_ = 0;
  std::int64_t blocks_ = 0;
};

// f(i) for i < count, shared among the threads. Neighbouring threads get neighbouring i.
template <class Team, class F>
KOKKOS_INLINE_FUNCTION void for_each_of(const Team& team, std::int64_t count, const F& f) {
  for (std::int64_t i = team.rank(); i < count; i += team.size()) f(i);
}

// to[i] = f(i) for i < count, shared among the threads as in for_each_of. A thread computes several values before it
// stores the first, so that their loads are under way together.
template <class Team, class T, class F>
KOKKOS_INLINE_FUNCTION void store_each_of(const Team& team, T* to, std::int64_t count, const F& f) {
  constexpr int at_once = 8;
  const std::int64_t step = team.size();
  std::int64_t i = team.rank();
  for (; i + (at_once - 1) * step < count; i += at_once * step) {
    T values[at_once];
    for (int k = 0; k < at_once; ++k) values[k] = f(i + k * step);
    for (int k = 0; k < at_once; ++k) to[i + k * step] = values[k];
  }
  for (; i < count; i += step) to[i] = f(i);
}

// Adds the upper half of the first 2 * half lanes to the lower one, and so on. The sizes are constants, because a GPU
// divides slowly by others.
template <int half, int width, class C, class Team>
KOKKOS_FUNCTION void add_halves(const Team& team, C* lanes, std::int64_t blocks) {
  constexpr std::int64_t values = half * width;
  team.barrier();
  for_each_of(team, blocks * values, [=](std::int64_t i) {
    const std::int64_t block = i / values;
    C* const to = lanes + block * reduce_lanes * width + (i - block * values);
    *to = *to + to[values];
  });
  if constexpr (half > 1) add_halves<half / 2, width>(team, lanes, blocks);
}

// Adds the lanes of each block as a pairwise tree; the sum of block b is then lanes[b * reduce_lanes * width]. A lane
// holds `width` neighbouring values that are reduced side by side.
template <int width, class C, class Team>
KOKKOS_FUNCTION void add_lanes(const Team& team, C* lanes, std::int64_t blocks) {
  add_halves<reduce_lanes / 2, width>(team, lanes, blocks);
  team.barrier();
}

// The sum of f(i) for i = first, first + reduce_lanes, ... < end, in order. Several terms are read at a time.
template <class C, class F>
KOKKOS_FORCEINLINE_FUNCTION C lane_sum(std::int64_t first, std::int64_t end, const F& f) {
  constexpr int at_once = 16;
  C sum = 0;
  std::int64_t i = first;
  for (; i + (at_once - 1) * reduce_lanes < end; i += at_once * reduce_lanes) {
    C terms[at_once];
    for (int k = 0; k < at_once; ++k) terms[k] = f(i + k * reduce_lanes);
    for (int k = 0; k < at_once; ++k) sum += terms[k];
  }
  for (; i < end; i += reduce_lanes) sum += f(i);
  return sum;
}

// A team on a GPU. The threads of a warp are the lanes of a block, and exchange values through registers. Teams on the
// host cannot.
template <class Team>
concept ExchangesLanes = requires(const Team& team) {
  team.from_first(0);
};
// A team of one warp, which needs no scratch memory for reductions.
template <class Team>
concept IsOneWarp = ExchangesLanes<Team> && Team::is_one_warp;

template <class C, class Team>
KOKKOS_FORCEINLINE_FUNCTION C warp_tree(const Team& team, C lane) {
  for (int half = reduce_lanes / 2; half > 0; half /= 2) lane = lane + team.from_above(lane, half);
  return team.from_first(lane);
}
template <class C, class Team, class F>
KOKKOS_FUNCTION TotalType<C> warp_total(const Team& team, std::int64_t count, const F& f) {
  BlockTotal<C> total;
  for (std::int64_t first = 0; first < count; first += reduce_block) {
    const std::int64_t end = count - first < reduce_block ? count : first + reduce_block;
    total.add(warp_tree(team, lane_sum<C>(first + team.rank(), end, f)));
  }
  team.barrier();
  return total.value();
}
template <class C, class Team, class F>
KOKKOS_FUNCTION C warp_largest(const Team& team, std::int64_t count, const F& f) {
  C best = f(0);
  for (std::int64_t i = team.rank(); i < count; i += team.size()) {
    const C x = f(i);
    best = x > best ? x : best;
  }
  for (int half = reduce_lanes / 2; half > 0; half /= 2) {
    const C other = team.from_above(best, half);
    best = other > best ? other : best;
  }
  team.barrier();
  return team.from_first(best);
}

// The sums of f(i) over the blocks of reduce.hpp from element `first` on, at most team_blocks of them, of i < count.
// Returns their number; the sum of block b is in lanes[b * reduce_lanes] of the scratch memory. Ends with a barrier.
template <class C, class Team, class F>
KOKKOS_FUNCTION std::int64_t team_block_sums(const Team& team, std::int64_t first, std::int64_t count, const F& f) {
  static_assert(sizeof(C) <= sizeof(double));
  C* const lanes = reinterpret_cast<C*>(team.scratch());
  const std::int64_t left = (count - first + reduce_block - 1) / reduce_block;
  const std::int64_t blocks = left < team_blocks ? left : team_blocks;
  if constexpr (ExchangesLanes<Team>) {
    const std::int64_t lane = team.rank() % reduce_lanes, warps = team.size() / reduce_lanes;
    for (std::int64_t block = team.rank() / reduce_lanes; block < blocks; block += warps) {
      const std::int64_t begin = first + block * reduce_block;
      const std::int64_t end = count - begin < reduce_block ? count : begin + reduce_block;
      const C sum = warp_tree(team, lane_sum<C>(begin + lane, end, f));
      if (lane == 0) lanes[block * reduce_lanes] = sum;
    }
    team.barrier();
  } else {
    for_each_of(team, blocks * reduce_lanes, [&](std::int64_t i) {
      const std::int64_t block = i / reduce_lanes;
      const std::int64_t begin = first + block * reduce_block;
      const std::int64_t end = count - begin < reduce_block ? count : begin + reduce_block;
      lanes[i] = lane_sum<C>(begin + (i - block * reduce_lanes), end, f);
    });
    add_lanes<1>(team, lanes, blocks);
  }
  return blocks;
}

// The sum of f(i) over i < count in the order of reduce.hpp, before it is rounded to C. Ends with a barrier.
template <class C, class Team, class F>
KOKKOS_FUNCTION TotalType<C> team_total(const Team& team, std::int64_t count, const F& f) {
  if constexpr (IsOneWarp<Team>) {
    return warp_total<C>(team, count, f);
  } else {
    const C* const lanes = reinterpret_cast<const C*>(team.scratch());
    BlockTotal<C> total;
    for (std::int64_t first = 0; first < count; first += team_blocks * reduce_block) {
      const std::int64_t blocks = team_block_sums<C>(team, first, count, f);
      for (std::int64_t block = 0; block < blocks; ++block) total.add(lanes[block * reduce_lanes]);
      team.barrier();
    }
    return total.value();
  }
}
template <class C, class Team, class F>
KOKKOS_FUNCTION C team_sum(const Team& team, std::int64_t count, const F& f) {
  return static_cast<C>(team_total<C>(team, count, f));
}

// The largest f(i) over i < count, for count > 0: f(0) if that is NaN, and otherwise NaN is no candidate. Ends with a
// barrier.
template <class C, class Team, class F>
KOKKOS_FUNCTION C team_largest(const Team& team, std::int64_t count, const F& f) {
  static_assert(sizeof(C) <= sizeof(double));
  if constexpr (IsOneWarp<Team>) {
    return warp_largest<C>(team, count, f);
  } else {
    C* const slots = reinterpret_cast<C*>(team.scratch());
    for_each_of(team, team_slots, [&](std::int64_t slot) {
      C best = f(0);
      for (std::int64_t i = slot; i < count; i += team_slots) {
        const C x = f(i);
        best = x > best ? x : best;
      }
      slots[slot] = best;
    });
    for (std::int64_t half = team_slots / 2; half > 0; half /= 2) {
      team.barrier();
      for_each_of(team, half,
                  [=](std::int64_t i) { slots[i] = slots[i + half] > slots[i] ? slots[i + half] : slots[i]; });
    }
    team.barrier();
    const C result = slots[0];
    team.barrier();
    return result;
  }
}

// The scratch memory of a team on the host, whose bytes are no number. Aligned to 64 bytes.
class TeamScratch {
 public:
  explicit TeamScratch(std::size_t bytes) : memory_(bytes + alignment, std::byte{0xff}) {
    void* begin = memory_.data();
    std::size_t room = memory_.size();
    begin_ = static_cast<std::byte*>(std::align(alignment, bytes, begin, room));
  }
  std::byte* begin() const { return begin_; }

 private:
  static constexpr std::size_t alignment = 64;
  std::vector<std::byte> memory_;
  std::byte* begin_;
};

using TeamCall = void (*)(const void* functor, const HostTeam& team);

// `count` teams on the host. With a team size of `on` they are threads of their own, and otherwise those of Kokkos.
void teams_on_host(device::Execution on, const char* label, std::int64_t count, std::size_t scratch_bytes,
                   const void* functor, TeamCall call);
// The same with teams of three threads that run one at a time, so that a missing barrier can change what a kernel
// writes (teams_in_turn.cpp). Throws InternalError where the threads of a team do not come to the same barriers. Teams
// have one thread in builds with a sanitizer, which permits no jumps from one stack to another.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool can_take_turns = false;
#else
inline constexpr bool can_take_turns = true;
#endif
void teams_in_turn(const char* label, std::int64_t count, std::size_t scratch_bytes, const void* functor,
                   TeamCall call);

}  // namespace lockstep::kernels
