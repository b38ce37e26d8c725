#include "engine/kernels/reduce.hpp"

#include <type_traits>

#include "engine/core/checked.hpp"
#include "engine/kernels/kokkos_block_sums_internal.hpp"
#include "engine/kernels/kokkos_elementwise_internal.hpp"
#include "engine/kernels/kokkos_sum_internal.hpp"

namespace lockstep::kernels {

namespace {

template <class T>
struct StridedTerms {
  const T* a;
  Rows<2> kept;     // a result and a over the kept dims
  Rows<1> reduced;  // a over the reduced dims
  struct Elements {
    const T* x;
    Rows<1> reduced;
    KOKKOS_FUNCTION SumType<T> operator()(std::int64_t i) const {
      return static_cast<SumType<T>>(static_cast<ComputeType<T>>(x[RowElement<1>(reduced, i).at[0]]));
    }
  };
  KOKKOS_FUNCTION Elements of_result(std::int64_t result) const {
    return {a + RowElement<2>(kept, result).at[1], reduced};
  }
};

// The same where the elements of a result are neighbours. A branch in each term would keep a GPU from several loads at
// once.
template <class T>
struct ContiguousTerms {
  const T* a;
  Rows<2> kept;
  struct Elements {
    const T* x;
    KOKKOS_FUNCTION SumType<T> operator()(std::int64_t i) const {
      return static_cast<SumType<T>>(static_cast<ComputeType<T>>(x[i]));
    }
  };
  KOKKOS_FUNCTION Elements of_result(std::int64_t result) const { return {a + RowElement<2>(kept, result).at[1]}; }
};

KOKKOS_INLINE_FUNCTION bool is_contiguous(const Rows<1>& reduced) { return reduced.unit && reduced.num_outer == 0; }

template <class T>
struct SquaredDifferences {
  const T* a;
  const T* b;
  KOKKOS_FUNCTION ComputeType<T> operator()(std::int64_t i) const {
    const auto difference = static_cast<ComputeType<T>>(a[i]) - static_cast<ComputeType<T>>(b[i]);
    return difference * difference;
  }
  KOKKOS_FUNCTION SquaredDifferences of_result(std::int64_t) const { return *this; }
};

// Computes one result, for any strides.
template <class R, class T>
struct RowSum {
  R* out;
  const T* a;
  Rows<2> kept;        // out and a over the kept dims; each element is one result
  Rows<1> reduced;     // a over the reduced dims
  std::int64_t count;  // number of elements per result
  double divisor;

  static constexpr std::size_t scratch_bytes = sum_scratch_bytes;
  std::int64_t row_length() const { return count; }
  template <class Team>
  KOKKOS_FUNCTION void team(const Team& team) const {
    using C = SumType<T>;
    const auto total = is_contiguous(reduced)
                           ? team_total<C>(team, count, ContiguousTerms<T>{a, kept}.of_result(team.index()))
                           : team_total<C>(team, count, StridedTerms<T>{a, kept, reduced}.of_result(team.index()));
    if (team.rank() == 0) out[team.index()] = finish_sum<R, C>(total, divisor);
  }
  void operator()(std::int64_t index) const {
    using C = SumType<T>;
    std::int64_t row = index / kept.length;
    const std::int64_t along = index - row * kept.length;
    const T* x = a + along * kept.step[1];
    for (int dim = kept.num_outer - 1; dim >= 0; --dim) {
      x += element_offset(row % kept.sizes[dim], kept.strides[1][dim]);
      row /= kept.sizes[dim];
    }
    BlockTotal<C> total;
    for (std::int64_t begin = 0; begin < count; begin += reduce_block) {
      const std::int64_t n = count - begin < reduce_block ? count - begin : reduce_block;
      if (reduced.num_outer == 0 && reduced.step[0] == 1) {
        total.add(block_sum(x + begin, n));
        continue;
      }
      T gathered[reduce_block];
      for (std::int64_t i = 0; i < n;) {
        // Copies up to the end of the inner row or of the block.
        std::int64_t outer = (begin + i) / reduced.length;
        const std::int64_t at = begin + i - outer * reduced.length;
        const T* from = x + at * reduced.step[0];
        for (int dim = reduced.num_outer - 1; dim >= 0; --dim) {
          from += element_offset(outer % reduced.sizes[dim], reduced.strides[0][dim]);
          outer /= reduced.sizes[dim];
        }
        const std::int64_t stop = n - i < reduced.length - at ? n - i : reduced.length - at;
        for (std::int64_t j = 0; j < stop; ++j) gathered[i + j] = from[j * reduced.step[0]];
        i += stop;
      }
      total.add(block_sum(gathered, n));
    }
    out[index] = finish_sum<R, C>(total.value(), divisor);
  }
};

// Computes neighbouring results whose elements are also neighbours, on the host. Each of the lanes holds a vector of
// columns.
template <class R, class T>
struct ColumnSum {
  static constexpr std::int64_t width = 64;
  R* out;
  const T* a;
  Rows<2> kept;
  Rows<1> reduced;
  std::int64_t count;
  double divisor;

