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
  KOKKOS_FUNCTION void operator()(std::int64_t row) const {
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

  // The gradient of a normalised element is w(i) times the gradient of the result.
  template <class W>
  KOKKOS_INLINE_FUNCTION void one_row(std::int64_t row, const W& w) const {
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
  KOKKOS_FUNCTION void operator()(std::int64_t row) const {
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

  template <std::int64_t count>
  KOKKOS_FORCEINLINE_FUNCTION void add_rows(std::int64_t row, std::int64_t begin, std::int64_t columns, C* to_weight,
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

  KOKKOS_FUNCTION void operator()(std::int64_t strip) const {
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

template <class T>
T* data_of(const View& view) {
  return static_cast<T*>(view.data);
}

}  // namespace

void norm(Space space, const NormRows& rows, const View& out, const View& mean, const View& rstd, const View& x,
          const View& weight, const View& bias) {
  dispatch_floating(x.dtype, [&]<class T>() {
    using C = ComputeType<T>;
    run(space, "lockstep::norm", num_elements(rstd),
        Norm<T>{data_of<T>(out), data_of<C>(mean), data_of<C>(rstd), data_of<const T>(x), data_of<const T>(weight),
                data_of<const T>(bias), rows.length, static_cast<C>(rows.eps), rows.centred});
  });
}

void norm_backward(Space space, const NormRows& rows, const View& out, const View& grad, const View& x,
                   const View& mean, const View& rstd, const View& weight) {
  dispatch_floating(x.dtype, [&]<class T>() {
    using C = ComputeType<T>;
    run(space, "lockstep::norm_backward", num_elements(rstd),
        NormBackward<T>{data_of<T>(out), data_of<const T>(grad), data_of<const T>(x), data_of<const C>(mean),
                        data_of<const C>(rstd), data_of<const T>(weight), rows.length, rows.centred});
  });
}

void norm_backward_weights(Space space, const NormRows& rows, const View& weight_grad, const View& bias_grad,
                           const View& grad, const View& x, const View& mean, const View& rstd) {
  dispatch_floating(x.dtype, [&]<class T>() {
    using C = ComputeType<T>;
    const std::int64_t strips = (rows.length + NormWeights<T>::width - 1) / NormWeights<T>::width;
    run(space, "lockstep::norm_backward_weights", strips,
        NormWeights<T>{data_of<T>(weight_grad), data_of<T>(bias_grad), data_of<const T>(grad), data_of<const T>(x),
                       data_of<const C>(mean), data_of<const C>(rstd), rows.length, num_elements(rstd)});
  });
}

}  // namespace lockstep::kernels
