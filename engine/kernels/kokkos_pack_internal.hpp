// Packs: neighbouring elements that one call of a portable body handles (internal to engine/kernels).
//
// A thread of a GPU then has 16 bytes of each operand under way. With one element per thread, the loads of all threads
// together are too few bytes for the bandwidth of the memory. A kernel with packs has, beside portable(index),
//   static constexpr int width                    elements of a pack: pack_width of its element types
//   bool can_pack() const                         whether lies_in_packs() holds for its operands
//   KOKKOS_FUNCTION void pack(std::int64_t first) const    the elements from `first` on, `width` of them
// Each element gets the same expression in both, so the bits are equal.
#pragma once

#include <algorithm>
#include <cstdint>

#include <Kokkos_Macros.hpp>

#include "engine/kernels/rows.hpp"

namespace lockstep::kernels {

template <class T, int width>
struct alignas(sizeof(T[width])) Pack {
  T values[width];
};

template <class... T>
inline constexpr int pack_width = static_cast<int>(16 / std::max({sizeof(T)...}));

template <int width, class T>
KOKKOS_FORCEINLINE_FUNCTION Pack<T, width> load_pack(const T* from) {
  return *reinterpret_cast<const Pack<T, width>*>(from);
}
template <int width, class T>
KOKKOS_FORCEINLINE_FUNCTION void store_pack(T* to, const Pack<T, width>& pack) {
  *reinterpret_cast<Pack<T, width>*>(to) = pack;
}

template <int width, class T>
KOKKOS_FUNCTION bool is_aligned_for_packs(const T* data) {
  return reinterpret_cast<std::uintptr_t>(data) % sizeof(T[width]) == 0;
}

// Whether each pack of `width` elements, counted from the first one, lies in one row and is aligned in every operand. A
// single row may end with a part of a pack.
template <int width, int N, class... T>
bool lies_in_packs(const Rows<N>& rows, const T*... data) {
  static_assert(sizeof...(T) == N);
  if (!rows.unit || !(is_aligned_for_packs<width>(data) && ...)) return false;
  if (rows.num_outer > 0 && rows.length % width != 0) return false;
  for (int dim = 0; dim < rows.num_outer; ++dim)
    for (int k = 0; k < N; ++k)
      if (rows.strides[k][dim] % width != 0) return false;
  return true;
}

// The portable body of a kernel with packs: the first `packs` indices are packs, and the others are single elements.
template <class Kernel>
struct Packed {
  Kernel kernel;
  std::int64_t packs;

  Packed(const Kernel& of, std::int64_t count) : kernel(of), packs(of.can_pack() ? count / Kernel::width : 0) {}
  std::int64_t num_indices(std::int64_t count) const { return count - packs * (Kernel::width - 1); }
  KOKKOS_FUNCTION void portable(std::int64_t index) const {
    if (index < packs) return kernel.pack(index * Kernel::width);
    kernel.portable(packs * Kernel::width + (index - packs));
  }
};

}  // namespace lockstep::kernels