  void operator()(std::int64_t index) const {
    using C = SumType<T>;
    const std::int64_t strips = (kept.length + width - 1) / width;
    std::int64_t row = index / strips;
    const std::int64_t begin = (index - row * strips) * width;
    const std::int64_t columns = kept.length - begin < width ? kept.length - begin : width;
    R* const to = out + row * kept.length + begin;
    const T* x = a + begin;
    for (int dim = kept.num_outer - 1; dim >= 0; --dim) {
      x += element_offset(row % kept.sizes[dim], kept.strides[1][dim]);
      row /= kept.sizes[dim];
    }
    BlockTotals<C, width> total;
    C lane[reduce_lanes][width];
    for (std::int64_t first = 0; first < count; first += reduce_block) {
      const std::int64_t n = count - first < reduce_block ? count - first : reduce_block;
      std::int64_t used = 1;  // further lanes are zero and change nothing
      while (used < reduce_lanes && used < n) used *= 2;
      for (std::int64_t l = 0; l < used; ++l)
        for (std::int64_t c = 0; c < width; ++c) lane[l][c] = 0;
      for (std::int64_t i = 0; i < n; ++i) {
        std::int64_t outer = (first + i) / reduced.length;
        const T* from = x + (first + i - outer * reduced.length) * reduced.step[0];
        for (int dim = reduced.num_outer - 1; dim >= 0; --dim) {
          from += element_offset(outer % reduced.sizes[dim], reduced.strides[0][dim]);
          outer /= reduced.sizes[dim];
        }
        C* const into = lane[i % reduce_lanes];
        for (std::int64_t c = 0; c < columns; ++c) into[c] += static_cast<C>(static_cast<ComputeType<T>>(from[c]));
      }
      for (std::int64_t half = used / 2; half > 0; half /= 2)
        for (std::int64_t l = 0; l < half; ++l)
          for (std::int64_t c = 0; c < width; ++c) lane[l][c] += lane[l + half][c];
      total.add(lane[0], width);
    }
    for (std::int64_t c = 0; c < columns; ++c) to[c] = finish_sum<R, C>(total.value(c), divisor);
  }
};

// The same for accelerators: a team sums one block of `width` columns. Its threads read neighbouring columns of a lane.
template <class R, class T>
struct ColumnBlocks {
  static constexpr std::int64_t width = 8;
  R* out;            // written if there is one block
  SumType<T>* sums;  // (blocks, results); written otherwise
  const T* a;
  Rows<2> kept;
  Rows<1> reduced;
  std::int64_t count;
  double divisor;
  std::int64_t num_strips() const { return kept.num_rows * ((kept.length + width - 1) / width); }

