// Layer norm and RMS norm. The expressions and the places of fma are those of PyTorch's CPU kernels, found by comparing
// bits. The two engines therefore stay close over many steps.
#include <cmath>

#include "engine/kernels/kokkos_sum_internal.hpp"
#include "engine/kernels/math_internal.hpp"
#include "engine/kernels/normalize.hpp"

namespace lockstep::kernels {

namespace {

template <class T>
struct Norm {
  using C = ComputeType<T>;
  T* out;
  C* means;
  C* rstds;
  const T* x;
  const T* weight;
  const T* bias;
  std::int64_t length;
  C eps;
  bool centred;
  static constexpr std::size_t scratch_bytes = sum_scratch_bytes;
  template <class Team>
  KOKKOS_FUNCTION void team(const Team& team) const {
    const std::int64_t row = team.index(), n = length;
    const T* const from = x + row * n;
    T* const to = out + row * n;
    const C count = static_cast<C>(n);
    const C mean =
        centred ? team_sum<C>(team, n, [=](std::int64_t i) { return static_cast<C>(from[i]); }) / count : C(0);
    const C squares = team_sum<C>(team, n, [=](std::int64_t i) {
      const C off = static_cast<C>(from[i]) - mean;
      return off * off;
    });
    const C rstd = C(1) / std::sqrt(squares / count + eps);
    for_each_of(team, n, [&](std::int64_t i) {
      const C off = (static_cast<C>(from[i]) - mean) * rstd;
      if (weight && bias)
        to[i] = static_cast<T>(math::fma(off, static_cast<C>(weight[i]), static_cast<C>(bias[i])));
      else if (weight)
        to[i] = static_cast<T>(off * static_cast<C>(weight[i]));
      else
        to[i] = static_cast<T>(off + (bias ? static_cast<C>(bias[i]) : C(0)));
    });
    if (team.rank() != 0) return;
    if (centred) means[row] = mean;
    rstds[row] = rstd;
  }
  void operator()(std::int64_t row) const {
    const T* const from = x + row * length;
    T* const to = out + row * length;
    const T* const w = weight;
    const T* const b = bias;
    const std::int64_t n = length;
    const C count = static_cast<C>(n);
    C mean = C(0);
    if (centred) {
      mean = ordered_sum<C>(n, [from](std::int64_t i) { return static_cast<C>(from[i]); }) / count;
      means[row] = mean;
    }
    const C squares = ordered_sum<C>(n, [from, mean](std::int64_t i) {
      const C off = static_cast<C>(from[i]) - mean;
      return off * off;
    });
    const C rstd = C(1) / std::sqrt(squares / count + eps);
    rstds[row] = rstd;
    if (w && b) {
#pragma GCC ivdep
      for (std::int64_t i = 0; i < n; ++i)
        to[i] = static_cast<T>(
            math::fma((static_cast<C>(from[i]) - mean) * rstd, static_cast<C>(w[i]), static_cast<C>(b[i])));
    } else if (w) {
#pragma GCC ivdep
      for (std::int64_t i = 0; i < n; ++i)
        to[i] = static_cast<T>((static_cast<C>(from[i]) - mean) * rstd * static_cast<C>(w[i]));
    } else {
#pragma GCC ivdep
      for (std::int64_t i = 0; i < n; ++i)
        to[i] = static_cast<T>((static_cast<C>(from[i]) - mean) * rstd + (b ? static_cast<C>(b[i]) : C(0)));
    }
  }
};

template <class T>
struct NormBackward {
  using C = ComputeType<T>;
  T* out;
  const T* grad;
  const T* x;
  const C* means;
  const C* rstds;
  const T* weight;
  std::int64_t length;
  bool centred;

  static constexpr std::size_t scratch_bytes = sum_scratch_bytes;
  template <class Team>
  KOKKOS_FUNCTION void team(const Team& team) const {
    const std::int64_t row = team.index(), n = length;
    const T* const dy = grad + row * n;
    const T* const from = x + row * n;
    T* const to = out + row * n;
    const T* const weights = weight;
    const auto w = [weights](std::int64_t i) { return weights ? static_cast<C>(weights[i]) : C(1); };
    const C inverse = C(1) / static_cast<C>(n);
    const C mean = centred ? means[row] : C(0), rstd = rstds[row];
    const C dot =
        team_sum<C>(team, n, [&](std::int64_t i) { return static_cast<C>(dy[i]) * static_cast<C>(from[i]) * w(i); });
    const C total = centred ? team_sum<C>(team, n, [&](std::int64_t i) { return static_cast<C>(dy[i]) * w(i); }) : C(0);
    const C slope = math::fma(total, mean, -dot) * rstd * rstd * rstd * inverse;
    const C level = math::fma(-slope, mean, -(total * rstd * inverse));
    for_each_of(team, n, [&](std::int64_t i) {
      to[i] = static_cast<T>(math::fma(slope, static_cast<C>(from[i]), rstd * static_cast<C>(dy[i]) * w(i)) + level);
    });
  }

