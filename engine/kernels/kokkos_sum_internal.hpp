// The summation order of reduce.hpp in loops that vectorise, for host bodies that contain sums (internal to
// engine/kernels). Portable bodies use kokkos_team_internal.hpp.
#pragma once

#include "engine/kernels/kokkos_launch_internal.hpp"
#include "engine/kernels/reduce.hpp"

namespace lockstep::kernels {

// Reduces the lanes as a pairwise tree: join(lane l, lane l + half). Compilers with vector types hold each half in a
// vector; a loop over an array would compile to one extraction per element.
template <class C, class Join>
[[gnu::always_inline]] inline C joined_lanes(C (&lane)[reduce_lanes], const Join& join) {
  static_assert(reduce_lanes == 32);
#if defined(__GNUC__) && !defined(__CUDACC__)
  using V16 [[gnu::vector_size(16 * sizeof(C))]] = C;
  using V8 [[gnu::vector_size(8 * sizeof(C))]] = C;
  using V4 [[gnu::vector_size(4 * sizeof(C))]] = C;
  V16 low, high;
  __builtin_memcpy(&low, lane, sizeof low);
  __builtin_memcpy(&high, lane + 16, sizeof high);
  const V16 sixteen = join(low, high);
  const V8 eight = join(__builtin_shufflevector(sixteen, sixteen, 0, 1, 2, 3, 4, 5, 6, 7),
                        __builtin_shufflevector(sixteen, sixteen, 8, 9, 10, 11, 12, 13, 14, 15));
  const V4 four =
      join(__builtin_shufflevector(eight, eight, 0, 1, 2, 3), __builtin_shufflevector(eight, eight, 4, 5, 6, 7));
  const V4 two = join(four, __builtin_shufflevector(four, four, 2, 3, 2, 3));
  const V4 one = join(two, __builtin_shufflevector(two, two, 1, 1, 1, 1));
  return one[0];
#else
  for (std::int64_t half = reduce_lanes / 2; half > 0; half /= 2)
    for (std::int64_t l = 0; l < half; ++l) lane[l] = join(lane[l], lane[l + half]);
  return lane[0];
#endif
}
template <class C>
[[gnu::always_inline]] inline C lane_tree(C (&lane)[reduce_lanes]) {
  return joined_lanes(lane, [](auto left, auto right) { return left + right; });
}
template <class C>
[[gnu::always_inline]] inline C largest_lane(C (&lane)[reduce_lanes]) {
  return joined_lanes(lane, [](auto left, auto right) { return right > left ? right : left; });
}

// BlockTotal for neighbouring columns.
template <class C, std::int64_t width>
class BlockTotals {
 public:
  [[gnu::always_inline]] inline void add(const C* block_sums, std::int64_t columns) {
    for (std::int64_t c = 0; c < columns; ++c) group_[c] += block_sums[c];
    if (++blocks_ % reduce_group != 0) return;
    for (std::int64_t c = 0; c < columns; ++c) {
      total_[c] += group_[c];
      group_[c] = 0;
    }
  }
  TotalType<C> value(std::int64_t column) const { return total_[column] + group_[column]; }

 private:
  TotalType<C> total_[width] = {}, group_[width] = {};
  std::int64_t blocks_ = 0;
};

// The sum of one block of count <= reduce_block elements.
template <class T>
[[gnu::always_inline]] inline SumType<T> block_sum(const T* x, std::int64_t count) {
  using C = SumType<T>;
  C lane[reduce_lanes] = {};
  const std::int64_t full = count / reduce_lanes * reduce_lanes;
  for (std::int64_t i = 0; i < full; i += reduce_lanes)
    for (std::int64_t l = 0; l < reduce_lanes; ++l) lane[l] += static_cast<C>(static_cast<ComputeType<T>>(x[i + l]));
  for (std::int64_t l = 0; l < count - full; ++l) lane[l] += static_cast<C>(static_cast<ComputeType<T>>(x[full + l]));
  return lane_tree(lane);
}

// A block padded to full lanes, so that its loops have no remainder. The padding is at most 31 elements.
template <class C>
struct PaddedBlock {
  static_assert(reduce_block % reduce_lanes == 0);
  C values[reduce_block];
  std::int64_t count;
  std::int64_t padded;

