// Few sums of many elements, for accelerators (internal to engine/kernels). Many teams sum the blocks of reduce.hpp.
// Then a team per group adds these in order, and a team per result adds the groups.
#pragma once

#include <type_traits>

#include "engine/core/checked.hpp"
#include "engine/kernels/kokkos_launch_internal.hpp"

namespace lockstep::kernels {

// Rounds the total over the blocks and divides it.
template <class R, class C>
KOKKOS_INLINE_FUNCTION R finish_sum(TotalType<C> total, double divisor) {
  if constexpr (std::is_integral_v<C>) {
    return static_cast<R>(total);
  } else {
    return static_cast<R>(static_cast<C>(total) / static_cast<C>(divisor));
  }
}

// Writes the block sums of each result. A team sums a piece of at most team_blocks blocks. terms.of_result(result) is a
// function that gives element i of the result.
template <class C, class Terms>
struct BlockSums {
  C* sums;  // (results, blocks)
  Terms terms;
  std::int64_t count;   // number of elements per result
  std::int64_t blocks;  // per result
  std::int64_t pieces;  // per result

  static constexpr std::size_t scratch_bytes = sum_scratch_bytes;
  template <class Team>
  KOKKOS_FUNCTION void team(const Team& team) const {
    const std::int64_t result = team.index() / pieces, piece = team.index() - result * pieces;
    const std::int64_t here =
        team_block_sums<C>(team, piece * team_blocks * reduce_block, count, terms.of_result(result));
    const C* const lanes = reinterpret_cast<const C*>(team.scratch());
    C* const to = sums + result * blocks + piece * team_blocks;
    for_each_of(team, here, [=](std::int64_t block) { to[block] = lanes[block * reduce_lanes]; });
  }
};

// Adds the terms of a result in order: those of one group, or all terms. `finish` gives the value to write.
template <class R, class T, class Finish>
struct AddInOrder {
  R* out;          // (results, groups)
  const T* terms;  // (results, count)
  std::int64_t count;
  std::int64_t group;   // number of terms per sum
  std::int64_t groups;  // per result
  Finish finish;

  static constexpr std::size_t scratch_bytes = sum_scratch_bytes;
  // total + terms[0] + terms[1] + ..., with the loads of several terms under way together.
  KOKKOS_INLINE_FUNCTION static TotalType<T> added(TotalType<T> total, const TotalType<T>* terms, std::int64_t count) {
    constexpr int at_once = 16;
    std::int64_t i = 0;
    for (; i + at_once <= count; i += at_once) {
      TotalType<T> next[at_once];
      for (int k = 0; k < at_once; ++k) next[k] = terms[i + k];
      for (int k = 0; k < at_once; ++k) total += next[k];
    }
    for (; i < count; ++i) total += terms[i];
    return total;
  }
  template <class Team>
  KOKKOS_FUNCTION void team(const Team& team) const {
    auto* const next = reinterpret_cast<TotalType<T>*>(team.scratch());
    const std::int64_t result = team.index() / groups, begin = (team.index() - result * groups) * group;
    const std::int64_t end = count - begin < group ? count : begin + group;
    const T* const from = terms + result * count;
    TotalType<T> total = 0;
    for (std::int64_t first = begin; first < end; first += team_slots) {
      const std::int64_t here = end - first < team_slots ? end - first : team_slots;
      for_each_of(team, here, [=](std::int64_t i) { next[i] = from[first + i]; });
      team.barrier();
      if (team.rank() == 0) total = added(total, next, here);
      team.barrier();
    }
    if (team.rank() == 0) out[team.index()] = finish(total);
  }
};

template <class C>
struct KeepTotal {
  KOKKOS_FUNCTION TotalType<C> operator()(TotalType<C> total) const { return total; }
};
template <class R, class C>
struct FinishSum {
  double divisor;
  KOKKOS_FUNCTION R operator()(TotalType<C> total) const { return finish_sum<R, C>(total, divisor); }
};

// Whether a team per result would leave most of an accelerator idle.
inline bool suits_block_sums(Execution on, std::int64_t results, std::int64_t count) {
  constexpr std::int64_t many_results = 256, piece = team_blocks * reduce_block;
  return on.space != Space::host && results < many_results && count > 2 * piece;
}

template <class R, class C, class Terms>
void sum_by_blocks(Execution on, const char* label, R* out, std::int64_t results, std::int64_t count, double divisor,
                   const Terms& terms) {
  const std::int64_t blocks = (count + reduce_block - 1) / reduce_block;
  const std::int64_t pieces = (blocks + team_blocks - 1) / team_blocks;
  const std::int64_t groups = (blocks + reduce_group - 1) / reduce_group;
  using Total = TotalType<C>;
  std::byte* const scratch = scratch_on(on, bounded_bytes(bounded_product(results, blocks + groups), sizeof(Total)));
  auto* const totals = reinterpret_cast<Total*>(scratch);
  auto* const sums = reinterpret_cast<C*>(totals + results * groups);
  run_portable_teams(on, label, bounded_product(results, pieces),
                     BlockSums<C, Terms>{sums, terms, count, blocks, pieces});
  const FinishSum<R, C> finish{divisor};
  if (groups == 1)
    return run_portable_teams(on, label, results,
                              AddInOrder<R, C, FinishSum<R, C>>{out, sums, blocks, reduce_group, 1, finish});
  run_portable_teams(on, label, bounded_product(results, groups),
                     AddInOrder<Total, C, KeepTotal<C>>{totals, sums, blocks, reduce_group, groups, {}});
  run_portable_teams(on, label, results, AddInOrder<R, Total, FinishSum<R, C>>{out, totals, groups, groups, 1, finish});
}

}  // namespace lockstep::kernels
