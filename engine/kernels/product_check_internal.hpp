// Checks the products of a library: alone against plain loops, and on several threads at once against those computed
// alone (internal to engine/kernels).
#pragma once

#include <cstdint>
#include <functional>

namespace lockstep::kernels {

inline constexpr int checked_side = 48;

// out = a x b of square matrices; out and a are row-major, b is column-major.
template <class T>
using SquareProduct = std::function<void(T* out, const T* a, const T* b)>;

// Each thread multiplies matrices of its own, once alone and then `products_per_thread` times beside the others. The
// number of products that differ in a bit from the one alone, and of those alone that differ from the sum of the terms
// by more than 1e-4, or are not a number. For float and double.
template <class T>
std::int64_t wrong_products(const SquareProduct<T>& multiply, int num_threads, int products_per_thread);

}  // namespace lockstep::kernels
