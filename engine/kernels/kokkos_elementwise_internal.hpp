// Element-wise kernels from one functor per operation (internal to engine/kernels).
//
//   struct Square {
//     template <class T>
//     KOKKOS_FORCEINLINE_FUNCTION T operator()(T x) const { return x * x; }
//   };
//   void square(Execution on, const View& out, const View& a) { unary(on, "lockstep::square", out, a, Square{}); }
//
// The functor takes and returns the computation type (float for the 16-bit types). Contiguous and strided operands, and
// the two bodies, use the same expression, so they give the same bits.
#pragma once

#include "engine/core/checked.hpp"
#include "engine/kernels/kokkos_launch_internal.hpp"
#include "engine/kernels/rows.hpp"

namespace lockstep::kernels {

// The unit of work of an element-wise kernel on the host: at most `tile` elements of one row. `start` is the offset of
// the first element in each view.
template <int N>
struct RowTile {
  std::int64_t begin;
  std::int64_t count;
  std::int64_t start[N];

  // Always inlined: a call per row takes a quarter of the time of a copy of rows of 128 elements.
  [[gnu::always_inline]] RowTile(const Rows<N>& rows, std::int64_t index) {
    const std::int64_t tiles_per_row = (rows.length + tile - 1) / tile;
    std::int64_t row = index / tiles_per_row;
    begin = (index - row * tiles_per_row) * tile;
    count = rows.length - begin < tile ? rows.length - begin : tile;
    for (int k = 0; k < N; ++k) start[k] = begin * rows.step[k];
    for (int dim = rows.num_outer - 1; dim >= 0; --dim) {
      const std::int64_t at = row % rows.sizes[dim];
      row /= rows.sizes[dim];
      for (int k = 0; k < N; ++k) start[k] += element_offset(at, rows.strides[k][dim]);
    }
  }
};
template <int N>
std::int64_t num_row_tiles(const Rows<N>& rows) {
  return rows.num_rows * num_tiles(rows.length);
}

// The offsets of one element in each view, which is the unit of work of portable bodies.
template <int N>
struct RowElement {
  std::int64_t at[N];