  // The gradient of a normalised element is w(i) times the gradient of the result.
  template <class W>
  void one_row(std::int64_t row, const W& w) const {
    const T* const dy = grad + row * length;
    const T* const from = x + row * length;
    T* const to = out + row * length;
    const std::int64_t n = length;
    const C inverse = C(1) / static_cast<C>(n);
    const C mean = centred ? means[row] : C(0), rstd = rstds[row];
    const C dot =
        ordered_sum<C>(n, [&](std::int64_t i) { return static_cast<C>(dy[i]) * static_cast<C>(from[i]) * w(i); });
    const C total = centred ? ordered_sum<C>(n, [&](std::int64_t i) { return static_cast<C>(dy[i]) * w(i); }) : C(0);
    const C slope = math::fma(total, mean, -dot) * rstd * rstd * rstd * inverse;
    const C level = math::fma(-slope, mean, -(total * rstd * inverse));
#pragma GCC ivdep
    for (std::int64_t i = 0; i < n; ++i)
      to[i] = static_cast<T>(math::fma(slope, static_cast<C>(from[i]), rstd * static_cast<C>(dy[i]) * w(i)) + level);
  }
  void operator()(std::int64_t row) const {
    if (const T* const w = weight)
      one_row(row, [w](std::int64_t i) { return static_cast<C>(w[i]); });
    else
      one_row(row, [](std::int64_t) { return C(1); });
  }
};

// Handles a strip of columns. Each column has one accumulator, to which the rows of a block are added in order; the
// total over the blocks is a float64. The loop over the columns vectorises, so the order within a column stays the
// same. Four rows are read at a time and added one after the other.
template <class T>
struct NormWeights {
  using C = ComputeType<T>;
  static constexpr std::int64_t width = 128;
  static constexpr std::int64_t rows_at_once = 4;
  T* weight_grad;
  T* bias_grad;
  const T* grad;
  const T* x;
  const C* means;
  const C* rstds;
  std::int64_t length;
  std::int64_t num_rows;

  // A team adds `team_width` columns, several blocks of rows at a time.
  static constexpr std::int64_t team_width = 32;
  static constexpr std::int64_t part = team_blocks * team_width;  // block sums at a time
  static constexpr std::size_t scratch_bytes = sizeof(C[2][part]) + sizeof(double[2][team_width]);
  template <class Team>
  KOKKOS_FUNCTION void team(const Team& team) const {
    const std::int64_t first_column = team.index() * team_width;
    const std::int64_t columns = length - first_column < team_width ? length - first_column : team_width;
    auto* const totals = reinterpret_cast<double*>(team.scratch());  // of the weights, then of the biases
    C* const sums = reinterpret_cast<C*>(totals + 2 * team_width);
    for_each_of(team, 2 * team_width, [=](std::int64_t i) { totals[i] = 0.0; });
    for (std::int64_t first = 0; first < num_rows; first += team_blocks * reduce_block) {
      for_each_of(team, part, [&](std::int64_t i) {
        const std::int64_t block = i / team_width, c = i - block * team_width;
        if (c < columns) add_block(first + block * reduce_block, first_column + c, sums[i], sums[part + i]);
      });
      team.barrier();
      for_each_of(team, columns, [=, this](std::int64_t c) {
        for (std::int64_t block = 0; block < team_blocks && first + block * reduce_block < num_rows; ++block) {
          totals[c] += sums[block * team_width + c];
          totals[team_width + c] += sums[part + block * team_width + c];
        }
      });
      team.barrier();
    }
    for_each_of(team, columns, [&](std::int64_t c) {
      if (weight_grad) weight_grad[first_column + c] = static_cast<T>(static_cast<C>(totals[c]));
      if (bias_grad) bias_grad[first_column + c] = static_cast<T>(static_cast<C>(totals[team_width + c]));
    });
  }
  // The sums of one column over the rows of one block.
  KOKKOS_INLINE_FUNCTION void add_block(std::int64_t first, std::int64_t column, C& weight, C& bias) const {
    const std::int64_t end = num_rows - first < reduce_block ? num_rows : first + reduce_block;
    weight = bias = C(0);
    for (std::int64_t row = first; row < end; ++row) {
      const C g = static_cast<C>(grad[row * length + column]), rstd = rstds[row];
      const C shift = means ? -means[row] * rstd : C(0);
      weight = math::fma(g, math::fma(static_cast<C>(x[row * length + column]), rstd, shift), weight);
      bias += g;
    }
  }

