// Copies, casts, fills.
#include <cstring>

#include "engine/kernels/elementwise.hpp"
#include "engine/kernels/kokkos_elementwise_internal.hpp"

namespace lockstep::kernels {

namespace {

// Between the types that are computed in; the store rounds to a 16-bit type.
template <class To>
struct Cast {
  template <class T>
  KOKKOS_INLINE_FUNCTION To operator()(T x) const {
    return static_cast<To>(x);
  }
};

struct Same {
  template <class T>
  KOKKOS_INLINE_FUNCTION T operator()(T x) const {
    return x;
  }
};

template <class T>
struct FillKernel {
  T* out;
  T value;
  Rows<1> rows;
  KOKKOS_FUNCTION void operator()(std::int64_t index) const {
    const Stretch<1> at(rows, index);
    T* const to = out + at.start[0];
    const T v = value;
    const std::int64_t step = rows.step[0];
    if (rows.unit) {
      for (std::int64_t i = 0; i < at.count; ++i) to[i] = v;
    } else {
      for (std::int64_t i = 0; i < at.count; ++i) to[i * step] = v;
    }
  }
};

// Equal types move as words of their size, so that no pattern of bits is changed.
template <class Word>
void move(Space space, const View& out, const View& a) {
  run_unary<Word, Word>(space, "lockstep::copy", out, a, Same{});
}

}  // namespace

void copy(Space space, const View& out, const View& a) {
  if (out.dtype == a.dtype) {
    if (space == Space::host && is_contiguous(out) && is_contiguous(a)) {
      const std::size_t bytes = static_cast<std::size_t>(num_elements(out)) * size_of(out.dtype);
      if (bytes > 0 && out.data != a.data) std::memcpy(out.data, a.data, bytes);
      return;
    }
    switch (size_of(out.dtype)) {
      case 1:
        return move<std::uint8_t>(space, out, a);
      case 2:
        return move<std::uint16_t>(space, out, a);
      case 4:
        return move<std::uint32_t>(space, out, a);
      default:
        return move<std::uint64_t>(space, out, a);
    }
  }
  dispatch_all(out.dtype, [&]<class R>() {
    dispatch_all(a.dtype, [&]<class A>() { run_unary<R, A>(space, "lockstep::cast", out, a, Cast<ComputeType<R>>{}); });
  });
}

void fill(Space space, const View& out, double value) {
  const Rows<1> rows = make_rows<1>(out.sizes, {&out.strides});
  dispatch_all(out.dtype, [&]<class T>() {
    run(space, "lockstep::fill", num_stretches(rows),
        FillKernel<T>{static_cast<T*>(out.data), static_cast<T>(static_cast<ComputeType<T>>(value)), rows});
  });
}

}  // namespace lockstep::kernels
