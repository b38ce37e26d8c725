// Indices and targets that a tensor gives, checked before a kernel uses them (internal to engine/kernels).
#pragma once

#include <cstdint>
#include <optional>

#include <Kokkos_Macros.hpp>

namespace lockstep::kernels {

// Whether value i is outside of [lowest, size) and not the ignored one. For first_index().
class OutOfRange {
 public:
  OutOfRange(const std::int64_t* values, std::int64_t lowest, std::int64_t size, std::optional<std::int64_t> ignored)
      : values_(values), lowest_(lowest), size_(size), ignored_(ignored.value_or(0)), ignores_(ignored.has_value()) {}
  KOKKOS_FUNCTION bool operator()(std::int64_t i) const {
    const std::int64_t value = values_[i];
    return (value < lowest_ || value >= size_) && !(ignores_ && value == ignored_);
  }

 private:
  const std::int64_t* values_;
  std::int64_t lowest_, size_, ignored_;
  bool ignores_;
};

}  // namespace lockstep::kernels
