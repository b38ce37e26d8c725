// Sizes and strides of tensors: a small inline array of at most 8 entries, no allocation.
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

// Throws Error when the product of the sizes that are not 0 does not fit in 64 bits, also where another one is 0.
inline std::int64_t num_elements(const Dims& sizes) {
  std::int64_t count = 1;
  bool any = true;
  for (std::int64_t size : sizes) {
    if (size == 0) {
      any = false;
    } else if (__builtin_mul_overflow(count, size, &count)) [[unlikely]] {
      checked_detail::refuse_sizes(sizes);
    }
  }
  return any ? count : 0;
}

// The bytes of a contiguous tensor of these sizes. Throws Error naming `operation` when a size is negative, or when the
// tensor, each size of 0 counted as 1, is beyond max_tensor_bytes. Every tensor's sizes pass here once, which bounds
// the products of its sizes and strides from then on.
std::size_t checked_bytes(const Dims& sizes, std::size_t element, const char* operation);

Dims contiguous_strides(const Dims& sizes);
bool is_contiguous(const Dims& sizes, const Dims& strides);
// Sizes both broadcast to, aligned at the last dim; throws Error naming `operation` and both.
Dims broadcast_sizes(const Dims& a, const Dims& b, const char* operation);
// `dim` counted from the back when negative; throws Error when out of range.
int normalize_dim(std::int64_t dim, int num_dims, const char* operation);
// "(2, 3)"; "()" for a scalar.
std::string to_text(const Dims& dims);

}  // namespace lockstep