  template <std::int64_t count>
  [[gnu::always_inline]] inline void add_rows(std::int64_t row, std::int64_t begin, std::int64_t columns, C* to_weight,
                                              C* to_bias) const {
    const T* const dy = grad + row * length + begin;
    const T* const from = x + row * length + begin;
    const std::int64_t step = length;
    C shift[count], rstd[count];
    for (std::int64_t r = 0; r < count; ++r) {
      rstd[r] = rstds[row + r];
      shift[r] = means ? -means[row + r] * rstd[r] : C(0);
    }
#pragma GCC ivdep
    for (std::int64_t c = 0; c < columns; ++c) {
      C weight = to_weight[c], bias = to_bias[c];
#pragma GCC unroll 4
      for (std::int64_t r = 0; r < count; ++r) {
        const C g = static_cast<C>(dy[r * step + c]);
        weight = math::fma(g, math::fma(static_cast<C>(from[r * step + c]), rstd[r], shift[r]), weight);
        bias += g;
      }
      to_weight[c] = weight;
      to_bias[c] = bias;
    }
  }

  void operator()(std::int64_t strip) const {
    const std::int64_t begin = strip * width;
    const std::int64_t columns = length - begin < width ? length - begin : width;
    double weight_total[width], bias_total[width];
    C weight_sum[width], bias_sum[width];
    for (std::int64_t c = 0; c < columns; ++c) weight_total[c] = bias_total[c] = 0.0;
    for (std::int64_t first = 0; first < num_rows; first += reduce_block) {
      const std::int64_t end = num_rows - first < reduce_block ? num_rows : first + reduce_block;
      for (std::int64_t c = 0; c < columns; ++c) weight_sum[c] = bias_sum[c] = C(0);
      std::int64_t row = first;
      for (; row + rows_at_once <= end; row += rows_at_once)
        add_rows<rows_at_once>(row, begin, columns, weight_sum, bias_sum);
      for (; row < end; ++row) add_rows<1>(row, begin, columns, weight_sum, bias_sum);
      for (std::int64_t c = 0; c < columns; ++c) {
        weight_total[c] += weight_sum[c];
        bias_total[c] += bias_sum[c];
      }
    }
    for (std::int64_t c = 0; c < columns; ++c) {
      if (weight_grad) weight_grad[begin + c] = static_cast<T>(static_cast<C>(weight_total[c]));
      if (bias_grad) bias_grad[begin + c] = static_cast<T>(static_cast<C>(bias_total[c]));
    }
  }
};

}  // namespace

void norm(Execution on, const NormRows& rows, const View& out, const View& mean, const View& rstd, const View& x,
          const View& weight, const View& bias) {
  dispatch_floating(x.dtype, [&]<class T>() {
    using C = ComputeType<T>;
    run_teams(
        on, "lockstep::norm", num_elements(rstd),
        Norm<T>{data_of<T>(out), data_of<C>(mean), data_of<C>(rstd), data_of<const T>(x), data_of<const T>(weight),
                data_of<const T>(bias), rows.length, static_cast<C>(rows.eps), rows.centred});
  });
}

void norm_backward(Execution on, const NormRows& rows, const View& out, const View& grad, const View& x,
                   const View& mean, const View& rstd, const View& weight) {
  dispatch_floating(x.dtype, [&]<class T>() {
    using C = ComputeType<T>;
    run_teams(on, "lockstep::norm_backward", num_elements(rstd),
              NormBackward<T>{data_of<T>(out), data_of<const T>(grad), data_of<const T>(x), data_of<const C>(mean),
                              data_of<const C>(rstd), data_of<const T>(weight), rows.length, rows.centred});
  });
}

void norm_backward_weights(Execution on, const NormRows& rows, const View& weight_grad, const View& bias_grad,
                           const View& grad, const View& x, const View& mean, const View& rstd) {
  dispatch_floating(x.dtype, [&]<class T>() {
    using C = ComputeType<T>;
    const std::int64_t strips = (rows.length + NormWeights<T>::width - 1) / NormWeights<T>::width;
    const std::int64_t teams = (rows.length + NormWeights<T>::team_width - 1) / NormWeights<T>::team_width;
    run_teams(
        on, "lockstep::norm_backward_weights", strips,
        NormWeights<T>{data_of<T>(weight_grad), data_of<T>(bias_grad), data_of<const T>(grad), data_of<const T>(x),
                       data_of<const C>(mean), data_of<const C>(rstd), rows.length, num_elements(rstd)},
        teams);
  });
}

}  // namespace lockstep::kernels
