// Sizes and strides of tensors: an inline array of at most 8 entries, without allocation.
//
//   Dims sizes{2, 3};  num_elements(sizes) == 6;  contiguous_strides(sizes) == Dims{3, 1}
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "engine/core/checked.hpp"
#include "engine/core/error.hpp"

namespace lockstep {

inline constexpr int max_dims = 8;

class Dims {
 public:
  Dims() = default;
  Dims(std::initializer_list<std::int64_t> values) {
    for (std::int64_t value : values) push_back(value);
  }
  explicit Dims(const std::vector<std::int64_t>& values) {
    for (std::int64_t value : values) push_back(value);
  }
  Dims(int count, std::int64_t value) {
    for (int i = 0; i < count; ++i) push_back(value);
  }
  int size() const { return size_; }
  bool empty() const { return size_ == 0; }
  std::int64_t operator[](int i) const { return values_[i]; }
  std::int64_t& operator[](int i) { return values_[i]; }
  const std::int64_t* begin() const { return values_; }
  const std::int64_t* end() const { return values_ + size_; }
  std::int64_t* begin() { return values_; }
  std::int64_t* end() { return values_ + size_; }
  std::int64_t back() const { return values_[size_ - 1]; }
  void push_back(std::int64_t value) {
    if (size_ == max_dims) throw Error(str("a tensor has at most ", max_dims, " dims"), "flatten some of them");
    values_[size_++] = value;
  }
  void erase(int at) {
    std::copy(values_ + at + 1, values_ + size_, values_ + at);
    --size_;
  }
  void insert(int at, std::int64_t value) {
    push_back(value);
    std::rotate(values_ + at, values_ + size_ - 1, values_ + size_);
  }
  friend bool operator==(const Dims& a, const Dims& b) {
    return a.size_ == b.size_ && std::equal(a.begin(), a.end(), b.begin());
  }

 private:
  std::int64_t values_[max_dims] = {};
  int size_ = 0;
};

namespace checked_detail {
[[noreturn]] void refuse_sizes(const Dims& sizes);
}

// The product of the sizes. Throws Error when the product of the nonzero sizes does not fit in 64 bits, even if another
// size is 0.
inline std::int64_t num_elements(const Dims& sizes) {
  std::int64_t count = 1;
  bool has_elements = true;
  for (std::int64_t size : sizes) {
    if (size == 0) {
      has_elements = false;
    } else if (__builtin_mul_overflow(count, size, &count)) [[unlikely]] {
      checked_detail::refuse_sizes(sizes);
    }
  }
  return has_elements ? count : 0;
}

// The bytes of a contiguous tensor of these sizes, with `element` bytes per element. Throws Error naming `operation`
// when a size is negative, or when the tensor would exceed max_tensor_bytes if every size of 0 were 1. The sizes of
// every tensor pass this check once, which bounds all later products of its sizes and strides.
std::size_t checked_bytes(const Dims& sizes, std::size_t element, const char* operation);

// Row-major strides, in elements. Throws Error when one does not fit in 64 bits.
Dims contiguous_strides(const Dims& sizes);
// Whether the strides are row-major. Dims of size 1 are ignored, and all dims before a dim of size 0.
bool is_contiguous(const Dims& sizes, const Dims& strides);
// The sizes to which both broadcast, aligned at the last dim. Throws Error naming `operation` and both sizes if they do
// not broadcast.
Dims broadcast_sizes(const Dims& a, const Dims& b, const char* operation);
// `dim` as an index from 0; a negative dim counts from the end. Throws Error naming `operation` when it is out of
// range. A tensor of 0 dims accepts -1 and 0.
int normalize_dim(std::int64_t dim, int num_dims, const char* operation);
// "(2, 3)"; "(2,)" for one dim; "()" for a scalar.
std::string to_text(const Dims& dims);

}  // namespace lockstep