  template <class T>
  [[gnu::always_inline]] inline void load(const T* x, std::int64_t n, C pad) {
    count = n;
    padded = (n + reduce_lanes - 1) / reduce_lanes * reduce_lanes;
    // The padding is written first with a fixed number of lanes. The elements then overwrite most of it.
    C* const last = values + (padded > reduce_lanes ? padded - reduce_lanes : 0);
    for (std::int64_t l = 0; l < reduce_lanes; ++l) values[l] = last[l] = pad;
#pragma GCC ivdep
    for (std::int64_t i = 0; i < n; ++i) values[i] = static_cast<C>(static_cast<ComputeType<T>>(x[i]));
  }
  template <class F>
  [[gnu::always_inline]] inline void map(const F& f) {
    for (std::int64_t i = 0; i < padded; i += reduce_lanes)
      for (std::int64_t l = 0; l < reduce_lanes; ++l) values[i + l] = f(values[i + l]);
  }
  [[gnu::always_inline]] inline C largest() const {
    C lane[reduce_lanes];
    for (std::int64_t l = 0; l < reduce_lanes; ++l) lane[l] = values[l];
    for (std::int64_t i = reduce_lanes; i < padded; i += reduce_lanes)
      for (std::int64_t l = 0; l < reduce_lanes; ++l) lane[l] = values[i + l] > lane[l] ? values[i + l] : lane[l];
    return largest_lane(lane);
  }
  // Equals block_sum of the `count` elements, because adding zeros does not change a lane.
  [[gnu::always_inline]] inline C sum() {
    for (std::int64_t i = count; i < padded; ++i) values[i] = C(0);
    C lane[reduce_lanes] = {};
    for (std::int64_t i = 0; i < padded; i += reduce_lanes)
      for (std::int64_t l = 0; l < reduce_lanes; ++l) lane[l] += values[i + l];
    return lane_tree(lane);
  }
};

// block_sum of f(i) over `count` elements from `begin`, where `count` is a multiple of half the lanes. It stores no
// terms, and its loops have no remainder.
template <class C, class F>
[[gnu::always_inline]] inline C even_block_sum(std::int64_t begin, std::int64_t count, const F& f) {
  constexpr std::int64_t half = reduce_lanes / 2;
  C lane[reduce_lanes] = {};
  const std::int64_t full = count / reduce_lanes * reduce_lanes;
  for (std::int64_t i = begin; i < begin + full; i += reduce_lanes)
    for (std::int64_t l = 0; l < reduce_lanes; ++l) lane[l] += f(i + l);
  if (full < count)
    for (std::int64_t l = 0; l < half; ++l) lane[l] += f(begin + full + l);
  return lane_tree(lane);
}

// The sum of f(i) over i < count in the order of reduce.hpp. The float64 total is rounded once to the computation type.
template <class C, class F>
[[gnu::always_inline]] inline C ordered_sum(std::int64_t count, const F& f) {
  BlockTotal<C> total;
  PaddedBlock<C> terms;
  for (std::int64_t begin = 0; begin < count; begin += reduce_block) {
    const std::int64_t n = count - begin < reduce_block ? count - begin : reduce_block;
    if (n % (reduce_lanes / 2) == 0) {
      total.add(even_block_sum<C>(begin, n, f));
      continue;
    }
    terms.count = n;
    terms.padded = (n + reduce_lanes - 1) / reduce_lanes * reduce_lanes;
#pragma GCC ivdep
    for (std::int64_t i = 0; i < n; ++i) terms.values[i] = f(begin + i);
    total.add(terms.sum());
  }
  return static_cast<C>(total.value());
}

// The largest f(i) over i < count, for count > 0. The order of the comparisons does not change it.
template <class C, class F>
[[gnu::always_inline]] inline C largest(std::int64_t count, const F& f) {
  constexpr std::int64_t lanes = 16;
  C lane[lanes];
  const C first = f(0);
  for (std::int64_t l = 0; l < lanes; ++l) lane[l] = first;
  const std::int64_t full = count / lanes * lanes;
  for (std::int64_t i = 0; i < full; i += lanes)
    for (std::int64_t l = 0; l < lanes; ++l) {
      const C x = f(i + l);
      lane[l] = x > lane[l] ? x : lane[l];
    }
  for (std::int64_t i = full; i < count; ++i) {
    const C x = f(i);
    lane[0] = x > lane[0] ? x : lane[0];
  }
  C result = lane[0];
  for (std::int64_t l = 1; l < lanes; ++l) result = lane[l] > result ? lane[l] : result;
  return result;
}

}  // namespace lockstep::kernels
