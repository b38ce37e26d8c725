// The loss over classes, of all classes or of those that a rank holds.
#include <limits>

#include "engine/core/error.hpp"
#include "engine/kernels/kokkos_sum_internal.hpp"
#include "engine/kernels/logarithm_internal.hpp"
#include "engine/kernels/math_internal.hpp"
#include "engine/kernels/normalize.hpp"
#include "engine/kernels/out_of_range_internal.hpp"

namespace lockstep::kernels {

namespace {

// Never a class: targets are checked before.
constexpr std::int64_t no_target = std::numeric_limits<std::int64_t>::min();

template <class T>
struct ClassLosses {
  using C = ComputeType<T>;
  C* losses;
  C* log_sums;
  const T* logits;
  const std::int64_t* targets;
  std::int64_t classes;
  std::int64_t ignored;
  static constexpr std::size_t scratch_bytes = sum_scratch_bytes;
  std::int64_t row_length() const { return classes; }
  template <class Team>
  KOKKOS_FUNCTION void team(const Team& team) const {
    const std::int64_t row = team.index();
    const T* const x = logits + row * classes;
    const C top = team_largest<C>(team, classes, [=](std::int64_t i) { return static_cast<C>(x[i]); });
    const C sum = team_sum<C>(team, classes, [=](std::int64_t i) { return math::exp(static_cast<C>(x[i]) - top); });
    if (team.rank() == 0) store(row, top, sum);
  }
  KOKKOS_INLINE_FUNCTION void store(std::int64_t row, C top, C sum) const {
    const C log_sum = math::log(sum);
    const std::int64_t target = targets[row];
    losses[row] = target == ignored ? C(0) : log_sum - (static_cast<C>(logits[row * classes + target]) - top);
    log_sums[row] = log_sum + top;
  }
  void operator()(std::int64_t row) const {
    const T* const x = logits + row * classes;
    const C top = largest<C>(classes, [x](std::int64_t i) { return static_cast<C>(x[i]); });
    const C sum = ordered_sum<C>(classes, [x, top](std::int64_t i) { return math::exp(static_cast<C>(x[i]) - top); });
    store(row, top, sum);
  }
};

template <class T>
struct ClassSums {
  using C = ComputeType<T>;
  C* sums;
  C* picked;
  const T* logits;
  const std::int64_t* targets;
  const C* tops;
  std::int64_t classes;
  static constexpr std::size_t scratch_bytes = sum_scratch_bytes;
  std::int64_t row_length() const { return classes; }
  template <class Team>
  KOKKOS_FUNCTION void team(const Team& team) const {
    const std::int64_t row = team.index();
    const T* const x = logits + row * classes;
    const C top = tops[row];
    const C sum = team_sum<C>(team, classes, [=](std::int64_t i) { return math::exp(static_cast<C>(x[i]) - top); });
    if (team.rank() != 0) return;
    sums[row] = sum;
    picked[row] = targets[row] < 0 ? C(0) : static_cast<C>(x[targets[row]]);
  }
  void operator()(std::int64_t row) const {
    const T* const x = logits + row * classes;
    const C top = tops[row];
    sums[row] = ordered_sum<C>(classes, [x, top](std::int64_t i) { return math::exp(static_cast<C>(x[i]) - top); });
    picked[row] = targets[row] < 0 ? C(0) : static_cast<C>(x[targets[row]]);
  }
};

template <class T>
struct ClassLossesBackward {
  using C = ComputeType<T>;
  T* out;
  const T* logits;
  const C* log_sums;
  const std::int64_t* targets;
  const T* grad;
  std::int64_t classes;
  C divisor;
  std::int64_t grad_step;  // 0: one gradient for all rows
  const C* weights;
  const C* total;
  std::int64_t ignored;
  KOKKOS_INLINE_FUNCTION C factor(std::int64_t row) const {
    if (targets[row] == ignored) return C(0);
    const C weight = weights ? weights[row] : C(1);
    return static_cast<C>(grad[row * grad_step]) * weight / (total ? *total : divisor);
  }
  KOKKOS_FUNCTION void portable(std::int64_t index) const {
    const std::int64_t row = index / classes, target = targets[row];
    const C power = math::exp(static_cast<C>(logits[index]) - log_sums[row]);
    const bool is_target = index - row * classes == target && target != ignored;
    out[index] = static_cast<T>((is_target ? power - C(1) : power) * factor(row));
  }
  void operator()(std::int64_t row) const {
    const T* const x = logits + row * classes;
    T* const to = out + row * classes;
    const C by = factor(row);
    const C log_sum = log_sums[row];
    const std::int64_t n = classes;
#pragma GCC ivdep
    for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<T>(math::exp(static_cast<C>(x[i]) - log_sum) * by);
    const std::int64_t target = targets[row];
    if (target < 0 || target == ignored) return;
    to[target] = static_cast<T>((math::exp(static_cast<C>(x[target]) - log_sum) - C(1)) * by);
  }
};

template <class T>
struct ClassWeights {
  using C = ComputeType<T>;
  C* out;
  const std::int64_t* targets;
  const T* weights;
  std::int64_t ignored;
  KOKKOS_FUNCTION void operator()(std::int64_t row) const {
    const std::int64_t target = targets[row];
    const bool counts = target >= 0 && target != ignored;
    out[row] = counts ? (weights ? static_cast<C>(weights[target]) : C(1)) : C(0);
  }
};

template <class C>
struct WeighedLosses {
  C* losses;
  const C* weights;
  const std::int64_t* targets;
  std::int64_t ignored;
  KOKKOS_FUNCTION void operator()(std::int64_t row) const {
    losses[row] = targets[row] == ignored ? C(0) : losses[row] * weights[row];
  }
};

}  // namespace

void class_losses(Execution on, const View& losses, const View& log_sums, const View& logits, const View& targets,
                  std::optional<std::int64_t> ignored) {
  const std::int64_t classes = logits.sizes.back();
  const auto* const target = data_of<const std::int64_t>(targets);
  const std::int64_t rows = num_elements(targets);
  const std::int64_t bad = first_index(on, "lockstep::check_targets", rows, OutOfRange(target, 0, classes, ignored));
  if (bad < rows)
    throw Error(str("cross_entropy: target ", value_at(on, target + bad), " of row ", bad, " is out of range for ",
                    classes, " classes"),
                str("give targets from 0 to ", classes - 1, ignored ? str(", or ", *ignored, " to ignore a row") : ""));
  dispatch_floating(logits.dtype, [&]<class T>() {
    using C = ComputeType<T>;
    run_teams(on, "lockstep::class_losses", rows,
              ClassLosses<T>{data_of<C>(losses), data_of<C>(log_sums), data_of<const T>(logits), target, classes,
                             ignored.value_or(no_target)});
  });
}

void class_sums(Execution on, const View& sums, const View& picked, const View& logits, const View& targets,
                const View& tops) {
  dispatch_floating(logits.dtype, [&]<class T>() {
    using C = ComputeType<T>;
    run_teams(on, "lockstep::class_sums", num_elements(targets),
              ClassSums<T>{data_of<C>(sums), data_of<C>(picked), data_of<const T>(logits),
                           data_of<const std::int64_t>(targets), data_of<const C>(tops), logits.sizes.back()});
  });
}

void class_weights(Execution on, const View& out, const View& targets, const View& weights,
                   std::optional<std::int64_t> ignored) {
  const auto run_on = [&]<class T>() {
    using C = ComputeType<T>;
    run(on, "lockstep::class_weights", num_elements(targets),
        ClassWeights<T>{data_of<C>(out), data_of<const std::int64_t>(targets), data_of<const T>(weights),
                        ignored.value_or(no_target)});
  };
  dispatch_floating(weights.data ? weights.dtype : out.dtype, run_on);
}

void weigh_class_losses(Execution on, const View& losses, const View& weights, const View& targets,
                        std::optional<std::int64_t> ignored) {
  dispatch_floating(losses.dtype, [&]<class T>() {
    using C = ComputeType<T>;
    run(on, "lockstep::weigh_class_losses", num_elements(targets),
        WeighedLosses<C>{data_of<C>(losses), data_of<const C>(weights), data_of<const std::int64_t>(targets),
                         ignored.value_or(no_target)});
  });
}

void class_losses_backward(Execution on, const View& out, const View& logits, const View& log_sums, const View& targets,
                           const View& grad, const ClassLossGradient& by) {
  dispatch_floating(logits.dtype, [&]<class T>() {
    using C = ComputeType<T>;
    run(on, "lockstep::class_losses_backward", num_elements(targets),
        ClassLossesBackward<T>{data_of<T>(out), data_of<const T>(logits), data_of<const C>(log_sums),
                               data_of<const std::int64_t>(targets), data_of<const T>(grad), logits.sizes.back(),
                               static_cast<C>(by.divisor), num_elements(grad) == num_elements(targets) ? 1 : 0,
                               data_of<const C>(by.weights), data_of<const C>(by.total),
                               by.ignored.value_or(no_target)},
        num_elements(logits));
  });
}

}  // namespace lockstep::kernels
