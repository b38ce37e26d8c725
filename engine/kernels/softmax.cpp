// Softmax and attention probabilities.
#include <limits>

#include "engine/kernels/kokkos_row_internal.hpp"
#include "engine/kernels/kokkos_sum_internal.hpp"
#include "engine/kernels/logarithm_internal.hpp"
#include "engine/kernels/math_internal.hpp"
#include "engine/kernels/normalize.hpp"

namespace lockstep::kernels {

namespace {

template <class T>
struct Softmax {
  T* out;
  const T* a;
  std::int64_t length;
  bool logarithm;
  static constexpr std::size_t scratch_bytes = sum_scratch_bytes + TeamRow<ComputeType<T>, T>::scratch_bytes;
  std::int64_t row_length() const { return length; }
  std::size_t row_scratch_bytes() const { return TeamRow<ComputeType<T>, T>::bytes_of(length); }
  template <class Team>
  KOKKOS_FUNCTION void team(const Team& team) const {
    using C = ComputeType<T>;
    const std::int64_t row = team.index(), n = length;
    const TeamRow<C, T> x(team, a + row * n, n);
    T* const to = out + row * n;
    const C top = team_largest<C>(team, n, x);
    const bool keeps = x.is_copied() && !logarithm;  // each exponential is then computed once
    if (keeps) x.replace(team, n, [=](C value) { return math::exp(value - top); });
    const C sum =
        keeps ? team_sum<C>(team, n, x) : team_sum<C>(team, n, [=](std::int64_t i) { return math::exp(x(i) - top); });
    if (logarithm) {
      const C log_sum = math::log(sum);
      store_each_of(team, to, n, [=](std::int64_t i) { return static_cast<T>((x(i) - top) - log_sum); });
    } else {
      const C inverse = C(1) / sum;
      store_each_of(team, to, n,
                    [=](std::int64_t i) { return static_cast<T>((keeps ? x(i) : math::exp(x(i) - top)) * inverse); });
    }
  }
  void operator()(std::int64_t row) const {
    using C = ComputeType<T>;
    const T* const x = a + row * length;
    T* const to = out + row * length;
    const std::int64_t n = length;
    if (n <= reduce_block) return one_block(x, to);
    const C top = largest<C>(n, [x](std::int64_t i) { return static_cast<C>(x[i]); });
    const C sum = ordered_sum<C>(n, [x, top](std::int64_t i) { return math::exp(static_cast<C>(x[i]) - top); });
    if (logarithm) {
      const C log_sum = math::log(sum);
#pragma GCC ivdep
      for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<T>((static_cast<C>(x[i]) - top) - log_sum);
    } else {
      const C inverse = C(1) / sum;
#pragma GCC ivdep
      for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<T>(math::exp(static_cast<C>(x[i]) - top) * inverse);
    }
  }
  // The same result from a padded copy of the row: each exponential is computed once, and the loops have no remainder.
  void one_block(const T* x, T* to) const {
    using C = ComputeType<T>;
    PaddedBlock<C> block;
    block.load(x, length, static_cast<C>(x[0]));
    const C top = block.largest();
    block.map([top](C value) { return math::exp(value - top); });
    const C sum = block.sum();
    const std::int64_t n = length;
    if (logarithm) {
      const C log_sum = math::log(sum);
#pragma GCC ivdep
      for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<T>((static_cast<C>(x[i]) - top) - log_sum);
    } else {
      const C inverse = C(1) / sum;
#pragma GCC ivdep
      for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<T>(block.values[i] * inverse);
    }
  }
};

template <class T>
struct SoftmaxBackward {
  T* out;
  const T* grad;
  const T* result;
  std::int64_t length;
  bool logarithm;
  static constexpr std::size_t scratch_bytes = sum_scratch_bytes + 2 * TeamRow<ComputeType<T>, T>::scratch_bytes;
  std::int64_t row_length() const { return length; }
  std::size_t row_scratch_bytes() const { return 2 * TeamRow<ComputeType<T>, T>::bytes_of(length); }
  template <class Team>
  KOKKOS_FUNCTION void team(const Team& team) const {
    using C = ComputeType<T>;
    const std::int64_t row = team.index(), n = length;
    const TeamRow<C, T> g(team, grad + row * n, n);
    const TeamRow<C, T> y(team, result + row * n, n, 1);
    T* const to = out + row * n;
    const bool logs = logarithm;
    const C sum = team_sum<C>(team, n, [=](std::int64_t i) { return logs ? g(i) : g(i) * y(i); });
    store_each_of(team, to, n, [=](std::int64_t i) {
      const C of = y(i), by = g(i);
      return static_cast<T>(logs ? by - math::exp(of) * sum : of * (by - sum));
    });
  }
  void operator()(std::int64_t row) const {
    using C = ComputeType<T>;
    const T* const g = grad + row * length;
    const T* const y = result + row * length;
    T* const to = out + row * length;
    const std::int64_t n = length;
    if (logarithm) {
      const C sum = ordered_sum<C>(n, [g](std::int64_t i) { return static_cast<C>(g[i]); });
#pragma GCC ivdep
      for (std::int64_t i = 0; i < n; ++i)
        to[i] = static_cast<T>(static_cast<C>(g[i]) - math::exp(static_cast<C>(y[i])) * sum);
    } else {
      const C dot = ordered_sum<C>(n, [g, y](std::int64_t i) { return static_cast<C>(g[i]) * static_cast<C>(y[i]); });
#pragma GCC ivdep
      for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<T>(static_cast<C>(y[i]) * (static_cast<C>(g[i]) - dot));
    }
  }
};

// The number of keys at the start of a row of scores that its query may see.
KOKKOS_INLINE_FUNCTION std::int64_t visible_keys(std::int64_t row, std::int64_t queries, std::int64_t keys,
                                                 bool causal) {
  const std::int64_t own = row % queries + 1;
  return causal && own < keys ? own : keys;
}

template <class T>
struct Probabilities {
  T* scores;
  T* dropped;
  const bool* mask;
  const bool* keep;
  std::int64_t queries;
  std::int64_t keys;
  T scale;
  T factor;
  bool causal;
  static constexpr std::size_t scratch_bytes = sum_scratch_bytes;
  std::int64_t row_length() const { return keys; }
  template <class Team>
  KOKKOS_FUNCTION void team(const Team& team) const {
    const std::int64_t row = team.index(), n = visible_keys(row, queries, keys, causal);
    T* const x = scores + row * keys;
    const T none = -std::numeric_limits<T>::infinity();
    for_each_of(team, n, [&](std::int64_t i) {
      x[i] = mask ? math::choose(mask + row * keys + i, x[i] * scale, none) : x[i] * scale;
    });
    team.barrier();
    const T top = team_largest<T>(team, n, [=](std::int64_t i) { return x[i]; });
    if (top == none) {
      // No score is above minus infinity: the row becomes zeros, or NaN if a score is NaN.
      const std::int64_t lost =
          team_largest<std::int64_t>(team, n, [=](std::int64_t i) { return x[i] == x[i] ? std::int64_t{-1} : i; });
      const T value = lost < 0 ? T(0) : x[lost];
      team.barrier();
      for_each_of(team, n, [=](std::int64_t i) { x[i] = value; });
    } else {
      for_each_of(team, n, [=](std::int64_t i) { x[i] = math::exp(x[i] - top); });
      team.barrier();
      const T inverse = T(1) / team_sum<T>(team, n, [=](std::int64_t i) { return x[i]; });
      for_each_of(team, n, [=](std::int64_t i) { x[i] *= inverse; });
    }
    for_each_of(team, keys - n, [=](std::int64_t i) { x[n + i] = T(0); });
    if (!keep) return;
    team.barrier();
    for_each_of(team, keys, [&](std::int64_t i) {
      dropped[row * keys + i] = math::choose(keep + row * keys + i, x[i] * factor, T(0));
    });
  }
  void operator()(std::int64_t row) const {
    T* const x = scores + row * keys;
    const std::int64_t n = visible_keys(row, queries, keys, causal);
    const T by = scale;
    if (!mask && !keep && keys % reduce_lanes == 0 && n <= reduce_block) return row_of_full_lanes(x, n, by);
    const T none = -std::numeric_limits<T>::infinity();
    if (mask) {
      const bool* const allowed = mask + row * keys;
#pragma GCC ivdep
      for (std::int64_t i = 0; i < n; ++i) x[i] = math::choose(allowed + i, x[i] * by, none);
    } else {
#pragma GCC ivdep
      for (std::int64_t i = 0; i < n; ++i) x[i] *= by;
    }
    if (n <= reduce_block)
      one_block(x, n);
    else
      long_row(x, n);
    for (std::int64_t i = n; i < keys; ++i) x[i] = T(0);
    if (!keep) return;
    const bool* const kept = keep + row * keys;
    T* const to = dropped + row * keys;
    const T up = factor;
#pragma GCC ivdep
    for (std::int64_t i = 0; i < keys; ++i) to[i] = math::choose(kept + i, x[i] * up, T(0));
  }
  // The same bits for rows whose length is a multiple of the lanes: in place, and the loops have no remainder.
  void row_of_full_lanes(T* x, std::int64_t n, T by) const {
    const T none = -std::numeric_limits<T>::infinity();
    const auto seen = static_cast<std::int32_t>(n);
    const auto padded = static_cast<std::int32_t>((n + reduce_lanes - 1) / reduce_lanes * reduce_lanes);
    constexpr auto lanes = static_cast<std::int32_t>(reduce_lanes);
    T lane[reduce_lanes];
    for (std::int32_t l = 0; l < lanes; ++l) lane[l] = none;
    for (std::int32_t i = 0; i < padded; i += lanes) {
      for (std::int32_t l = 0; l < lanes; ++l) {
        const T score = math::select(i + l < seen, x[i + l] * by, none);
        lane[l] = score > lane[l] ? score : lane[l];
      }
    }
    const T top = largest_lane(lane);
    if (top == none) return all_masked(x, n);
    for (std::int32_t l = 0; l < lanes; ++l) lane[l] = T(0);
    for (std::int32_t i = 0; i < padded; i += lanes) {
      for (std::int32_t l = 0; l < lanes; ++l) {
        const T power = math::select(i + l < seen, math::exp(x[i + l] * by - top), T(0));
        x[i + l] = power;
        lane[l] += power;
      }
    }
    const T inverse = T(1) / lane_tree(lane);
    for (std::int32_t i = 0; i < padded; i += lanes)
      for (std::int32_t l = 0; l < lanes; ++l) x[i + l] *= inverse;
    for (std::int64_t i = n; i < keys; ++i) x[i] = T(0);  // from n, because a product with NaN is NaN
  }
  // No score is above minus infinity: the row becomes zeros, or NaN if a score is NaN.
  void all_masked(T* x, std::int64_t n) const {
    T lost = T(0);
    for (std::int64_t i = 0; i < n; ++i) lost = x[i] == x[i] ? lost : x[i];
    for (std::int64_t i = 0; i < keys; ++i) x[i] = i < n ? lost : T(0);
  }
  // Replaces scores by probabilities; a row without visible keys becomes zeros.
  void long_row(T* x, std::int64_t n) const {
    const T top = largest<T>(n, [x](std::int64_t i) { return x[i]; });
    if (top == -std::numeric_limits<T>::infinity()) return all_masked(x, n);
#pragma GCC ivdep
    for (std::int64_t i = 0; i < n; ++i) x[i] = math::exp(x[i] - top);
    const T inverse = T(1) / ordered_sum<T>(n, [x](std::int64_t i) { return x[i]; });
#pragma GCC ivdep
    for (std::int64_t i = 0; i < n; ++i) x[i] *= inverse;
  }
  void one_block(T* x, std::int64_t n) const {
    PaddedBlock<T> block;
    block.load(x, n, x[0]);
    const T top = block.largest();
    if (top == -std::numeric_limits<T>::infinity()) return all_masked(x, n);
    block.map([top](T value) { return math::exp(value - top); });
    const T inverse = T(1) / block.sum();
#pragma GCC ivdep
    for (std::int64_t i = 0; i < n; ++i) x[i] = block.values[i] * inverse;
  }
};

template <class T>
struct ProbabilitiesBackward {
  T* grad;
  const T* probabilities;
  const bool* keep;
  std::int64_t queries;
  std::int64_t keys;
  T scale;
  T factor;
  bool causal;
  static constexpr std::size_t scratch_bytes = sum_scratch_bytes;
  std::int64_t row_length() const { return keys; }
  template <class Team>
  KOKKOS_FUNCTION void team(const Team& team) const {
    const std::int64_t row = team.index(), n = visible_keys(row, queries, keys, causal);
    T* const g = grad + row * keys;
    const T* const p = probabilities + row * keys;
    if (keep) {
      for_each_of(team, n, [&](std::int64_t i) { g[i] = math::choose(keep + row * keys + i, g[i] * factor, T(0)); });
      team.barrier();
    }
    const T dot = team_sum<T>(team, n, [=](std::int64_t i) { return g[i] * p[i]; }), by = scale;
    for_each_of(team, keys, [=](std::int64_t i) { g[i] = i < n ? p[i] * (g[i] - dot) * by : T(0); });
  }
  void operator()(std::int64_t row) const {
    T* const g = grad + row * keys;
    const T* const p = probabilities + row * keys;
    const std::int64_t n = visible_keys(row, queries, keys, causal);
    if (keep) {
      const bool* const kept = keep + row * keys;
      const T up = factor;
#pragma GCC ivdep
      for (std::int64_t i = 0; i < n; ++i) g[i] = math::choose(kept + i, g[i] * up, T(0));
    }
    if (keys % reduce_lanes == 0 && n <= reduce_block) return row_of_full_lanes(g, p, n);
    const T dot = ordered_sum<T>(n, [g, p](std::int64_t i) { return g[i] * p[i]; });
    const T by = scale;
#pragma GCC ivdep
    for (std::int64_t i = 0; i < n; ++i) g[i] = p[i] * (g[i] - dot) * by;
    for (std::int64_t i = n; i < keys; ++i) g[i] = T(0);
  }
  // The same bits for rows whose length is a multiple of the lanes.
  void row_of_full_lanes(T* g, const T* p, std::int64_t n) const {
    const auto seen = static_cast<std::int32_t>(n);
    const auto padded = static_cast<std::int32_t>((n + reduce_lanes - 1) / reduce_lanes * reduce_lanes);
    constexpr auto lanes = static_cast<std::int32_t>(reduce_lanes);
    T lane[reduce_lanes] = {};
    for (std::int32_t i = 0; i < padded; i += lanes)
      for (std::int32_t l = 0; l < lanes; ++l) lane[l] += math::select(i + l < seen, g[i + l] * p[i + l], T(0));
    const T dot = lane_tree(lane), by = scale;
    for (std::int32_t i = 0; i < padded; i += lanes)
      for (std::int32_t l = 0; l < lanes; ++l)
        g[i + l] = math::select(i + l < seen, p[i + l] * (g[i + l] - dot) * by, T(0));
    for (std::int64_t i = padded; i < keys; ++i) g[i] = T(0);
  }
};

}  // namespace

void softmax(Execution on, const View& out, const View& a, bool logarithm) {
  const std::int64_t length = a.sizes.empty() ? 1 : a.sizes.back();
  dispatch_floating(a.dtype, [&]<class T>() {
    run_teams(on, "lockstep::softmax", num_elements(a) / length,
              Softmax<T>{data_of<T>(out), data_of<const T>(a), length, logarithm});
  });
}

void softmax_backward(Execution on, const View& out, const View& grad, const View& result, bool logarithm) {
  const std::int64_t length = out.sizes.empty() ? 1 : out.sizes.back();
  dispatch_floating(out.dtype, [&]<class T>() {
    run_teams(on, "lockstep::softmax_backward", num_elements(out) / length,
              SoftmaxBackward<T>{data_of<T>(out), data_of<const T>(grad), data_of<const T>(result), length, logarithm});
  });
}

void attention_probabilities(Execution on, const AttentionRows& rows, const View& scores, const View& dropped,
                             const View& mask, const View& keep) {
  const int n = scores.sizes.size();
  const std::int64_t queries = scores.sizes[n - 2], keys = scores.sizes[n - 1];
  constexpr const char* label = "lockstep::attention_probabilities";
  dispatch_wide(label, scores.dtype, [&]<class T>() {
    run_teams(
        on, label, num_elements(scores) / keys,
        Probabilities<T>{data_of<T>(scores), data_of<T>(dropped), data_of<const bool>(mask), data_of<const bool>(keep),
                         queries, keys, static_cast<T>(rows.scale), static_cast<T>(rows.factor), rows.causal});
  });
}

void attention_backward(Execution on, const AttentionRows& rows, const View& grad, const View& probabilities,
                        const View& keep) {
  const int n = grad.sizes.size();
  const std::int64_t queries = grad.sizes[n - 2], keys = grad.sizes[n - 1];
  constexpr const char* label = "lockstep::attention_backward";
  dispatch_wide(label, grad.dtype, [&]<class T>() {
    run_teams(
        on, label, num_elements(grad) / keys,
        ProbabilitiesBackward<T>{data_of<T>(grad), data_of<const T>(probabilities), data_of<const bool>(keep), queries,
                                 keys, static_cast<T>(rows.scale), static_cast<T>(rows.factor), rows.causal});
  });
}

}  // namespace lockstep::kernels
