#include "engine/kernels/elementwise.hpp"
#include "engine/kernels/kokkos_elementwise_internal.hpp"

namespace lockstep::kernels {

namespace {

struct Add {
  template <class T>
  KOKKOS_INLINE_FUNCTION T operator()(T a, T b) const {
    return static_cast<T>(a + b);
  }
};
struct Sub {
  template <class T>
  KOKKOS_INLINE_FUNCTION T operator()(T a, T b) const {
    return static_cast<T>(a - b);
  }
};
struct Mul {
  template <class T>
  KOKKOS_INLINE_FUNCTION T operator()(T a, T b) const {
    return static_cast<T>(a * b);
  }
};
struct Div {
  template <class T>
  KOKKOS_INLINE_FUNCTION T operator()(T a, T b) const {
    return a / b;
  }
};
// The result is NaN if either operand is.
struct Maximum {
  template <class T>
  KOKKOS_INLINE_FUNCTION T operator()(T a, T b) const {
    return a > b || a != a ? a : b;
  }
};
struct Minimum {
  template <class T>
  KOKKOS_INLINE_FUNCTION T operator()(T a, T b) const {
    return a < b || a != a ? a : b;
  }
};
struct AddScaled {
  double factor;
  template <class T>
  KOKKOS_INLINE_FUNCTION T operator()(T a, T b) const {
    return static_cast<T>(a + static_cast<T>(static_cast<T>(factor) * b));
  }
};
struct ReluBackward {
  template <class T>
  KOKKOS_INLINE_FUNCTION T operator()(T grad, T result) const {
    return result > T(0) ? grad : T(0);
  }
};

}  // namespace

void add(Space space, const View& out, const View& a, const View& b) {
  binary(space, "lockstep::add", out, a, b, Add{});
}
void sub(Space space, const View& out, const View& a, const View& b) {
  binary(space, "lockstep::sub", out, a, b, Sub{});
}
void mul(Space space, const View& out, const View& a, const View& b) {
  binary(space, "lockstep::mul", out, a, b, Mul{});
}
void div(Space space, const View& out, const View& a, const View& b) {
  binary_floating(space, "lockstep::div", out, a, b, Div{});
}
void maximum(Space space, const View& out, const View& a, const View& b) {
  binary(space, "lockstep::maximum", out, a, b, Maximum{});
}
void minimum(Space space, const View& out, const View& a, const View& b) {
  binary(space, "lockstep::minimum", out, a, b, Minimum{});
}
void add_scaled(Space space, const View& out, const View& a, const View& b, double factor) {
  binary(space, "lockstep::add_scaled", out, a, b, AddScaled{factor});
}
void relu_backward(Space space, const View& out, const View& grad, const View& result) {
  binary_floating(space, "lockstep::relu_backward", out, grad, result, ReluBackward{});
}

}  // namespace lockstep::kernels
