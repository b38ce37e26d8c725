#include <cmath>

#include "engine/kernels/elementwise.hpp"
#include "engine/kernels/kokkos_elementwise_internal.hpp"
#include "engine/kernels/logarithm_internal.hpp"
#include "engine/kernels/math_internal.hpp"

namespace lockstep::kernels {

namespace {

struct Neg {
  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION T operator()(T x) const {
    return -x;
  }
};
struct Abs {
  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION T operator()(T x) const {
    if constexpr (std::is_floating_point_v<T>) return std::fabs(x);
    return x < T(0) ? -x : x;
  }
};
struct Sign {
  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION T operator()(T x) const {
    return x > T(0) ? T(1) : x < T(0) ? T(-1) : T(0);  // of not-a-number too, as in PyTorch
  }
};
struct Relu {
  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION T operator()(T x) const {
    return x > T(0) || x != x ? x : T(0);
  }
};
struct Sqrt {
  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION T operator()(T x) const {
    return std::sqrt(x);
  }
};
struct Rsqrt {
  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION T operator()(T x) const {
    return T(1) / std::sqrt(x);
  }
};
struct Exp {
  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION T operator()(T x) const {
    return math::exp(x);
  }
};
struct Log {
  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION T operator()(T x) const {
    return math::log(x);
  }
};

}  // namespace

void neg(Execution on, const View& out, const View& a) { unary(on, "lockstep::neg", out, a, Neg{}); }
void abs(Execution on, const View& out, const View& a) { unary(on, "lockstep::abs", out, a, Abs{}); }
void sign(Execution on, const View& out, const View& a) { unary(on, "lockstep::sign", out, a, Sign{}); }
void relu(Execution on, const View& out, const View& a) { unary(on, "lockstep::relu", out, a, Relu{}); }
void sqrt(Execution on, const View& out, const View& a) { unary_floating(on, "lockstep::sqrt", out, a, Sqrt{}); }
void rsqrt(Execution on, const View& out, const View& a) { unary_floating(on, "lockstep::rsqrt", out, a, Rsqrt{}); }
void exp(Execution on, const View& out, const View& a) { unary_floating(on, "lockstep::exp", out, a, Exp{}); }
void log(Execution on, const View& out, const View& a) { unary_floating(on, "lockstep::log", out, a, Log{}); }

}  // namespace lockstep::kernels
