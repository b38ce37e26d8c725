// Copies, casts and fills.
#include <cstring>

#include "engine/core/checked.hpp"
#include "engine/core/nontemporal.hpp"
#include "engine/kernels/elementwise.hpp"
#include "engine/kernels/kokkos_elementwise_internal.hpp"

namespace lockstep::kernels {

namespace {

// Converts between computation types. The store rounds to a 16-bit type.
template <class To>
struct Cast {
  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION To operator()(T x) const {
    return static_cast<To>(x);
  }
};

struct Identity {
  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION T operator()(T x) const {
    return x;
  }
};

template <class T>
struct FillKernel {
  T* out;
  T value;
  Rows<1> rows;
  KOKKOS_FUNCTION void portable(std::int64_t index) const { out[RowElement<1>(rows, index).at[0]] = value; }
  static constexpr int width = pack_width<T>;
  bool can_pack() const { return lies_in_packs<width>(rows, out); }
  KOKKOS_FUNCTION void pack(std::int64_t first) const {
    Pack<T, width> filled;
    for (int i = 0; i < width; ++i) filled.values[i] = value;
    store_pack(out + RowElement<1>(rows, first).at[0], filled);
  }
  void operator()(std::int64_t index) const {
    const RowTile<1> at(rows, index);
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

template <class T>
struct ArangeKernel {
  T* out;
  double start, step;
  std::int64_t stride;
  KOKKOS_FUNCTION void operator()(std::int64_t index) const {
    const double value = start + static_cast<double>(index) * step;
    if constexpr (std::is_same_v<T, bool>) {
      out[element_offset(index, stride)] = value != 0.0;
    } else {
      out[element_offset(index, stride)] = static_cast<T>(static_cast<ComputeType<T>>(value));
    }
  }
};

// Copies rows in which `a` repeats one element, as in an expanded tensor.
template <class Word>
struct RepeatKernel {
  Word* out;
  const Word* a;
  Rows<2> rows;  // along a row, out has stride 1 and a has stride 0
  void operator()(std::int64_t index) const {
    const RowTile<2> at(rows, index);
    Word* const to = out + at.start[0];
    const Word value = a[at.start[1]];
    for (std::int64_t i = 0; i < at.count; ++i) to[i] = value;
  }
};

// Copies between views that have stride 1 along different dims. Square tiles go through a buffer, so that each cache
// line is read once.
template <class Word>
struct TransposeKernel {
  static constexpr std::int64_t side = 32;
  Word* out;
  const Word* a;
  Rows<2> rows;  // out has stride 1 along a row, a along the outer dim `across`
  int across;
  std::int64_t tiles_along, tiles_across;

  // One tile: n elements along the rows, m of the outer dim `across`.
  struct Square {
    Word* to;
    const Word* from;
    std::int64_t n, m;
  };
  KOKKOS_FORCEINLINE_FUNCTION Square square_at(std::int64_t index) const {
    const std::int64_t along = index % tiles_along * side;
    index /= tiles_along;
    const std::int64_t begin = index % tiles_across * side;
    index /= tiles_across;
    Square square{out + along + element_offset(begin, rows.strides[0][across]), a + along * rows.step[1] + begin, 0, 0};
    for (int dim = rows.num_outer - 1; dim >= 0; --dim) {
      if (dim == across) continue;
      const std::int64_t at = index % rows.sizes[dim];
      index /= rows.sizes[dim];
      square.to += element_offset(at, rows.strides[0][dim]);
      square.from += element_offset(at, rows.strides[1][dim]);
    }
    square.n = rows.length - along < side ? rows.length - along : side;
    square.m = rows.sizes[across] - begin < side ? rows.sizes[across] - begin : side;
    return square;
  }

  static constexpr std::int64_t pitch = side + 1;  // columns of a tile then lie in different banks of a device's memory
  static constexpr std::size_t scratch_bytes = sizeof(Word[side][pitch]);
  template <class Team>
  KOKKOS_FUNCTION void team(const Team& team) const {
    const Square square = square_at(team.index());
    Word* const buffer = reinterpret_cast<Word*>(team.scratch());
    const std::int64_t step = rows.step[1], stride = rows.strides[0][across];
    for_each_of(team, square.n * side, [&](std::int64_t k) {
      const std::int64_t i = k / side, j = k - i * side;
      if (j < square.m) buffer[i * pitch + j] = square.from[i * step + j];
    });
    team.barrier();
    for_each_of(team, square.m * side, [&](std::int64_t k) {
      const std::int64_t j = k / side, i = k - j * side;
      if (i < square.n) square.to[element_offset(j, stride) + i] = buffer[i * pitch + j];
    });
  }
  void operator()(std::int64_t index) const {
    const Square square = square_at(index);
    Word* const to = square.to;
    const Word* const from = square.from;
    const std::int64_t n = square.n, m = square.m;
    const std::int64_t step = rows.step[1], stride = rows.strides[0][across];
    Word buffer[side][side];
    for (std::int64_t i = 0; i < n; ++i)
      for (std::int64_t j = 0; j < m; ++j) buffer[i][j] = from[i * step + j];
    for (std::int64_t j = 0; j < m; ++j)
      for (std::int64_t i = 0; i < n; ++i) to[element_offset(j, stride) + i] = buffer[i][j];
  }
};

// Copies large rows with stores that bypass the caches, for weights that enter a layer and gradients that leave it. A
// copy through the caches takes 1.5 times as long, because each line is read before it is overwritten.
template <class Word>
struct StreamingCopyKernel {
  static constexpr std::int64_t least_bytes = std::int64_t{1} << 20, least_row_bytes = 1024;
  Word* out;
  const Word* a;
  Rows<2> rows;  // both have stride 1 along a row
  void operator()(std::int64_t index) const {
    const RowTile<2> at(rows, index);
    copy_nontemporal(reinterpret_cast<std::byte*>(out + at.start[0]),
                     reinterpret_cast<const std::byte*>(a + at.start[1]), bounded_bytes<Word>(at.count));
  }
  static bool suits(Execution on, const Rows<2>& rows) {
    const std::int64_t row_bytes = bounded_product(rows.length, static_cast<std::int64_t>(sizeof(Word)));
    return has_nontemporal_stores && on.space == Space::host && rows.unit && row_bytes >= least_row_bytes &&
           bounded_product(row_bytes, rows.num_rows) >= least_bytes;
  }
};

// Copies elements of equal types as words of their size, which keeps every bit pattern.
template <class Word>
void move_words(Execution on, const View& out, const View& a) {
  const Rows<2> rows = make_rows<2>(out.sizes, {&out.strides, &a.strides});
  if (rows.step[0] == 1 && rows.step[1] > 1 && rows.length >= 8) {
    for (int dim = 0; dim < rows.num_outer; ++dim) {
      if (rows.strides[1][dim] != 1 || rows.sizes[dim] < 8) continue;
      TransposeKernel<Word> kernel{data_of<Word>(out), data_of<const Word>(a), rows, dim, 0, 0};
      kernel.tiles_along = (rows.length + kernel.side - 1) / kernel.side;
      kernel.tiles_across = (rows.sizes[dim] + kernel.side - 1) / kernel.side;
      const std::int64_t others = rows.num_rows / rows.sizes[dim];
      return run_teams(on, "lockstep::transpose", others * kernel.tiles_along * kernel.tiles_across, kernel);
    }
  }
  if (on.space == Space::host && rows.step[0] == 1 && rows.step[1] == 0) {
    return run_on_host("lockstep::copy", num_row_tiles(rows),
                       RepeatKernel<Word>{data_of<Word>(out), data_of<const Word>(a), rows});
  }
  if (StreamingCopyKernel<Word>::suits(on, rows)) {
    return run_on_host("lockstep::copy", num_row_tiles(rows),
                       StreamingCopyKernel<Word>{data_of<Word>(out), data_of<const Word>(a), rows});
  }
  run_rows(on, "lockstep::copy", rows,
           UnaryKernel<Identity, Word, Word>{Identity{}, data_of<Word>(out), data_of<const Word>(a), rows});
}

}  // namespace

void copy(Execution on, const View& out, const View& a) {
  if (out.dtype == a.dtype) {
    if (on.space == Space::host && is_contiguous(out) && is_contiguous(a)) {
      const std::size_t bytes = bounded_bytes(num_elements(out), size_of(out.dtype));
      if (bytes > 0 && out.data != a.data) std::memcpy(out.data, a.data, bytes);
      return;
    }
    return dispatch_words(out.dtype, [&]<class Word>() { move_words<Word>(on, out, a); });
  }
  dispatch_all(out.dtype, [&]<class R>() {
    dispatch_all(a.dtype, [&]<class A>() { run_unary<R, A>(on, "lockstep::cast", out, a, Cast<ComputeType<R>>{}); });
  });
}

void fill(Execution on, const View& out, double value) {
  const Rows<1> rows = make_rows<1>(out.sizes, {&out.strides});
  dispatch_all(out.dtype, [&]<class T>() {
    run_rows(on, "lockstep::fill", rows,
             FillKernel<T>{data_of<T>(out), static_cast<T>(static_cast<ComputeType<T>>(value)), rows});
  });
}

void arange(Execution on, const View& out, double start, double step) {
  LOCKSTEP_CHECK(out.sizes.size() == 1, "arange into ", out.sizes.size(), " dims");
  dispatch_all(out.dtype, [&]<class T>() {
    run(on, "lockstep::arange", out.sizes[0], ArangeKernel<T>{data_of<T>(out), start, step, out.strides[0]});
  });
}

}  // namespace lockstep::kernels
