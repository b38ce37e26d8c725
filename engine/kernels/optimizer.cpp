#include "engine/kernels/optimizer.hpp"

#include <cmath>

#include "engine/kernels/kokkos_launch_internal.hpp"

namespace lockstep::kernels {

namespace {

template <class T>
struct SgdKernel {
  using C = ComputeType<T>;
  T* parameter;
  const T* grad;
  T* buffer;
  std::int64_t count;
  C minus_lr, momentum, weight_decay;
  bool decays, has_momentum, first_step;

  KOKKOS_FUNCTION void portable(std::int64_t index) const {
    update(parameter + index, grad + index, has_momentum ? buffer + index : nullptr, 1);
  }
  static constexpr int width = pack_width<T>;
  bool can_pack() const {
    return is_aligned_for_packs<width>(parameter) && is_aligned_for_packs<width>(grad) &&
           is_aligned_for_packs<width>(buffer);
  }
  KOKKOS_FUNCTION void pack(std::int64_t first) const {
    Pack<T, width> p = load_pack<width>(parameter + first), buf{};
    const Pack<T, width> gradient = load_pack<width>(grad + first);
    if (has_momentum) buf = load_pack<width>(buffer + first);
    update(p.values, gradient.values, buf.values, width);
    store_pack(parameter + first, p);
    if (has_momentum) store_pack(buffer + first, buf);
  }
  void operator()(std::int64_t index) const {
    const std::int64_t begin = index * tile;
    update(parameter + begin, grad + begin, has_momentum ? buffer + begin : nullptr,
           count - begin < tile ? count - begin : tile);
  }

  // The options are template parameters, because a loop with a condition does not vectorise.
  KOKKOS_INLINE_FUNCTION void update(T* p, const T* gradient, T* buf, std::int64_t n) const {
    if (decays) return with_decay<true>(p, gradient, buf, n);
    with_decay<false>(p, gradient, buf, n);
  }
  template <bool decay>
  KOKKOS_INLINE_FUNCTION void with_decay(T* p, const T* gradient, T* buf, std::int64_t n) const {
    if (!has_momentum) return with_options<decay, false, false>(p, gradient, buf, n);
    if (first_step) return with_options<decay, true, true>(p, gradient, buf, n);
    with_options<decay, true, false>(p, gradient, buf, n);
  }

  template <bool decay, bool momentum_on, bool first>
  KOKKOS_INLINE_FUNCTION void with_options(T* p, const T* gradient, [[maybe_unused]] T* buf, std::int64_t n) const {
    const C lr = minus_lr, mu = momentum, wd = weight_decay;
#pragma GCC ivdep
    for (std::int64_t i = 0; i < n; ++i) {
      const C x = static_cast<C>(p[i]);
      C g = static_cast<C>(gradient[i]);
      if constexpr (decay) g = std::fma(wd, x, g);
      if constexpr (momentum_on) {
        if constexpr (!first) g = static_cast<C>(buf[i]) * mu + g;
        buf[i] = static_cast<T>(g);
      }
      p[i] = static_cast<T>(std::fma(lr, g, x));
    }
  }
};

template <class T>
struct AdamKernel {
  using C = ComputeType<T>;
  T* parameter;
  const T* grad;
  T* exp_avg;
  T* exp_avg_sq;
  std::int64_t count;
  C weight_of_grad, beta2, one_minus_beta2, minus_rate, root_c2, eps, weight_decay, shrink;
  bool decays;

  KOKKOS_FUNCTION void portable(std::int64_t index) const {
    update(parameter + index, grad + index, exp_avg + index, exp_avg_sq + index, 1);
  }
  static constexpr int width = pack_width<T>;
  bool can_pack() const {
    return is_aligned_for_packs<width>(parameter) && is_aligned_for_packs<width>(grad) &&
           is_aligned_for_packs<width>(exp_avg) && is_aligned_for_packs<width>(exp_avg_sq);
  }
  KOKKOS_FUNCTION void pack(std::int64_t first) const {
    Pack<T, width> p = load_pack<width>(parameter + first);
    const Pack<T, width> gradient = load_pack<width>(grad + first);
    Pack<T, width> ms = load_pack<width>(exp_avg + first), vs = load_pack<width>(exp_avg_sq + first);
    update(p.values, gradient.values, ms.values, vs.values, width);
    store_pack(parameter + first, p);
    store_pack(exp_avg + first, ms);
    store_pack(exp_avg_sq + first, vs);
  }
  void operator()(std::int64_t index) const {
    const std::int64_t begin = index * tile;
    update(parameter + begin, grad + begin, exp_avg + begin, exp_avg_sq + begin,
           count - begin < tile ? count - begin : tile);
  }

