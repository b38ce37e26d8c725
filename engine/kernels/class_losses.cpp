// The loss over classes, of all classes or of those that a rank holds.
#include "engine/core/error.hpp"
#include "engine/kernels/kokkos_sum_internal.hpp"
#include "engine/kernels/math_internal.hpp"
#include "engine/kernels/normalize.hpp"

namespace lockstep::kernels {

namespace {

template <class T>
struct ClassLosses {
  using C = ComputeType<T>;
  C* losses;
  C* log_sums;
  const T* logits;
  const std::int64_t* targets;
  std::int64_t classes;
  KOKKOS_FUNCTION void operator()(std::int64_t row) const {
    const T* const x = logits + row * classes;
    const C top = largest<C>(classes, [x](std::int64_t i) { return static_cast<C>(x[i]); });
    const C sum = ordered_sum<C>(classes, [x, top](std::int64_t i) { return math::exp(static_cast<C>(x[i]) - top); });
    const C log_sum = std::log(sum);
    losses[row] = log_sum - (static_cast<C>(x[targets[row]]) - top);
    log_sums[row] = log_sum + top;
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
  KOKKOS_FUNCTION void operator()(std::int64_t row) const {
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
  KOKKOS_FUNCTION void operator()(std::int64_t row) const {
    const T* const x = logits + row * classes;
    T* const to = out + row * classes;
    const C by = static_cast<C>(*grad) / divisor;
    const C log_sum = log_sums[row];
    const std::int64_t n = classes;
#pragma GCC ivdep
    for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<T>(math::exp(static_cast<C>(x[i]) - log_sum) * by);
    const std::int64_t target = targets[row];
    if (target < 0) return;
    to[target] = static_cast<T>((math::exp(static_cast<C>(x[target]) - log_sum) - C(1)) * by);
  }
};

template <class T, class V>
T* data_of(const V& view) {
  return static_cast<T*>(view.data);
}

}  // namespace

void class_losses(Space space, const View& losses, const View& log_sums, const View& logits, const View& targets) {
  const std::int64_t classes = logits.sizes.back();
  const auto* const target = data_of<const std::int64_t>(targets);
  for (std::int64_t i = 0; i < num_elements(targets); ++i)
    if (target[i] < 0 || target[i] >= classes)
      throw Error(str("cross_entropy: target ", target[i], " of row ", i, " is out of range for ", classes, " classes"),
                  str("give targets from 0 to ", classes - 1));
  dispatch_floating(logits.dtype, [&]<class T>() {
    using C = ComputeType<T>;
    run(space, "lockstep::class_losses", num_elements(targets),
        ClassLosses<T>{data_of<C>(losses), data_of<C>(log_sums), data_of<const T>(logits), target, classes});
  });
}

void class_sums(Space space, const View& sums, const View& picked, const View& logits, const View& targets,
                const View& tops) {
  dispatch_floating(logits.dtype, [&]<class T>() {
    using C = ComputeType<T>;
    run(space, "lockstep::class_sums", num_elements(targets),
        ClassSums<T>{data_of<C>(sums), data_of<C>(picked), data_of<const T>(logits),
                     data_of<const std::int64_t>(targets), data_of<const C>(tops), logits.sizes.back()});
  });
}

void class_losses_backward(Space space, const View& out, const View& logits, const View& log_sums, const View& targets,
                           const View& grad, double divisor) {
  dispatch_floating(logits.dtype, [&]<class T>() {
    using C = ComputeType<T>;
    run(space, "lockstep::class_losses_backward", num_elements(targets),
        ClassLossesBackward<T>{data_of<T>(out), data_of<const T>(logits), data_of<const C>(log_sums),
                               data_of<const std::int64_t>(targets), data_of<const T>(grad), logits.sizes.back(),
                               static_cast<C>(divisor)});
  });
}

}  // namespace lockstep::kernels
