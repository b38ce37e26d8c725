#include <type_traits>

#include "engine/kernels/elementwise.hpp"
#include "engine/kernels/kokkos_elementwise_internal.hpp"
#include "engine/kernels/math_internal.hpp"
#include "engine/kernels/round_internal.hpp"

namespace lockstep::kernels {

namespace {

struct Add {
  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION T operator()(T a, T b) const {
    return static_cast<T>(a + b);
  }
};
struct Sub {
  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION T operator()(T a, T b) const {
    return static_cast<T>(a - b);
  }
};
struct Mul {
  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION T operator()(T a, T b) const {
    return static_cast<T>(a * b);
  }
};
struct Div {
  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION T operator()(T a, T b) const {
    return a / b;
  }
};
// The result is NaN if either operand is.
struct Maximum {
  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION T operator()(T a, T b) const {
    return a > b || a != a ? a : b;
  }
};
struct Minimum {
  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION T operator()(T a, T b) const {
    return a < b || a != a ? a : b;
  }
};
struct AddScaled {
  double factor;
  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION T operator()(T a, T b) const {
    if constexpr (std::is_floating_point_v<T>) return math::fma(static_cast<T>(factor), b, a);
    return static_cast<T>(a + static_cast<T>(static_cast<T>(factor) * b));
  }
};
struct ReluBackward {
  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION T operator()(T grad, T result) const {
    return result <= T(0) ? T(0) : grad;  // not-a-number passes the gradient on
  }
};

// A 16-bit type beside float32.
template <class Op>
void binary_by_float(Execution on, const char* label, const View& out, const View& a, const View& b, Op op) {
  if (a.dtype == DType::float16) return run_binary<Half, float>(on, label, out, a, b, op);
  run_binary<BFloat16, float>(on, label, out, a, b, op);
}

}  // namespace

void add(Execution on, const View& out, const View& a, const View& b) { binary(on, "lockstep::add", out, a, b, Add{}); }
void sub(Execution on, const View& out, const View& a, const View& b) { binary(on, "lockstep::sub", out, a, b, Sub{}); }
void mul(Execution on, const View& out, const View& a, const View& b) {
  if (a.dtype != b.dtype) return binary_by_float(on, "lockstep::mul", out, a, b, Mul{});
  binary(on, "lockstep::mul", out, a, b, Mul{});
}
void div(Execution on, const View& out, const View& a, const View& b) {
  if (a.dtype != b.dtype) return binary_by_float(on, "lockstep::div", out, a, b, Div{});
  binary_floating(on, "lockstep::div", out, a, b, Div{});
}
void maximum(Execution on, const View& out, const View& a, const View& b) {
  binary(on, "lockstep::maximum", out, a, b, Maximum{});
}
void minimum(Execution on, const View& out, const View& a, const View& b) {
  binary(on, "lockstep::minimum", out, a, b, Minimum{});
}
void add_scaled(Execution on, const View& out, const View& a, const View& b, double factor) {
  binary(on, "lockstep::add_scaled", out, a, b, AddScaled{rounded_to(a.dtype, factor)});
}
void relu_backward(Execution on, const View& out, const View& grad, const View& result) {
  binary_floating(on, "lockstep::relu_backward", out, grad, result, ReluBackward{});
}

}  // namespace lockstep::kernels
