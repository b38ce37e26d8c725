// A number beside a tensor. Whether it is an integer decides the type of the result, as in PyTorch: int64 * 2 is int64,
// int64 * 2.0 is float32.
//
//   raw::add(steps, 1);      // int64 stays
//   raw::mul(steps, 1.0);    // float32
#pragma once

#include <concepts>
#include <cstdint>

namespace lockstep {

class Number {
 public:
  template <std::integral T>
  Number(T value) : is_integer_(true), integer_(value), value_(static_cast<double>(value)) {}
  template <std::floating_point T>
  Number(T value) : value_(static_cast<double>(value)) {}

  bool is_integer() const { return is_integer_; }
  std::int64_t integer() const { return integer_; }  // of an integer
  double value() const { return value_; }            // rounded for an integer beyond 2^53
  // False for an integer beyond 2^53, which value() may round.
  bool is_exact() const { return !is_integer_ || (integer_ >= -exact_integers && integer_ <= exact_integers); }

 private:
  static constexpr std::int64_t exact_integers = std::int64_t{1} << 53;
  bool is_integer_ = false;
  std::int64_t integer_ = 0;
  double value_ = 0.0;
};

}  // namespace lockstep
