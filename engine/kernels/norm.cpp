// Layer norm and RMS norm. The expressions and the places of fma are those of PyTorch's CPU kernels, found by comparing
// bits. The two engines therefore stay close over many steps.
#include <cmath>

#include "engine/kernels/kokkos_row_internal.hpp"
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
  static constexpr std::size_t scratch_bytes = sum_scratch_bytes + TeamRow<C, T>::scratch_bytes;
  std::int64_t row_length() const { return length; }
  std::size_t row_scratch_bytes() const { return TeamRow<C, T>::bytes_of(length); }
  template <class Team>
  KOKKOS_FUNCTION void team(const Team& team) const {
    const std::int64_t row = team.index(), n = length;
    const TeamRow<C, T> from(team, x + row * n, n);
    T* const to = out + row * n;
    const C count = static_cast<C>(n);
    const C mean = centred ? team_sum<C>(team, n, from) / count : C(0);
    const C squares = team_sum<C>(team, n, [=](std::int64_t i) {
      const C off = from(i) - mean;
      return off * off;
    });
    const C rstd = C(1) / std::sqrt(squares / count + eps);
    const T* const w = weight;
    const T* const b = bias;
    const auto off = [=](std::int64_t i) { return (from(i) - mean) * rstd; };
    if (w && b)
      store_each_of(team, to, n, [=](std::int64_t i) {
        return static_cast<T>(math::fma(off(i), static_cast<C>(w[i]), static_cast<C>(b[i])));
      });
    else if (w)
      store_each_of(team, to, n, [=](std::int64_t i) { return static_cast<T>(off(i) * static_cast<C>(w[i])); });
    else
      store_each_of(team, to, n,
                    [=](std::int64_t i) { return static_cast<T>(off(i) + (b ? static_cast<C>(b[i]) : C(0))); });
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

  static constexpr std::size_t scratch_bytes = sum_scratch_bytes + 2 * TeamRow<C, T>::scratch_bytes;
  std::int64_t row_length() const { return length; }
  std::size_t row_scratch_bytes() const { return 2 * TeamRow<C, T>::bytes_of(length); }
  template <class Team>
  KOKKOS_FUNCTION void team(const Team& team) const {
    const std::int64_t row = team.index(), n = length;
    const TeamRow<C, T> dy(team, grad + row * n, n);
    const TeamRow<C, T> from(team, x + row * n, n, 1);
    T* const to = out + row * n;
    const T* const weights = weight;
    const auto w = [weights](std::int64_t i) { return weights ? static_cast<C>(weights[i]) : C(1); };
    const C inverse = C(1) / static_cast<C>(n);
    const C mean = centred ? means[row] : C(0), rstd = rstds[row];
    const C dot = team_sum<C>(team, n, [&](std::int64_t i) { return dy(i) * from(i) * w(i); });
    const C total = centred ? team_sum<C>(team, n, [&](std::int64_t i) { return dy(i) * w(i); }) : C(0);
    const C slope = math::fma(total, mean, -dot) * rstd * rstd * rstd * inverse;
    const C level = math::fma(-slope, mean, -(total * rstd * inverse));
    store_each_of(team, to, n, [=](std::int64_t i) {
      return static_cast<T>(math::fma(slope, from(i), rstd * dy(i) * w(i)) + level);
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

}  // namespace lockstep::kernels