  KOKKOS_INLINE_FUNCTION void update(T* p, const T* gradient, T* ms, T* vs, std::int64_t n) const {
    if (decays) return with_decay<true>(p, gradient, ms, vs, n);
    with_decay<false>(p, gradient, ms, vs, n);
  }
  template <bool decay>
  KOKKOS_INLINE_FUNCTION void with_decay(T* p, const T* gradient, T* ms, T* vs, std::int64_t n) const {
    if (weight_of_grad < C(0.5)) return with_options<decay, false>(p, gradient, ms, vs, n);
    with_options<decay, true>(p, gradient, ms, vs, n);
  }

  // The first moment is computed from the nearer of its two ends, as in PyTorch. From the moment before, a large one
  // would cancel a small gradient, which with beta1 = 0 is the whole moment.
  template <bool decay, bool from_grad>
  KOKKOS_INLINE_FUNCTION void with_options(T* p, const T* gradient, T* ms, T* vs, std::int64_t n) const {
    const AdamKernel k = *this;  // a copy that the stores of the loop cannot alias
    const C rate = from_grad ? k.weight_of_grad - C(1) : k.weight_of_grad;
#pragma GCC ivdep
    for (std::int64_t i = 0; i < n; ++i) {
      const C x = static_cast<C>(p[i]) * k.shrink;
      C g = static_cast<C>(gradient[i]);
      if constexpr (decay) g = std::fma(k.weight_decay, x, g);
      const C m_before = static_cast<C>(ms[i]);
      const C m = std::fma(rate, g - m_before, from_grad ? g : m_before);
      const C v = std::fma(k.one_minus_beta2 * g, g, static_cast<C>(vs[i]) * k.beta2);
      const C d = std::sqrt(v) / k.root_c2 + k.eps;
      ms[i] = static_cast<T>(m);
      vs[i] = static_cast<T>(v);
      p[i] = static_cast<T>(x + (k.minus_rate * m) / d);
    }
  }
};

void require_same_shape(const char* operation, const View& parameter, const View& other) {
  LOCKSTEP_CHECK(parameter.dtype == other.dtype && parameter.sizes == other.sizes && is_contiguous(parameter) &&
                     is_contiguous(other),
                 operation, ": ", to_text(parameter.sizes), " ", name_of(parameter.dtype), " with ",
                 to_text(other.sizes), " ", name_of(other.dtype));
}

}  // namespace

void sgd(Execution on, std::span<const SgdItem> items, const SgdNumbers& numbers) {
  for (const SgdItem& item : items) {
    require_same_shape("sgd", item.parameter, item.grad);
    if (numbers.momentum != 0.0) require_same_shape("sgd", item.parameter, item.buffer);
    const std::int64_t count = num_elements(item.parameter);
    dispatch_floating(item.parameter.dtype, [&]<class T>() {
      using C = ComputeType<T>;
      run(on, "lockstep::sgd", num_tiles(count),
          SgdKernel<T>{data_of<T>(item.parameter), data_of<const T>(item.grad), data_of<T>(item.buffer), count,
                       static_cast<C>(-numbers.lr), static_cast<C>(numbers.momentum),
                       static_cast<C>(numbers.weight_decay), numbers.weight_decay != 0.0, numbers.momentum != 0.0,
                       item.first_step},
          count);
    });
  }
}

void adam(Execution on, std::span<const AdamItem> items, const AdamNumbers& numbers) {
  for (const AdamItem& item : items) {
    for (const View* other : {&item.grad, &item.exp_avg, &item.exp_avg_sq})
      require_same_shape("adam", item.parameter, *other);
    const std::int64_t count = num_elements(item.parameter);
    const double step = static_cast<double>(item.step);
    const double c1 = 1.0 - std::pow(numbers.beta1, step);
    const double c2 = 1.0 - std::pow(numbers.beta2, step);
    dispatch_floating(item.parameter.dtype, [&]<class T>() {
      using C = ComputeType<T>;
      run(on, "lockstep::adam", num_tiles(count),
          AdamKernel<T>{data_of<T>(item.parameter), data_of<const T>(item.grad), data_of<T>(item.exp_avg),
                        data_of<T>(item.exp_avg_sq), count, static_cast<C>(1.0 - numbers.beta1),
                        static_cast<C>(numbers.beta2), static_cast<C>(1.0 - numbers.beta2),
                        static_cast<C>(-(numbers.lr / c1)), static_cast<C>(std::sqrt(c2)), static_cast<C>(numbers.eps),
                        static_cast<C>(numbers.weight_decay),
                        static_cast<C>(numbers.decoupled ? 1.0 - numbers.lr * numbers.weight_decay : 1.0),
                        numbers.weight_decay != 0.0 && !numbers.decoupled},
          count);
    });
  }
}

}  // namespace lockstep::kernels
