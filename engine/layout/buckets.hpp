// The grouping of gradients into buckets that are reduced together, as pure values.
//
// Parameters are added in a given order to the open bucket of their kind (dtype and device). A bucket closes once its
// bytes reach the cap, so it may exceed the cap by its last parameter. (Li et al., "PyTorch Distributed: Experiences on
// Accelerating Data Parallel Training", section 3.2.3.)
//
//   make_first_buckets({{4000, 0}, {400, 0}})                         == {{0, 1}}     one bucket per kind
//   make_ready_buckets(parameters, order, {.cap_bytes = 1 << 20})     in the order in which gradients became ready
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace lockstep::layout {

struct BucketParameter {
  std::int64_t bytes = 0;
  int kind = 0;  // parameters of different kinds never share a bucket
};

struct BucketLimits {
  static constexpr std::int64_t default_first_bytes = std::int64_t{1} << 20;
  static constexpr std::int64_t default_cap_bytes = std::int64_t{25} << 20;
  std::optional<std::int64_t> cap_bytes;  // a given cap holds for the first bucket too
  std::int64_t first() const { return cap_bytes.value_or(default_first_bytes); }
  std::int64_t cap() const { return cap_bytes.value_or(default_cap_bytes); }
};

using Buckets = std::vector<std::vector<int>>;  // indices of parameters; buckets in the order of their reduction

// While the order of gradients is unknown: one bucket per kind without a cap, parameters in registration order, buckets
// in reverse order of their first parameters.
Buckets make_first_buckets(const std::vector<BucketParameter>& parameters);
// Filled up to the caps in registration order, then in reverse order. For runs that look for unused parameters: there
// the order in which gradients become ready may differ between ranks, so it is never used.
Buckets make_static_buckets(const std::vector<BucketParameter>& parameters, const BucketLimits& limits);
// Filled up to the caps in the order in which gradients became ready. `order` holds the index of every parameter once;
// anything else is an InternalError.
Buckets make_ready_buckets(const std::vector<BucketParameter>& parameters, const std::vector<int>& order,
                           const BucketLimits& limits);

}  // namespace lockstep::layout
