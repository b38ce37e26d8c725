#include "engine/kernels/activations.hpp"

#include "engine/kernels/kokkos_elementwise_internal.hpp"
#include "engine/kernels/math_internal.hpp"

namespace lockstep::kernels {

namespace {

constexpr double inverse_sqrt_2 = 0.70710678118654752440;
constexpr double inverse_sqrt_2pi = 0.39894228040143267794;

struct Gelu {
  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION T operator()(T x) const {
    return T(0.5) * x * (T(1) + math::erf(x * T(inverse_sqrt_2)));
  }
};
struct GeluBackward {
  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION T operator()(T grad, T x) const {
    const T below = T(0.5) * (T(1) + math::erf(x * T(inverse_sqrt_2)));
    const T density = math::exp(T(-0.5) * x * x) * T(inverse_sqrt_2pi);
    return grad * (below + x * density);
  }
};
struct Tanh {
  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION T operator()(T x) const {
    return math::tanh(x);
  }
};
struct TanhBackward {
  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION T operator()(T grad, T result) const {
    return grad * (T(1) - result * result);
  }
};
struct Sigmoid {
  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION T operator()(T x) const {
    return math::sigmoid(x);
  }
};
struct SigmoidBackward {
  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION T operator()(T grad, T result) const {
    return grad * ((T(1) - result) * result);
  }
};
struct Erf {
  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION T operator()(T x) const {
    return math::erf(x);
  }
};

template <class T>
struct KeepScaled {
  T* out;
  const T* a;
  const bool* keep;
  Rows<3> rows;
  ComputeType<T> factor;
  KOKKOS_FUNCTION void portable(std::int64_t index) const {
    const RowElement<3> of(rows, index);
    out[of.at[0]] = static_cast<T>(
        math::choose(keep + of.at[2], static_cast<ComputeType<T>>(a[of.at[1]]) * factor, ComputeType<T>(0)));
  }
  static constexpr int width = pack_width<T>;
  bool can_pack() const { return lies_in_packs<width>(rows, out, a, keep); }
  KOKKOS_FUNCTION void pack(std::int64_t first) const {
    using C = ComputeType<T>;
    const RowElement<3> of(rows, first);
    const Pack<T, width> x = load_pack<width>(a + of.at[1]);
    const Pack<bool, width> kept = load_pack<width>(keep + of.at[2]);
    Pack<T, width> result;
    for (int i = 0; i < width; ++i)
      result.values[i] = static_cast<T>(math::choose(kept.values + i, static_cast<C>(x.values[i]) * factor, C(0)));
    store_pack(out + of.at[0], result);
  }
  void operator()(std::int64_t index) const {
    using C = ComputeType<T>;
    const RowTile<3> at(rows, index);
    T* const to = out + at.start[0];
    const T* const x = a + at.start[1];
    const bool* const kept = keep + at.start[2];
    const std::int64_t s0 = rows.step[0], s1 = rows.step[1], s2 = rows.step[2];
    const C by = factor;
    if (rows.unit) {
#pragma GCC ivdep
      for (std::int64_t i = 0; i < at.count; ++i)
        to[i] = static_cast<T>(math::choose(kept + i, static_cast<C>(x[i]) * by, C(0)));
    } else {
      for (std::int64_t i = 0; i < at.count; ++i)
        to[i * s0] = static_cast<T>(math::choose(kept + i * s2, static_cast<C>(x[i * s1]) * by, C(0)));
    }
  }
};

}  // namespace

void gelu(Execution on, const View& out, const View& a) { unary_floating(on, "lockstep::gelu", out, a, Gelu{}); }
void gelu_backward(Execution on, const View& out, const View& grad, const View& a) {
  binary_floating(on, "lockstep::gelu_backward", out, grad, a, GeluBackward{});
}
void tanh(Execution on, const View& out, const View& a) { unary_floating(on, "lockstep::tanh", out, a, Tanh{}); }
void tanh_backward(Execution on, const View& out, const View& grad, const View& result) {
  binary_floating(on, "lockstep::tanh_backward", out, grad, result, TanhBackward{});
}
void sigmoid(Execution on, const View& out, const View& a) {
  unary_floating(on, "lockstep::sigmoid", out, a, Sigmoid{});
}
void sigmoid_backward(Execution on, const View& out, const View& grad, const View& result) {
  binary_floating(on, "lockstep::sigmoid_backward", out, grad, result, SigmoidBackward{});
}
void erf(Execution on, const View& out, const View& a) { unary_floating(on, "lockstep::erf", out, a, Erf{}); }

void keep_scaled(Execution on, const View& out, const View& a, const View& keep, double factor) {
  const Rows<3> rows = make_rows<3>(out.sizes, {&out.strides, &a.strides, &keep.strides});
  dispatch_floating(a.dtype, [&]<class T>() {
    run_rows(on, "lockstep::keep_scaled", rows,
             KeepScaled<T>{data_of<T>(out), data_of<const T>(a), data_of<const bool>(keep), rows,
                           static_cast<ComputeType<T>>(factor)});
  });
}

}  // namespace lockstep::kernels
