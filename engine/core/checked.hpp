// Arithmetic of sizes, strides, offsets and numbers of bytes that cannot wrap around.
//
// Sizes come from users and files, so their product may not fit in 64 bits. A wrapped product allocates too little
// memory, and the next kernel writes past its end. Each product and sum of sizes therefore goes through one of two
// kinds of function, and ci/check_sizes.py finds the products that do not:
//
//   checked_multiply(rows, columns, "unfold")   the factors come from outside: throws Error with operation and factors
//   bounded_product(index, stride)              the factors describe memory that exists, whose extent was checked when
//                                               it was made; a product that wraps is a defect of the engine
//                                               (InternalError)
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace lockstep {

// No tensor holds more bytes than this: offsets, strides and ends of its ranges then fit in 64 bits with a sign.
inline constexpr std::int64_t max_tensor_bytes = std::int64_t{1} << 62;

namespace checked_detail {
[[noreturn]] void refuse(const char* operation, const char* sign, std::int64_t a, std::int64_t b);
[[noreturn]] void refuse_int(const char* operation, std::int64_t value);
[[noreturn]] void fail_bound(std::uint64_t a, std::uint64_t b, const char* file, int line);
}  // namespace checked_detail

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

// The second factor has the type of the first. `file` and `line` are those of the call.
template <class T>
constexpr T bounded_product(T a, std::type_identity_t<T> b, const char* file = __builtin_FILE(),
                            int line = __builtin_LINE()) {
  T product = 0;
  if (__builtin_mul_overflow(a, b, &product)) [[unlikely]]
    checked_detail::fail_bound(static_cast<std::uint64_t>(a), static_cast<std::uint64_t>(b), file, line);
  return product;
}

// The bytes of `count` elements, or of `count` objects of type T, in memory that exists.
inline std::size_t bounded_bytes(std::int64_t count, std::size_t element, const char* file = __builtin_FILE(),
                                 int line = __builtin_LINE()) {
  return bounded_product(static_cast<std::size_t>(count), element, file, line);
}
template <class T>
inline std::size_t bounded_bytes(std::int64_t count, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  return bounded_bytes(count, sizeof(T), file, line);
}

// In loops over elements, where a check per element would cost: an index below a size, times the stride or the bytes of
// that size. Both describe one tensor, whose extent was checked.
template <class T>
constexpr T element_offset(T index, std::type_identity_t<T> stride) {
  return index * stride;
}

// A number of a user as an int: throws Error naming `operation` when it does not fit.
inline int checked_int(std::int64_t value, const char* operation) {
  if (value != static_cast<int>(value)) [[unlikely]]
    checked_detail::refuse_int(operation, value);
  return static_cast<int>(value);
}

}  // namespace lockstep
