#include "engine/kernels/index.hpp"

#include "engine/core/checked.hpp"
#include "engine/kernels/kokkos_launch_internal.hpp"
#include "engine/kernels/out_of_range_internal.hpp"

namespace lockstep::kernels {

namespace {

// The sizes of a contiguous view grouped around one dim: (outer, dim, inner).
struct DimSplit {
  std::int64_t outer = 1;
  std::int64_t size = 1;
  std::int64_t inner = 1;
};
DimSplit split_at(const View& view, int dim) {
  DimSplit result;
  for (int i = 0; i < dim; ++i) result.outer = bounded_product(result.outer, view.sizes[i]);
  result.size = view.sizes[dim];
  for (int i = dim + 1; i < view.sizes.size(); ++i) result.inner = bounded_product(result.inner, view.sizes[i]);
  return result;
}

void check_indices(Execution on, const char* operation, const View& index, std::int64_t size,
                   Missing missing = Missing::refused, std::optional<std::int64_t> ignored = {}) {
  if (missing == Missing::impossible) return;
  const auto* const at = data_of<const std::int64_t>(index);
  const std::int64_t count = num_elements(index), lowest = missing == Missing::zeros ? -1 : 0;
  const std::int64_t bad = first_index(on, "lockstep::check_indices", count, OutOfRange(at, lowest, size, ignored));
  if (bad < count)
    throw Error(str(operation, ": index ", value_at(on, at + bad), " at position ", bad,
                    " is out of range for a dim of size ", size),
                str("give indices from 0 to ", size - 1));
}

template <class Word>
struct SelectKernel {
  Word* out;
  const Word* a;
  const std::int64_t* index;
  DimSplit from;
  std::int64_t picked;
  KOKKOS_FUNCTION void portable(std::int64_t element) const {
    const std::int64_t row = element / from.inner, outer = row / picked;
    const std::int64_t slice = index[row - outer * picked];
    out[element] = slice < 0 ? Word(0) : a[(outer * from.size + slice) * from.inner + (element - row * from.inner)];
  }
  void operator()(std::int64_t row) const {
    const std::int64_t outer = row / picked;
    const std::int64_t inner = from.inner;
    if (index[row - outer * picked] < 0) {
      for (std::int64_t i = 0; i < inner; ++i) out[row * inner + i] = Word(0);
      return;
    }
    const Word* const x = a + (outer * from.size + index[row - outer * picked]) * inner;
    Word* const to = out + row * inner;
#pragma GCC ivdep
    for (std::int64_t i = 0; i < inner; ++i) to[i] = x[i];
  }
};

// The host handles one piece of the inner elements of one outer index. A team handles one picked slice: the first one
// of those with its index adds them all. No two write the same element.
template <class T>
struct AddKernel {
  T* out;
  const T* value;
  const std::int64_t* index;
  DimSplit to;
  std::int64_t picked;
  std::int64_t pieces;

  static constexpr std::size_t scratch_bytes = sizeof(int);
  template <class Team>
  KOKKOS_FUNCTION void team(const Team& team) const {
    using C = ComputeType<T>;
    const std::int64_t outer = team.index() / picked, first = team.index() - outer * picked;
    const std::int64_t slice = index[first];
    if (slice < 0) return;
    int* const is_later = reinterpret_cast<int*>(team.scratch());
    if (team.rank() == 0) *is_later = 0;
    team.barrier();
    for_each_of(team, first, [=, this](std::int64_t j) {
      if (index[j] == slice) *is_later = 1;  // all writers store the same value
    });
    team.barrier();
    if (*is_later != 0) return;
    T* const into = out + (outer * to.size + slice) * to.inner;
    for (std::int64_t j = first; j < picked; ++j) {
      if (index[j] != slice) continue;
      const T* const from = value + (outer * picked + j) * to.inner;
      for_each_of(team, to.inner, [=](std::int64_t i) {
        into[i] = static_cast<T>(static_cast<C>(static_cast<C>(into[i]) + static_cast<C>(from[i])));
      });
    }
  }
  void operator()(std::int64_t piece) const {
    using C = ComputeType<T>;
    const std::int64_t outer = piece / pieces;
    const std::int64_t begin = (piece - outer * pieces) * tile;
    const std::int64_t count = to.inner - begin < tile ? to.inner - begin : tile;
    for (std::int64_t j = 0; j < picked; ++j) {
      if (index[j] < 0) continue;
      T* const into = out + (outer * to.size + index[j]) * to.inner + begin;
      const T* const x = value + (outer * picked + j) * to.inner + begin;
#pragma GCC ivdep
      for (std::int64_t i = 0; i < count; ++i)
        into[i] = static_cast<T>(static_cast<C>(static_cast<C>(into[i]) + static_cast<C>(x[i])));
    }
  }
};

template <class Word>
void select_words(Execution on, const View& out, const View& a, int dim, const View& index) {
  const DimSplit from = split_at(a, dim);
  const std::int64_t picked = num_elements(index);
  run(on, "lockstep::index_select", from.outer * picked,
      SelectKernel<Word>{data_of<Word>(out), data_of<const Word>(a), data_of<const std::int64_t>(index), from, picked},
      from.outer * picked * from.inner);
}

// Starts positions: no range contains the index, or it is ignored.
struct NoPosition {
  std::int64_t* out;
  const std::int64_t* index;
  std::int64_t ignored;
  bool ignores;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const { out[i] = ignores && index[i] == ignored ? -2 : -1; }
};
// The positions of indices in one range, whose first element is number `passed` of all ranges.
struct PositionInRange {
  std::int64_t* out;
  const std::int64_t* index;
  std::int64_t begin, length, passed;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    if (out[i] != -2 && index[i] >= begin && index[i] < begin + length) out[i] = passed + index[i] - begin;
  }
};

}  // namespace

void index_select(Execution on, const View& out, const View& a, int dim, const View& index, Missing missing) {
  check_indices(on, "index_select", index, a.sizes[dim], missing);
  dispatch_words(a.dtype, [&]<class Word>() { select_words<Word>(on, out, a, dim, index); });
}

void index_add(Execution on, const View& to, int dim, const View& index, const View& value, Missing missing) {
  check_indices(on, "index_add_", index, to.sizes[dim], missing);
  const DimSplit shape = split_at(to, dim);
  const std::int64_t pieces = num_tiles(shape.inner);
  dispatch_all(to.dtype, [&]<class T>() {
    run_teams(on, "lockstep::index_add", shape.outer * pieces,
              AddKernel<T>{data_of<T>(to), data_of<const T>(value), data_of<const std::int64_t>(index), shape,
                           num_elements(index), pieces},
              bounded_product(shape.outer, num_elements(index)));
  });
}

void positions_in(Execution on, const View& out, const View& index, std::int64_t size,
                  const std::vector<layout::Chunk>& held, const char* operation, std::optional<std::int64_t> ignored) {
  check_indices(on, operation, index, size, Missing::refused, ignored);
  const auto* const at = data_of<const std::int64_t>(index);
  auto* const to = data_of<std::int64_t>(out);
  const std::int64_t count = num_elements(index);
  run(on, "lockstep::positions", count, NoPosition{to, at, ignored.value_or(0), ignored.has_value()});
  std::int64_t passed = 0;  // elements of the ranges before `range`
  for (const layout::Chunk& range : held) {
    run(on, "lockstep::positions", count, PositionInRange{to, at, range.begin, range.length, passed});
    passed += range.length;
  }
}

}  // namespace lockstep::kernels
