// Matrix products of the portable bodies, without a library. An element of the result is a chain of fma in order of the
// inner dim, so its bits depend neither on the tiles nor on the strides, and equal those of narrow_product.
#include "engine/core/checked.hpp"
#include "engine/kernels/kokkos_elementwise_internal.hpp"
#include "engine/kernels/math_internal.hpp"
#include "engine/kernels/portable_product_internal.hpp"

namespace lockstep::kernels {

namespace {

// A team computes one tile of the result, in steps along the inner dim. It keeps a tile of each operand and of the sums
// in its scratch memory.
template <class T>
struct TiledProduct {
  static constexpr std::int64_t side = 32;
  static constexpr std::int64_t pitch = side + 1;  // the elements of a column then lie in different banks of a device
  static constexpr std::int64_t elements = side * pitch;  // of a tile
  static constexpr std::size_t scratch_bytes = sizeof(T[3][elements]);
  T* out;
  const T* a;
  const T* b;
  std::int64_t m, n, k;
  Rows<3> batches;  // out, a and b over the leading dims, one batch per element
  std::int64_t out_row, a_row, a_column, b_row, b_column;
  bool adds;
  std::int64_t tiles_down, tiles_along;

  // The part of a batch that a team computes.
  struct Tile {
    T* to;
    const T* left;
    const T* right;
    std::int64_t rows, columns;  // of the product from here on, which may be more than the tile has
  };
  KOKKOS_INLINE_FUNCTION Tile tile_at(std::int64_t index) const {
    const std::int64_t j = index % tiles_along * side;
    index /= tiles_along;
    const std::int64_t i = index % tiles_down * side;
    const RowElement<3> batch(batches, index / tiles_down);
    return {out + batch.at[0] + i * out_row + j, a + batch.at[1] + i * a_row, b + batch.at[2] + j * b_column, m - i,
            n - j};
  }

  template <class Team>
  KOKKOS_FUNCTION void team(const Team& team) const {
    const Tile at = tile_at(team.index());
    T* const left = reinterpret_cast<T*>(team.scratch());
    T* const right = left + elements;
    T* const sums = right + elements;
    for_each_of(team, side * side, [=](std::int64_t e) { sums[e / side * pitch + e % side] = T(0); });
    for (std::int64_t first = 0; first < k; first += side) {
      const std::int64_t depth = k - first < side ? k - first : side;
      for_each_of(team, side * side, [&](std::int64_t e) {
        const std::int64_t i = e / side, l = e - i * side;
        if (i < at.rows && l < depth) left[i * pitch + l] = at.left[i * a_row + (first + l) * a_column];
        if (i < depth && l < at.columns) right[i * pitch + l] = at.right[(first + i) * b_row + l * b_column];
      });
      team.barrier();
      for_each_of(team, side * side, [&](std::int64_t e) {
        const std::int64_t i = e / side, j = e - i * side;
        if (i >= at.rows || j >= at.columns) return;
        T sum = sums[i * pitch + j];
        for (std::int64_t l = 0; l < depth; ++l) sum = math::fma(left[i * pitch + l], right[l * pitch + j], sum);
        sums[i * pitch + j] = sum;
      });
      team.barrier();
    }
    for_each_of(team, side * side, [&](std::int64_t e) {
      const std::int64_t i = e / side, j = e - i * side;
      if (i >= at.rows || j >= at.columns) return;
      T& to = at.to[i * out_row + j];
      to = adds ? to + sums[i * pitch + j] : sums[i * pitch + j];
    });
  }
};

template <class T>
void product_of(Execution on, const char* label, const View& out, const View& a, const View& b, bool adds) {
  const int dims = out.sizes.size();
  Dims sizes, of_out, of_a, of_b;
  for (int dim = 0; dim < dims - 2; ++dim) {
    sizes.push_back(out.sizes[dim]);
    of_out.push_back(out.strides[dim]);
    of_a.push_back(a.strides[dim]);
    of_b.push_back(b.strides[dim]);
  }
  const TiledProduct<T> kernel{data_of<T>(out),
                               data_of<const T>(a),
                               data_of<const T>(b),
                               out.sizes[dims - 2],
                               out.sizes[dims - 1],
                               a.sizes[dims - 1],
                               make_rows<3>(sizes, {&of_out, &of_a, &of_b}),
                               out.strides[dims - 2],
                               a.strides[dims - 2],
                               a.strides[dims - 1],
                               b.strides[dims - 2],
                               b.strides[dims - 1],
                               adds,
                               (out.sizes[dims - 2] + TiledProduct<T>::side - 1) / TiledProduct<T>::side,
                               (out.sizes[dims - 1] + TiledProduct<T>::side - 1) / TiledProduct<T>::side};
  const std::int64_t tiles = bounded_product(kernel.tiles_down, kernel.tiles_along);
  run_portable_teams(on, label, bounded_product(num_elements(sizes), tiles), kernel);
}

}  // namespace

void portable_product(Execution on, const char* label, const View& out, const View& a, const View& b, bool adds) {
  dispatch_wide(label, out.dtype, [&]<class T>() { product_of<T>(on, label, out, a, b, adds); });
}

}  // namespace lockstep::kernels
