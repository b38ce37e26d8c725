// Element types, the storage types of the 16-bit floating-point types, and the dispatch from a DType to a C++ type.
//
// float16 and bfloat16 are stored as bits and computed in float32. They are rounded once, at the store, to nearest
// even.
//
//   dispatch_all(dtype, [&]<class T>() { fill(static_cast<T*>(data), n); });
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "engine/core/error.hpp"

namespace lockstep {

enum class DType : std::uint8_t { float32, float64, float16, bfloat16, int64, int32, boolean };
inline constexpr int num_dtypes = 7;

constexpr std::size_t size_of(DType dtype) {
  constexpr std::size_t sizes[num_dtypes] = {4, 8, 2, 2, 8, 4, 1};
  return sizes[static_cast<int>(dtype)];
}
constexpr bool is_floating(DType dtype) { return dtype <= DType::bfloat16; }

// "float32", ..., "int32", "bool".
std::string_view name_of(DType dtype);
// The type of that name. Throws Error for an unknown name.
DType dtype_from_name(std::string_view name);
// The result type of an operation on two types. Floating-point precedes integers, and integers precede bool; the wider
// type precedes the narrower one. float16 with bfloat16 gives float32.
DType promote(DType a, DType b);

struct Half {
  std::uint16_t bits = 0;
  Half() = default;
  constexpr explicit Half(float value);
  constexpr operator float() const;
};
struct BFloat16 {
  std::uint16_t bits = 0;
  BFloat16() = default;
  constexpr explicit BFloat16(float value);
  constexpr operator float() const;
};
static_assert(sizeof(Half) == 2 && sizeof(BFloat16) == 2);

template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::float32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::float64;
};
template <>
struct DTypeOf<Half> {
  static constexpr DType value = DType::float16;
};
template <>
struct DTypeOf<BFloat16> {
  static constexpr DType value = DType::bfloat16;
};
template <>
struct DTypeOf<std::int64_t> {
  static constexpr DType value = DType::int64;
};
template <>
struct DTypeOf<std::int32_t> {
  static constexpr DType value = DType::int32;
};
template <>
struct DTypeOf<bool> {
  static constexpr DType value = DType::boolean;
};
template <class T>
inline constexpr DType dtype_of = DTypeOf<T>::value;

// The type in which T is computed: float for the 16-bit floating-point types, otherwise T.
template <class T>
struct ComputeTypeOf {
  using type = T;
};
template <>
struct ComputeTypeOf<Half> {
  using type = float;
};
template <>
struct ComputeTypeOf<BFloat16> {
  using type = float;
};
template <class T>
using ComputeType = typename ComputeTypeOf<T>::type;

// Calls f.operator()<T>() with the C++ type of `dtype`. Throws Error for a type that is not floating-point.
template <class F>
decltype(auto) dispatch_floating(DType dtype, F&& f) {
  switch (dtype) {
    case DType::float32:
      return f.template operator()<float>();
    case DType::float64:
      return f.template operator()<double>();
    case DType::float16:
      return f.template operator()<Half>();
    case DType::bfloat16:
      return f.template operator()<BFloat16>();
    default:
      throw Error(str("a floating-point type is needed, not ", name_of(dtype)), "cast the operand first");
  }
}

// The same for all types; bool is C++ bool.
template <class F>
decltype(auto) dispatch_all(DType dtype, F&& f) {
  switch (dtype) {
    case DType::int64:
      return f.template operator()<std::int64_t>();
    case DType::int32:
      return f.template operator()<std::int32_t>();
    case DType::boolean:
      return f.template operator()<bool>();
    default:
      return dispatch_floating(dtype, static_cast<F&&>(f));
  }
}

// Bit-exact conversions in software. They are constexpr, which lets compilers for devices use them.
constexpr BFloat16::BFloat16(float value) {
  std::uint32_t word = __builtin_bit_cast(std::uint32_t, value);
  if ((word & 0x7fffffffu) > 0x7f800000u) {
    bits = static_cast<std::uint16_t>((word >> 16) | 0x0040u);
    return;
  }
  word += 0x7fffu + ((word >> 16) & 1u);
  bits = static_cast<std::uint16_t>(word >> 16);
}
constexpr BFloat16::operator float() const { return __builtin_bit_cast(float, static_cast<std::uint32_t>(bits) << 16); }

// The conversions of Half have no branches, so that loops over them vectorize: they compute all cases and select one
// with masks.
namespace half_bits {
constexpr std::uint32_t choose(bool yes, std::uint32_t a, std::uint32_t b) {
  const std::uint32_t mask = 0u - static_cast<std::uint32_t>(yes);
  return (a & mask) | (b & ~mask);
}
}  // namespace half_bits

constexpr Half::Half(float value) {
  const std::uint32_t word = __builtin_bit_cast(std::uint32_t, value);
  const std::uint32_t sign = (word >> 16) & 0x8000u;
  const std::uint32_t magnitude = word & 0x7fffffffu;
  const std::uint32_t rebased = magnitude - 0x38000000u;
  const std::uint32_t normal = (rebased + 0xfffu + ((rebased >> 13) & 1u)) >> 13;
  // The addition of 0.5 makes the floating-point unit shift and round to nearest even.
  const float shifted = __builtin_bit_cast(float, magnitude) + 0.5f;
  const std::uint32_t subnormal = __builtin_bit_cast(std::uint32_t, shifted) - 0x3f000000u;
  std::uint32_t half = half_bits::choose(magnitude >= 0x38800000u, normal, subnormal);
  half = half_bits::choose(magnitude >= 0x477ff000u, 0x7c00u, half);  // rounds to infinity
  half = half_bits::choose(magnitude > 0x7f800000u, 0x7e00u, half);   // quiet NaN
  bits = static_cast<std::uint16_t>(sign | half);
}
constexpr Half::operator float() const {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t magnitude = bits & 0x7fffu;
  const std::uint32_t normal = (magnitude << 13) + 0x38000000u;
  const float scaled = static_cast<float>(static_cast<std::int32_t>(magnitude)) * 5.9604644775390625e-8f;
  std::uint32_t word = half_bits::choose(magnitude >= 0x0400u, normal, __builtin_bit_cast(std::uint32_t, scaled));
  word = half_bits::choose(magnitude >= 0x7c00u, 0x7f800000u | ((magnitude & 0x3ffu) << 13), word);
  return __builtin_bit_cast(float, sign | word);
}

}  // namespace lockstep
