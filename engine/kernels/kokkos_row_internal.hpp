// Rows that a team reads several times (internal to engine/kernels).
//
// A team copies a short row to its scratch memory, with all loads under way at once, and later passes read the copy:
//   static constexpr std::size_t scratch_bytes = sum_scratch_bytes + TeamRow<C, T>::scratch_bytes;
//   ...
//   const TeamRow<C, T> row(team, from, n, sum_scratch_bytes);    // row(i) is from[i] in the computation type
//
// On a GPU the team of a short row is one warp (threads_of_team), and its registers hold the row:
//   static constexpr bool has_warp_body = true;       // beside row_length(); the body needs no scratch memory
//   if constexpr (ExchangesLanes<Team>) {
//     if (team.is_one_warp()) return warp(team);      // LaneRow<C> row(team, from, n);
//   }
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include <Kokkos_Macros.hpp>

#include "engine/kernels/kokkos_pack_internal.hpp"
#include "engine/kernels/kokkos_team_internal.hpp"

namespace lockstep::kernels {

template <class C, class T>
class TeamRow {
 public:
  static constexpr std::int64_t longest = short_row;  // that is copied
  static constexpr std::size_t scratch_bytes = sizeof(C[longest]);

  // All threads of the team construct it together. `offset`: of its part of the scratch memory. Ends with a barrier.
  template <class Team>
  KOKKOS_FUNCTION TeamRow(const Team& team, const T* from, std::int64_t count, std::size_t offset) : from_(from) {
    if (count > longest) return;
    C* const copy = reinterpret_cast<C*>(team.scratch() + offset);
    constexpr int width = pack_width<T>;
    const std::int64_t packs = is_aligned_for_packs<width>(from) ? count / width : 0;
    constexpr int at_once = 4;
    for (std::int64_t first = team.rank(); first < packs; first += at_once * team.size()) {
      Pack<T, width> loaded[at_once] = {};
      for (int j = 0; j < at_once; ++j)
        if (const std::int64_t pack = first + j * team.size(); pack < packs)
          loaded[j] = load_pack<width>(from + pack * width);
      for (int j = 0; j < at_once; ++j)
        if (const std::int64_t pack = first + j * team.size(); pack < packs)
          for (int k = 0; k < width; ++k) copy[pack * width + k] = static_cast<C>(loaded[j].values[k]);
    }
    for_each_of(team, count - packs * width,
                [=](std::int64_t i) { copy[packs * width + i] = static_cast<C>(from[packs * width + i]); });
    team.barrier();
    copy_ = copy;
  }
  KOKKOS_FORCEINLINE_FUNCTION C operator()(std::int64_t i) const {
    return copy_ != nullptr ? copy_[i] : static_cast<C>(from_[i]);
  }

 private:
  const T* from_;
  const C* copy_ = nullptr;
};

// A row of at most short_row elements: lane l of the warp holds the elements l, l + reduce_lanes, ... All lanes call
// its functions together. Loops over the elements are written out, because registers have no index.
template <class C>
class LaneRow {
 public:
  template <class Team, class T>
  KOKKOS_FORCEINLINE_FUNCTION LaneRow(const Team& team, const T* from, std::int64_t count)
      : lane_(team.rank()), count_(static_cast<int>(count)) {
    const T* const mine = from + lane_;
    each([mine, this](int i, C& value) { value = static_cast<C>(mine[i - lane_]); });
  }
  // f(i, value) for each element of the lane, in order; each_with: f(i, value, value of the other row).
  template <class F>
  KOKKOS_FORCEINLINE_FUNCTION void each(const F& f) {
    each_with(*this, [&f](int i, C& value, C&) { f(i, value); });
  }
  template <class F>
  KOKKOS_FORCEINLINE_FUNCTION void each_with(LaneRow& other, const F& f) {
    each_of(other, f, std::make_integer_sequence<int, most>());
  }
  // The sum of f(i, value) over the row in the order of reduce.hpp; sum_with as each_with.
  template <class Team, class F>
  KOKKOS_FORCEINLINE_FUNCTION C sum(const Team& team, const F& f) {
    return sum_with(team, *this, [&f](int i, C& value, C&) { return f(i, value); });
  }
  template <class Team, class F>
  KOKKOS_FORCEINLINE_FUNCTION C sum_with(const Team& team, LaneRow& other, const F& f) {
    C lane = 0;
    each_with(other, [&](int i, C& value, C& with) { lane += f(i, value, with); });
    BlockTotal<C> total;
    total.add(warp_tree(team, lane));
    return static_cast<C>(total.value());
  }
  // As team_largest.
  template <class Team>
  KOKKOS_FORCEINLINE_FUNCTION C largest(const Team& team) {
    C best = team.from_first(values_[0]);
    each([&](int, C& value) { best = value > best ? value : best; });
    return largest_of_lanes(team, best);
  }

 private:
  static constexpr int most = static_cast<int>(short_row / reduce_lanes);
  template <class F, int... k>
  KOKKOS_FORCEINLINE_FUNCTION void each_of(LaneRow& other, const F& f, std::integer_sequence<int, k...>) {
    (one<k>(other, f), ...);
  }
  template <int k, class F>
  KOKKOS_FORCEINLINE_FUNCTION void one(LaneRow& other, const F& f) {
    constexpr int first = k * static_cast<int>(reduce_lanes);
    if (lane_ + first < count_) f(lane_ + first, values_[k], other.values_[k]);
  }

  C values_[most] = {};
  int lane_, count_;
};

}  // namespace lockstep::kernels
