// For the sources of this folder only: the one order of summation (reduce.hpp), for kernels that sum on the way.
#pragma once

#include <type_traits>

#include "engine/kernels/kokkos_launch_internal.hpp"
#include "engine/kernels/reduce.hpp"

namespace lockstep::kernels {

template <class T>
using SumType = std::conditional_t<std::is_integral_v<T>, std::int64_t, ComputeType<T>>;
template <class C>
using TotalType = std::conditional_t<std::is_integral_v<C>, std::int64_t, double>;

// Sum of one block, count <= reduce_block.
template <class T>
KOKKOS_INLINE_FUNCTION SumType<T> block_sum(const T* x, std::int64_t count) {
  using C = SumType<T>;
  C lane[reduce_lanes] = {};
  const std::int64_t whole = count / reduce_lanes * reduce_lanes;
  for (std::int64_t i = 0; i < whole; i += reduce_lanes)
    for (std::int64_t l = 0; l < reduce_lanes; ++l) lane[l] += static_cast<C>(static_cast<ComputeType<T>>(x[i + l]));
  for (std::int64_t l = 0; l < count - whole; ++l) lane[l] += static_cast<C>(static_cast<ComputeType<T>>(x[whole + l]));
  for (std::int64_t half = reduce_lanes / 2; half > 0; half /= 2)
    for (std::int64_t l = 0; l < half; ++l) lane[l] += lane[l + half];
  return lane[0];
}

// The sum over i < count of f(i), in that order, rounded once from the float64 total to the type computed in.
template <class C, class F>
KOKKOS_INLINE_FUNCTION C ordered_sum(std::int64_t count, const F& f) {
  double total = 0.0;
  C terms[reduce_block];
  for (std::int64_t begin = 0; begin < count; begin += reduce_block) {
    const std::int64_t n = count - begin < reduce_block ? count - begin : reduce_block;
#pragma GCC ivdep
    for (std::int64_t i = 0; i < n; ++i) terms[i] = f(begin + i);
    total += block_sum(terms, n);
  }
  return static_cast<C>(total);
}

// The largest of f(i) over i < count, count > 0; which lane sees it first does not change it.
template <class C, class F>
KOKKOS_INLINE_FUNCTION C largest(std::int64_t count, const F& f) {
  constexpr std::int64_t lanes = 16;
  C lane[lanes];
  const C first = f(0);
  for (std::int64_t l = 0; l < lanes; ++l) lane[l] = first;
  const std::int64_t whole = count / lanes * lanes;
  for (std::int64_t i = 0; i < whole; i += lanes)
    for (std::int64_t l = 0; l < lanes; ++l) {
      const C x = f(i + l);
      lane[l] = x > lane[l] ? x : lane[l];
    }
  for (std::int64_t i = whole; i < count; ++i) {
    const C x = f(i);
    lane[0] = x > lane[0] ? x : lane[0];
  }
  C result = lane[0];
  for (std::int64_t l = 1; l < lanes; ++l) result = lane[l] > result ? lane[l] : result;
  return result;
}

}  // namespace lockstep::kernels
