#include "engine/kernels/compare.hpp"

#include "engine/kernels/kokkos_elementwise_internal.hpp"

namespace lockstep::kernels {

namespace {

struct Equal {
  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION bool operator()(T a, T b) const {
    return a == b;
  }
};
struct NotEqual {
  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION bool operator()(T a, T b) const {
    return a != b;
  }
};
struct Less {
  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION bool operator()(T a, T b) const {
    return a < b;
  }
};
struct LessEqual {
  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION bool operator()(T a, T b) const {
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
  KOKKOS_FUNCTION void portable(std::int64_t index) const {
    using C = ComputeType<T>;
    const RowElement<3> of(rows, index);
    out[of.at[0]] = op(static_cast<C>(a[of.at[1]]), static_cast<C>(b[of.at[2]]));
  }
  static constexpr int width = pack_width<T>;
  bool can_pack() const { return lies_in_packs<width>(rows, out, a, b); }
  KOKKOS_FUNCTION void pack(std::int64_t first) const {
    using C = ComputeType<T>;
    const RowElement<3> of(rows, first);
    const Pack<T, width> x = load_pack<width>(a + of.at[1]), y = load_pack<width>(b + of.at[2]);
    Pack<bool, width> result;
    for (int i = 0; i < width; ++i) result.values[i] = op(static_cast<C>(x.values[i]), static_cast<C>(y.values[i]));
    store_pack(out + of.at[0], result);
  }
  void operator()(std::int64_t index) const {
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
void compare_with(Execution on, const View& out, const View& a, const View& b, Op op) {
  const Rows<3> rows = make_rows<3>(out.sizes, {&out.strides, &a.strides, &b.strides});
  dispatch_all(a.dtype, [&]<class T>() {
    run_rows(on, "lockstep::compare", rows,
             CompareKernel<T, Op>{op, data_of<bool>(out), data_of<const T>(a), data_of<const T>(b), rows});
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
  KOKKOS_FUNCTION void portable(std::int64_t index) const {
    const RowElement<4> of(rows, index);
    out[of.at[0]] = condition[of.at[1]] ? a[of.at[2]] : b[of.at[3]];
  }
  static constexpr int width = pack_width<Word>;
  bool can_pack() const { return lies_in_packs<width>(rows, out, condition, a, b); }
  KOKKOS_FUNCTION void pack(std::int64_t first) const {
    const RowElement<4> of(rows, first);
    const Pack<bool, width> yes = load_pack<width>(condition + of.at[1]);
    const Pack<Word, width> x = load_pack<width>(a + of.at[2]), y = load_pack<width>(b + of.at[3]);
    Pack<Word, width> result;
    for (int i = 0; i < width; ++i) result.values[i] = yes.values[i] ? x.values[i] : y.values[i];
    store_pack(out + of.at[0], result);
  }
  void operator()(std::int64_t index) const {
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
void where_words(Execution on, const View& out, const View& condition, const View& a, const View& b) {
  const Rows<4> rows = make_rows<4>(out.sizes, {&out.strides, &condition.strides, &a.strides, &b.strides});
  run_rows(on, "lockstep::where", rows,
           WhereKernel<Word>{data_of<Word>(out), data_of<const bool>(condition), data_of<const Word>(a),
                             data_of<const Word>(b), rows});
}

// An element of a row, and where it is.
template <class C>
struct Found {
  C value;
  std::int64_t at;
};

template <class T>
struct ExtremesKernel {
  using C = ComputeType<T>;
  T* values;
  std::int64_t* indices;
  const T* a;
  std::int64_t length;
  bool largest;
  static constexpr std::int64_t num_slots = 128;
  static constexpr std::size_t scratch_bytes = sizeof(Found<C>[num_slots]);
  std::int64_t row_length() const { return length; }

  // Whether `one` comes before `other`: NaN first, then by size, then by position.
  KOKKOS_FORCEINLINE_FUNCTION bool precedes(const Found<C>& one, const Found<C>& other) const {
    const C left = one.value, right = other.value;
    if (left != left) return right == right || one.at < other.at;
    if (left == right) return one.at < other.at;
    return largest ? left > right : left < right;  // false where right is NaN
  }
  KOKKOS_FORCEINLINE_FUNCTION Found<C> first_of(const Found<C>& one, const Found<C>& other) const {
    return precedes(other, one) ? other : one;
  }
  // Of the elements i, i + step, ...; of the first element if there is none. Several are read at a time.
  KOKKOS_FORCEINLINE_FUNCTION Found<C> first_of_every(std::int64_t step, std::int64_t i, const T* x) const {
    constexpr int at_once = 8;
    Found<C> best{static_cast<C>(x[0]), 0};
    if (i < length) best = {static_cast<C>(x[i]), i};
    for (; i + (at_once - 1) * step < length; i += at_once * step) {
      C read[at_once];
      for (int k = 0; k < at_once; ++k) read[k] = static_cast<C>(x[i + k * step]);
      for (int k = 0; k < at_once; ++k) best = first_of(best, {read[k], i + k * step});
    }
    for (; i < length; i += step) best = first_of(best, {static_cast<C>(x[i]), i});
    return best;
  }
  template <class Team>
  KOKKOS_FUNCTION void team(const Team& team) const {
    const std::int64_t row = team.index();
    const T* const x = a + row * length;
    if constexpr (IsOneWarp<Team>) {
      Found<C> best = first_of_every(team.size(), team.rank(), x);
      for (int half = team.size() / 2; half > 0; half /= 2)
        best = first_of(best, {team.from_above(best.value, half), team.from_above(best.at, half)});
      if (team.rank() == 0) store(row, best);
    } else {
      auto* const found = reinterpret_cast<Found<C>*>(team.scratch());
      for_each_of(team, num_slots, [&](std::int64_t slot) { found[slot] = first_of_every(num_slots, slot, x); });
      for (std::int64_t half = num_slots / 2; half > 0; half /= 2) {
        team.barrier();
        for_each_of(team, half, [&](std::int64_t i) { found[i] = first_of(found[i], found[i + half]); });
      }
      team.barrier();
      if (team.rank() == 0) store(row, found[0]);
    }
  }
  KOKKOS_FUNCTION void store(std::int64_t row, const Found<C>& found) const {
    if (values) values[row] = a[row * length + found.at];
    if (indices) indices[row] = found.at;
  }
  void operator()(std::int64_t row) const {
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

void compare(Execution on, const View& out, const View& a, const View& b, Comparison comparison) {
  switch (comparison) {
    case Comparison::eq:
      return compare_with(on, out, a, b, Equal{});
    case Comparison::ne:
      return compare_with(on, out, a, b, NotEqual{});
    case Comparison::lt:
      return compare_with(on, out, a, b, Less{});
    case Comparison::le:
      return compare_with(on, out, a, b, LessEqual{});
    case Comparison::gt:
      return compare_with(on, out, b, a, Less{});
    case Comparison::ge:
      return compare_with(on, out, b, a, LessEqual{});
  }
}

void where(Execution on, const View& out, const View& condition, const View& a, const View& b) {
  dispatch_words(out.dtype, [&]<class Word>() { where_words<Word>(on, out, condition, a, b); });
}

void extremes(Execution on, const View& values, const View& indices, const View& a, bool largest) {
  const std::int64_t length = a.sizes.empty() ? 1 : a.sizes.back();
  dispatch_all(a.dtype, [&]<class T>() {
    run_teams(
        on, "lockstep::extremes", num_elements(a) / length,
        ExtremesKernel<T>{data_of<T>(values), data_of<std::int64_t>(indices), data_of<const T>(a), length, largest});
  });
}

}  // namespace lockstep::kernels