  static constexpr std::size_t scratch_bytes = sizeof(SumType<T>[reduce_lanes][width]);
  template <class Team>
  KOKKOS_FUNCTION void team(const Team& team) const {
    using C = SumType<T>;
    const std::int64_t strips_of_row = (kept.length + width - 1) / width, strips = kept.num_rows * strips_of_row;
    const std::int64_t block = team.index() / strips, strip = team.index() - block * strips;
    const std::int64_t row = strip / strips_of_row, begin = (strip - row * strips_of_row) * width;
    const std::int64_t first_result = row * kept.length + begin;
    const std::int64_t columns = kept.length - begin < width ? kept.length - begin : width;
    const std::int64_t first = block * reduce_block;
    const std::int64_t end = count - first < reduce_block ? count : first + reduce_block;
    const T* const x = a + RowElement<2>(kept, first_result).at[1];
    C* const lanes = reinterpret_cast<C*>(team.scratch());
    for_each_of(team, reduce_lanes * width, [&](std::int64_t i) {
      const std::int64_t lane = i / width, c = i - lane * width;
      const auto term = [&](std::int64_t j) {
        return static_cast<C>(static_cast<ComputeType<T>>(x[RowElement<1>(reduced, j).at[0] + c]));
      };
      lanes[i] = c < columns ? lane_sum<C>(first + lane, end, term) : C(0);
    });
    add_lanes<width>(team, lanes, 1);
    C* const to = sums + block * kept.num_rows * kept.length;
    for_each_of(team, columns, [&](std::int64_t c) {
      if (count <= reduce_block)
        out[first_result + c] = finish_sum<R, C>(lanes[c], divisor);
      else
        to[first_result + c] = lanes[c];
    });
  }
};

template <class R, class C>
struct ColumnTotals {
  R* out;
  const C* sums;  // (blocks, results)
  std::int64_t results;
  std::int64_t blocks;
  double divisor;
  KOKKOS_FUNCTION void portable(std::int64_t result) const {
    BlockTotal<C> total;
    for (std::int64_t block = 0; block < blocks; ++block) total.add(sums[block * results + result]);
    out[result] = finish_sum<R, C>(total.value(), divisor);
  }
};

template <class R, class T>
void sum_columns(Execution on, R* out, const T* a, const Rows<2>& kept, const Rows<1>& reduced, std::int64_t count,
                 double divisor) {
  constexpr const char* label = "lockstep::sum";
  if (on.space == Space::host) {
    const std::int64_t strips = (kept.length + ColumnSum<R, T>::width - 1) / ColumnSum<R, T>::width;
    return run_on_host(label, kept.num_rows * strips, ColumnSum<R, T>{out, a, kept, reduced, count, divisor});
  }
  using C = SumType<T>;
  const std::int64_t results = kept.num_rows * kept.length, blocks = (count + reduce_block - 1) / reduce_block;
  const std::size_t bytes = blocks == 1 ? 0 : bounded_bytes(bounded_product(results, blocks), sizeof(C));
  auto* const sums = bytes == 0 ? nullptr : reinterpret_cast<C*>(scratch_on(on, bytes));
  const ColumnBlocks<R, T> of_blocks{out, sums, a, kept, reduced, count, divisor};
  run_portable_teams(on, label, bounded_product(blocks, of_blocks.num_strips()), of_blocks);
  if (blocks != 1) run_portable(on, label, results, ColumnTotals<R, C>{out, sums, results, blocks, divisor});
}

template <class T>
struct SquaredDifferenceSum {
  T* out;
  const T* a;
  const T* b;
  std::int64_t count;
  double divisor;
  static constexpr std::size_t scratch_bytes = sum_scratch_bytes;
  template <class Team>
  KOKKOS_FUNCTION void team(const Team& team) const {
    using C = ComputeType<T>;
    const double total = team_total<C>(team, count, SquaredDifferences<T>{a, b});
    if (team.rank() == 0) *out = finish_sum<T, C>(total, divisor);
  }
  void operator()(std::int64_t) const {
    using C = ComputeType<T>;
    BlockTotal<C> total;
    for (std::int64_t begin = 0; begin < count; begin += reduce_block) {
      const std::int64_t n = count - begin < reduce_block ? count - begin : reduce_block;
      C squares[reduce_block];
      for (std::int64_t i = 0; i < n; ++i) {
        const C difference = static_cast<C>(a[begin + i]) - static_cast<C>(b[begin + i]);
        squares[i] = difference * difference;
      }
      total.add(block_sum(squares, n));
    }
    *out = finish_sum<T, C>(total.value(), divisor);
  }
};

struct SetTrue {
  bool* out;
  KOKKOS_FUNCTION void operator()(std::int64_t) const { *out = true; }
};

template <class T>
struct AllFinite {
  bool* out;
  const T* a;
  Rows<1> rows;
  KOKKOS_FUNCTION void portable(std::int64_t index) const {
    const auto value = static_cast<ComputeType<T>>(a[RowElement<1>(rows, index).at[0]]);
    if (!(value - value == 0)) *out = false;
  }
  void operator()(std::int64_t index) const {
    using C = ComputeType<T>;
    const RowTile<1> at(rows, index);
    C seen = 0;  // x - x is 0 for a finite x and NaN otherwise
    const T* const x = a + at.start[0];
    for (std::int64_t i = 0; i < at.count; ++i) {
      const C value = static_cast<C>(x[i * rows.step[0]]);
      seen = value - value == C(0) ? seen : C(1);
    }
    if (seen != C(0)) *out = false;  // all writers store the same value
  }
};

}  // namespace

void sum(Execution on, const View& out, const View& a, int num_reduced, double divisor) {
  Dims kept_sizes, kept_strides, sizes, strides;
  const int num_kept = a.sizes.size() - num_reduced;
  for (int dim = 0; dim < a.sizes.size(); ++dim) {
    (dim < num_kept ? kept_sizes : sizes).push_back(a.sizes[dim]);
    (dim < num_kept ? kept_strides : strides).push_back(a.strides[dim]);
  }
  const std::int64_t results = lockstep::num_elements(kept_sizes);
  const std::int64_t count = lockstep::num_elements(sizes);
  if (results == 0) return;
  const Dims out_strides = contiguous_strides(kept_sizes);
  const Rows<2> kept = make_rows<2>(kept_sizes, {&out_strides, &kept_strides});
  const Rows<1> reduced = make_rows<1>(sizes, {&strides});
  const bool columns = kept.unit && kept.length >= 8;
  dispatch_all(a.dtype, [&]<class T>() {
    using R = std::conditional_t<std::is_integral_v<T>, std::int64_t, T>;
    R* const to = data_of<R>(out);
    const T* const from = data_of<const T>(a);
    if (columns) {
      sum_columns(on, to, from, kept, reduced, count, divisor);
    } else if (suits_block_sums(on, results, count)) {
      const auto by_blocks = [&](const auto& terms) {
        sum_by_blocks<R, SumType<T>>(on, "lockstep::sum", to, results, count, divisor, terms);
      };
      if (is_contiguous(reduced))
        by_blocks(ContiguousTerms<T>{from, kept});
      else
        by_blocks(StridedTerms<T>{from, kept, reduced});
    } else {
      run_teams(on, "lockstep::sum", results, RowSum<R, T>{to, from, kept, reduced, count, divisor});
    }
  });
}

void sum_squared_difference(Execution on, const View& out, const View& a, const View& b, double divisor) {
  constexpr const char* label = "lockstep::sum_squared_difference";
  const std::int64_t count = num_elements(a);
  dispatch_floating(a.dtype, [&]<class T>() {
    T* const to = data_of<T>(out);
    const T* const left = data_of<const T>(a);
    const T* const right = data_of<const T>(b);
    if (suits_block_sums(on, 1, count))
      return sum_by_blocks<T, ComputeType<T>>(on, label, to, 1, count, divisor, SquaredDifferences<T>{left, right});
    run_teams(on, label, 1, SquaredDifferenceSum<T>{to, left, right, count, divisor});
  });
}

void all_finite(Execution on, const View& out, const View& a) {
  run(on, "lockstep::all_finite", 1, SetTrue{data_of<bool>(out)});
  const Rows<1> rows = make_rows<1>(a.sizes, {&a.strides});
  dispatch_floating(a.dtype, [&]<class T>() {
    run_rows(on, "lockstep::all_finite", rows, AllFinite<T>{data_of<bool>(out), data_of<const T>(a), rows});
  });
}

}  // namespace lockstep::kernels
