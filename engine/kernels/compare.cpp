#include "engine/kernels/compare.hpp"

#include "engine/kernels/kokkos_elementwise_internal.hpp"

namespace lockstep::kernels {

namespace {

struct Equal {
  template <class T>
  KOKKOS_INLINE_FUNCTION bool operator()(T a, T b) const {
    return a == b;
  }
};
struct NotEqual {
  template <class T>
  KOKKOS_INLINE_FUNCTION bool operator()(T a, T b) const {
    return a != b;
  }
};
struct Less {
  template <class T>
  KOKKOS_INLINE_FUNCTION bool operator()(T a, T b) const {
    return a < b;
  }
};
struct LessEqual {
  template <class T>
  KOKKOS_INLINE_FUNCTION bool operator()(T a, T b) const {
    return a <= b;
  }
};

template <class T, class Op>
struct CompareKernel {
  Op op;
  bool* out;
  const T* a;
  const T* b;
  Rows<3> rows;
  KOKKOS_FUNCTION void operator()(std::int64_t index) const {
    using C = ComputeType<T>;
    const RowTile<3> at(rows, index);
    const Op f = op;
    bool* const to = out + at.start[0];
    const T* const x = a + at.start[1];
    const T* const y = b + at.start[2];
    const std::int64_t s0 = rows.step[0], s1 = rows.step[1], s2 = rows.step[2];
    if (rows.unit) {
#pragma GCC ivdep
      for (std::int64_t i = 0; i < at.count; ++i) to[i] = f(static_cast<C>(x[i]), static_cast<C>(y[i]));
      return;
    }
    for (std::int64_t i = 0; i < at.count; ++i) to[i * s0] = f(static_cast<C>(x[i * s1]), static_cast<C>(y[i * s2]));
  }
};
template <class Op>
void compare_with(Space space, const View& out, const View& a, const View& b, Op op) {
  const Rows<3> rows = make_rows<3>(out.sizes, {&out.strides, &a.strides, &b.strides});
  dispatch_all(a.dtype, [&]<class T>() {
    run(space, "lockstep::compare", num_row_tiles(rows),
        CompareKernel<T, Op>{op, static_cast<bool*>(out.data), static_cast<const T*>(a.data),
                             static_cast<const T*>(b.data), rows});
  });
}

// Selects words of the element size, because only the bits matter.
template <class Word>
struct WhereKernel {
  Word* out;
  const bool* condition;
  const Word* a;
  const Word* b;
  Rows<4> rows;
  KOKKOS_FUNCTION void operator()(std::int64_t index) const {
    const RowTile<4> at(rows, index);
    Word* const to = out + at.start[0];
    const bool* const yes = condition + at.start[1];
    const Word* const x = a + at.start[2];
    const Word* const y = b + at.start[3];
    const std::int64_t s0 = rows.step[0], s1 = rows.step[1], s2 = rows.step[2], s3 = rows.step[3];
    if (rows.unit) {
#pragma GCC ivdep
      for (std::int64_t i = 0; i < at.count; ++i) {
        const Word mask = static_cast<Word>(Word(0) - static_cast<Word>(yes[i]));  // a conditional would branch
        to[i] = static_cast<Word>((x[i] & mask) | (y[i] & static_cast<Word>(~mask)));
      }
      return;
    }
    for (std::int64_t i = 0; i < at.count; ++i) {
      to[i * s0] = yes[i * s1] ? x[i * s2] : y[i * s3];
    }
  }
};
template <class Word>
void where_words(Space space, const View& out, const View& condition, const View& a, const View& b) {
  const Rows<4> rows = make_rows<4>(out.sizes, {&out.strides, &condition.strides, &a.strides, &b.strides});
  run(space, "lockstep::where", num_row_tiles(rows),
      WhereKernel<Word>{static_cast<Word*>(out.data), static_cast<const bool*>(condition.data),
                        static_cast<const Word*>(a.data), static_cast<const Word*>(b.data), rows});
}

template <class T>
struct ExtremesKernel {
  T* values;
  std::int64_t* indices;
  const T* a;
  std::int64_t length;
  bool largest;
  KOKKOS_FUNCTION void operator()(std::int64_t row) const {
    using C = ComputeType<T>;
    const T* const x = a + row * length;
    std::int64_t found = 0;
    C best = static_cast<C>(x[0]);
    for (std::int64_t i = 1; i < length && best == best; ++i) {
      const C value = static_cast<C>(x[i]);
      if (value != value || (largest ? value > best : value < best)) {
        best = value;
        found = i;
      }
    }
    if (values) values[row] = x[found];
    if (indices) indices[row] = found;
  }
};

}  // namespace

void compare(Space space, const View& out, const View& a, const View& b, Comparison comparison) {
  switch (comparison) {
    case Comparison::eq:
      return compare_with(space, out, a, b, Equal{});
    case Comparison::ne:
      return compare_with(space, out, a, b, NotEqual{});
    case Comparison::lt:
      return compare_with(space, out, a, b, Less{});
    case Comparison::le:
      return compare_with(space, out, a, b, LessEqual{});
    case Comparison::gt:
      return compare_with(space, out, b, a, Less{});
    case Comparison::ge:
      return compare_with(space, out, b, a, LessEqual{});
  }
}

void where(Space space, const View& out, const View& condition, const View& a, const View& b) {
  switch (size_of(out.dtype)) {
    case 1:
      return where_words<std::uint8_t>(space, out, condition, a, b);
    case 2:
      return where_words<std::uint16_t>(space, out, condition, a, b);
    case 4:
      return where_words<std::uint32_t>(space, out, condition, a, b);
    default:
      return where_words<std::uint64_t>(space, out, condition, a, b);
  }
}

void extremes(Space space, const View& values, const View& indices, const View& a, bool largest) {
  const std::int64_t length = a.sizes.empty() ? 1 : a.sizes.back();
  dispatch_all(a.dtype, [&]<class T>() {
    run(space, "lockstep::extremes", num_elements(a) / length,
        ExtremesKernel<T>{static_cast<T*>(values.data), static_cast<std::int64_t*>(indices.data),
                          static_cast<const T*>(a.data), length, largest});
  });
}

}  // namespace lockstep::kernels