  KOKKOS_INLINE_FUNCTION RowElement(const Rows<N>& rows, std::int64_t index) {
    std::int64_t row = rows.num_outer == 0 ? 0 : index / rows.length;
    for (int k = 0; k < N; ++k) at[k] = element_offset(index - row * rows.length, rows.step[k]);
    for (int dim = rows.num_outer - 1; dim >= 0; --dim) {
      const std::int64_t along = row % rows.sizes[dim];
      row /= rows.sizes[dim];
      for (int k = 0; k < N; ++k) at[k] += element_offset(along, rows.strides[k][dim]);
    }
  }
};

// Runs kernel(index) per tile on the host, and kernel.portable(index) per element elsewhere.
template <class Kernel, int N>
void run_rows(Execution on, const char* label, const Rows<N>& rows, const Kernel& kernel) {
  run(on, label, num_row_tiles(rows), kernel, rows.num_rows * rows.length);
}

template <class Op, class R, class A>
struct UnaryKernel {
  Op op;
  R* out;
  const A* a;
  Rows<2> rows;
  KOKKOS_FUNCTION void portable(std::int64_t index) const {
    const RowElement<2> of(rows, index);
    out[of.at[0]] = static_cast<R>(op(static_cast<ComputeType<A>>(a[of.at[1]])));
  }
  static constexpr int width = pack_width<R, A>;
  bool can_pack() const { return lies_in_packs<width>(rows, out, a); }
  KOKKOS_FUNCTION void pack(std::int64_t first) const {
    const RowElement<2> of(rows, first);
    const Pack<A, width> x = load_pack<width>(a + of.at[1]);
    Pack<R, width> y;
    for (int i = 0; i < width; ++i) y.values[i] = static_cast<R>(op(static_cast<ComputeType<A>>(x.values[i])));
    store_pack(out + of.at[0], y);
  }
  void operator()(std::int64_t index) const {
    const RowTile<2> at(rows, index);
    const Op f = op;
    R* const to = out + at.start[0];
    const A* const x = a + at.start[1];
    if (rows.unit) {
#pragma GCC ivdep
      for (std::int64_t i = 0; i < at.count; ++i) to[i] = static_cast<R>(f(static_cast<ComputeType<A>>(x[i])));
    } else {
      const std::int64_t s0 = rows.step[0], s1 = rows.step[1];
      for (std::int64_t i = 0; i < at.count; ++i)
        to[i * s0] = static_cast<R>(f(static_cast<ComputeType<A>>(x[i * s1])));
    }
  }
};

template <class Op, class T, class B>
struct BinaryKernel {
  Op op;
  T* out;
  const T* a;
  const B* b;
  Rows<3> rows;
  KOKKOS_FUNCTION void portable(std::int64_t index) const {
    using C = ComputeType<T>;
    const RowElement<3> of(rows, index);
    out[of.at[0]] = static_cast<T>(op(static_cast<C>(a[of.at[1]]), static_cast<C>(b[of.at[2]])));
  }
  static constexpr int width = pack_width<T, B>;
  bool can_pack() const { return lies_in_packs<width>(rows, out, a, b); }
  KOKKOS_FUNCTION void pack(std::int64_t first) const {
    using C = ComputeType<T>;
    const RowElement<3> of(rows, first);
    const Pack<T, width> x = load_pack<width>(a + of.at[1]);
    const Pack<B, width> y = load_pack<width>(b + of.at[2]);
    Pack<T, width> result;
    for (int i = 0; i < width; ++i)
      result.values[i] = static_cast<T>(op(static_cast<C>(x.values[i]), static_cast<C>(y.values[i])));
    store_pack(out + of.at[0], result);
  }
  void operator()(std::int64_t index) const {
    using C = ComputeType<T>;
    const RowTile<3> at(rows, index);
    const Op f = op;
    T* const to = out + at.start[0];
    const T* const x = a + at.start[1];
    const B* const y = b + at.start[2];
    if (rows.unit) {
#pragma GCC ivdep
      for (std::int64_t i = 0; i < at.count; ++i) to[i] = static_cast<T>(f(static_cast<C>(x[i]), static_cast<C>(y[i])));
    } else {
      const std::int64_t s0 = rows.step[0], s1 = rows.step[1], s2 = rows.step[2];
      for (std::int64_t i = 0; i < at.count; ++i)
        to[i * s0] = static_cast<T>(f(static_cast<C>(x[i * s1]), static_cast<C>(y[i * s2])));
    }
  }
};

template <class R, class A, class Op>
void run_unary(Execution on, const char* label, const View& out, const View& a, Op op) {
  const Rows<2> rows = make_rows<2>(out.sizes, {&out.strides, &a.strides});
  run_rows(on, label, rows, UnaryKernel<Op, R, A>{op, data_of<R>(out), data_of<const A>(a), rows});
}
// B is the type of `b`. Its values convert to the computation type of T without rounding.
template <class T, class B = T, class Op>
void run_binary(Execution on, const char* label, const View& out, const View& a, const View& b, Op op) {
  const Rows<3> rows = make_rows<3>(out.sizes, {&out.strides, &a.strides, &b.strides});
  run_rows(on, label, rows,
           BinaryKernel<Op, T, B>{op, data_of<T>(out), data_of<const T>(a), data_of<const B>(b), rows});
}

// Dispatch shared by all operations: over all types (dispatch_all), all but bool, or floating types.
template <class F>
void dispatch_numbers(DType dtype, F&& f) {
  if (dtype == DType::int64) return f.template operator()<std::int64_t>();
  if (dtype == DType::int32) return f.template operator()<std::int32_t>();
  dispatch_floating(dtype, f);
}
template <class Op>
void unary(Execution on, const char* label, const View& out, const View& a, Op op) {
  dispatch_numbers(a.dtype, [&]<class T>() { run_unary<T, T>(on, label, out, a, op); });
}
template <class Op>
void unary_floating(Execution on, const char* label, const View& out, const View& a, Op op) {
  dispatch_floating(a.dtype, [&]<class T>() { run_unary<T, T>(on, label, out, a, op); });
}
template <class Op>
void binary(Execution on, const char* label, const View& out, const View& a, const View& b, Op op) {
  dispatch_all(a.dtype, [&]<class T>() { run_binary<T>(on, label, out, a, b, op); });
}
template <class Op>
void binary_floating(Execution on, const char* label, const View& out, const View& a, const View& b, Op op) {
  dispatch_floating(a.dtype, [&]<class T>() { run_binary<T>(on, label, out, a, b, op); });
}

}  // namespace lockstep::kernels
