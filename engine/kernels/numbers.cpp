// Element-wise operations with one number.
#include "engine/kernels/elementwise.hpp"
#include "engine/kernels/kokkos_elementwise_internal.hpp"
#include "engine/kernels/logarithm_internal.hpp"
#include "engine/kernels/round_internal.hpp"

namespace lockstep::kernels {

namespace {

struct AddNumber {
  double b;
  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION T operator()(T a) const {
    return a + static_cast<T>(b);
  }
};
struct MulNumber {
  double b;
  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION T operator()(T a) const {
    return a * static_cast<T>(b);
  }
};
struct DivNumber {
  double b;
  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION T operator()(T a) const {
    return a / static_cast<T>(b);
  }
};
struct RsubNumber {
  double b;
  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION T operator()(T a) const {
    return static_cast<T>(b) - a;
  }
};
// As PyTorch's `number / tensor`, which is reciprocal(tensor) * number. Stored is the type of the tensor.
template <class Stored>
struct RdivNumber {
  double b;
  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION T operator()(T a) const {
    return static_cast<T>(static_cast<Stored>(T(1) / a)) * static_cast<T>(b);
  }
};

// The exponents 2, 3, -1, -2, 0.5 and -0.5, which training uses, avoid math::pow. As in PyTorch, a square of bfloat16
// is rounded before it is used again.
template <class T>
KOKKOS_FORCEINLINE_FUNCTION T square_in(T x, BFloat16) {
  return static_cast<T>(BFloat16(x * x));
}
template <class T, class Stored>
KOKKOS_FORCEINLINE_FUNCTION T square_in(T x, Stored) {
  return x * x;
}
struct Square {
  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION T operator()(T x) const {
    return x * x;
  }
};
template <class Stored>
struct Cube {
  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION T operator()(T x) const {
    return square_in(x, Stored()) * x;
  }
};
template <class Stored>
struct InverseSquare {
  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION T operator()(T x) const {
    return T(1) / square_in(x, Stored());
  }
};
struct Reciprocal {
  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION T operator()(T x) const {
    return T(1) / x;
  }
};
struct Pow {
  math::Exponent exponent;
  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION T operator()(T x) const {
    return math::pow(x, exponent);
  }
};
struct IntegerPow {
  std::int64_t exponent;
  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION T operator()(T x) const {
    // Wraps around as the hardware does.
    std::uint64_t result = 1, base = static_cast<std::uint64_t>(x);
    for (std::int64_t left = exponent; left > 0; left >>= 1, base *= base)
      if (left & 1) result *= base;
    return static_cast<T>(result);
  }
};

}  // namespace

void add_number(Execution on, const View& out, const View& a, double b) {
  unary(on, "lockstep::add_number", out, a, AddNumber{rounded_to(a.dtype, b)});
}
void mul_number(Execution on, const View& out, const View& a, double b) {
  unary(on, "lockstep::mul_number", out, a, MulNumber{b});
}
void div_number(Execution on, const View& out, const View& a, double b) {
  unary_floating(on, "lockstep::div_number", out, a, DivNumber{b});
}
void rsub_number(Execution on, const View& out, const View& a, double b) {
  unary(on, "lockstep::rsub_number", out, a, RsubNumber{rounded_to(a.dtype, b)});
}
void rdiv_number(Execution on, const View& out, const View& a, double b) {
  dispatch_floating(a.dtype,
                    [&]<class T>() { run_unary<T, T>(on, "lockstep::rdiv_number", out, a, RdivNumber<T>{b}); });
}
void pow_number(Execution on, const View& out, const View& a, double exponent) {
  if (!is_floating(a.dtype)) {
    const IntegerPow op{static_cast<std::int64_t>(exponent)};
    if (a.dtype == DType::int64) return run_unary<std::int64_t, std::int64_t>(on, "lockstep::pow", out, a, op);
    return run_unary<std::int32_t, std::int32_t>(on, "lockstep::pow", out, a, op);
  }
  if (exponent == 2.0) return unary_floating(on, "lockstep::pow", out, a, Square{});
  if (exponent == 3.0 || exponent == -2.0)
    return dispatch_floating(a.dtype, [&]<class T>() {
      if (exponent == 3.0) return run_unary<T, T>(on, "lockstep::pow", out, a, Cube<T>{});
      run_unary<T, T>(on, "lockstep::pow", out, a, InverseSquare<T>{});
    });
  if (exponent == -1.0) return unary_floating(on, "lockstep::pow", out, a, Reciprocal{});
  if (exponent == 0.5) return sqrt(on, out, a);
  if (exponent == -0.5) return rsqrt(on, out, a);  // of -0 and of -infinity too
  const double rounded = rounded_to(a.dtype, exponent);
  unary_floating(on, "lockstep::pow", out, a,
                 Pow{math::exponent_of(a.dtype == DType::float64 ? rounded : static_cast<float>(rounded))});
}

}  // namespace lockstep::kernels
