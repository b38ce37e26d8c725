// Arithmetic of sizes, strides, offsets and numbers of bytes that cannot wrap around.
//
// Sizes come from users and files, so their product may not fit in 64 bits. A wrapped product would allocate too little
// memory, and the next kernel would write past its end. Every product and sum of sizes therefore uses one of two kinds
// of function. ci/check_sizes.py finds the products that do not.
//
//   checked_multiply(rows, columns, "unfold")   The factors come from a user or a file. On overflow it throws an Error
//                                               that names the operation and the factors.
//   bounded_product(index, stride)              The factors describe existing memory, whose extent was checked at its
//                                               allocation. An overflow is a defect of the engine (InternalError).
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace lockstep {

// The maximum number of bytes of a tensor. Its offsets, strides and ends of ranges then fit in signed 64 bits.
inline constexpr std::int64_t max_tensor_bytes = std::int64_t{1} << 62;

namespace checked_detail {
[[noreturn]] void refuse(const char* operation, const char* sign, std::int64_t a, std::int64_t b);
[[noreturn]] void refuse_int(const char* operation, std::int64_t value);
[[noreturn]] void fail_bound(std::uint64_t a, std::uint64_t b, const char* file, int line);
}  // namespace checked_detail

// Throw Error naming `operation` and the operands when the result does not fit in 64 bits.
inline std::int64_t checked_multiply(std::int64_t a, std::int64_t b, const char* operation) {
  std::int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) [[unlikely]]
    checked_detail::refuse(operation, "*", a, b);
  return product;
}

inline std::int64_t checked_add(std::int64_t a, std::int64_t b, const char* operation) {
  std::int64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) [[unlikely]]
    checked_detail::refuse(operation, "+", a, b);
  return sum;
}

// a * b in the type of `a`; throws InternalError when it does not fit. `file` and `line` default to those of the call.
template <class T>
constexpr T bounded_product(T a, std::type_identity_t<T> b, const char* file = __builtin_FILE(),
                            int line = __builtin_LINE()) {
  T product = 0;
  if (__builtin_mul_overflow(a, b, &product)) [[unlikely]]
    checked_detail::fail_bound(static_cast<std::uint64_t>(a), static_cast<std::uint64_t>(b), file, line);
  return product;
}

// The bytes of `count` elements of `element` bytes, or of `count` objects of type T, in existing memory. Throws
// InternalError on overflow.
inline std::size_t bounded_bytes(std::int64_t count, std::size_t element, const char* file = __builtin_FILE(),
                                 int line = __builtin_LINE()) {
  return bounded_product(static_cast<std::size_t>(count), element, file, line);
}
template <class T>
inline std::size_t bounded_bytes(std::int64_t count, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  return bounded_bytes(count, sizeof(T), file, line);
}

// index * stride, unchecked, for loops in which a check per element would be slow. The index is below the size to which
// the stride (or the bytes per element) belongs, and the extent of the tensor has been checked.
template <class T>
constexpr T element_offset(T index, std::type_identity_t<T> stride) {
  return index * stride;
}

// Converts a number given by a user to int. Throws Error naming `operation` when it does not fit.
inline int checked_int(std::int64_t value, const char* operation) {
  if (value != static_cast<int>(value)) [[unlikely]]
    checked_detail::refuse_int(operation, value);
  return static_cast<int>(value);
}

}  // namespace lockstep
