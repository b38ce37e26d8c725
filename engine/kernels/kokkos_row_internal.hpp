// Rows that a team reads several times (internal to engine/kernels). A team copies a short row to its scratch memory,
// with all loads under way at once, and later passes read the copy.
//
//   static constexpr std::size_t scratch_bytes = sum_scratch_bytes + TeamRow<C, T>::scratch_bytes;
//   std::size_t row_scratch_bytes() const { return TeamRow<C, T>::bytes_of(n); }
//   ...
//   const TeamRow<C, T> row(team, from, n);    // row(i) is from[i] in the computation type
#pragma once

#include <cstddef>
#include <cstdint>

#include <Kokkos_Macros.hpp>

#include "engine/core/checked.hpp"
#include "engine/kernels/kokkos_pack_internal.hpp"
#include "engine/kernels/kokkos_team_internal.hpp"

namespace lockstep::kernels {

template <class C, class T>
class TeamRow {
 public:
  static constexpr std::int64_t longest = short_row;  // that is copied
  static constexpr std::size_t scratch_bytes = sizeof(C[longest]);
  // The elements of the copy of a row and of the gap behind it, which fills 16 bytes.
  KOKKOS_FUNCTION static constexpr std::int64_t room_of(std::int64_t count) {
    constexpr std::int64_t unit = 16 / sizeof(C);
    return (count + unit - 1) / unit * unit;
  }
  // Of the copy of a row of `count` elements; 0 if it is not copied.
  static std::size_t bytes_of(std::int64_t count) {
    return count > longest ? 0 : bounded_bytes(room_of(count), sizeof(C));
  }

  // All threads of the team construct it together. `number`: of the rows of this length that were constructed before.
  // Ends with a barrier.
  template <class Team>
  KOKKOS_FUNCTION TeamRow(const Team& team, const T* from, std::int64_t count, std::int64_t number = 0) : from_(from) {
    if (count > longest) return;
    C* const copy = reinterpret_cast<C*>(team.row_scratch()) + element_offset(number, room_of(count));
    constexpr int width = pack_width<T>;
    const std::int64_t packs = is_aligned_for_packs<width>(from) ? count / width : 0;
    constexpr int at_once = 4, copied_width = pack_width<C>;
    static_assert(width % copied_width == 0);
    for (std::int64_t first = team.rank(); first < packs; first += at_once * team.size()) {
      Pack<T, width> loaded[at_once] = {};
      for (int j = 0; j < at_once; ++j)
        if (const std::int64_t pack = first + j * team.size(); pack < packs)
          loaded[j] = load_pack<width>(from + pack * width);
      for (int j = 0; j < at_once; ++j)
        if (const std::int64_t pack = first + j * team.size(); pack < packs) {
          for (int k = 0; k < width; k += copied_width) {
            Pack<C, copied_width> copied;
            for (int l = 0; l < copied_width; ++l) copied.values[l] = static_cast<C>(loaded[j].values[k + l]);
            store_pack(copy + pack * width + k, copied);
          }
        }
    }
    for_each_of(team, count - packs * width,
                [=](std::int64_t i) { copy[packs * width + i] = static_cast<C>(from[packs * width + i]); });
    team.barrier();
    copy_ = copy;
  }
  KOKKOS_FORCEINLINE_FUNCTION C operator()(std::int64_t i) const {
    return copy_ != nullptr ? copy_[i] : static_cast<C>(from_[i]);
  }
  KOKKOS_FORCEINLINE_FUNCTION bool is_copied() const { return copy_ != nullptr; }
  // Replaces each element x of the copy by f(x), which later passes then read. Ends with a barrier.
  template <class Team, class F>
  KOKKOS_FORCEINLINE_FUNCTION void replace(const Team& team, std::int64_t count, const F& f) const {
    const C* const copy = copy_;
    store_each_of(team, copy_, count, [=](std::int64_t i) { return f(copy[i]); });
    team.barrier();
  }

 private:
  const T* from_;
  C* copy_ = nullptr;
};

}  // namespace lockstep::kernels
