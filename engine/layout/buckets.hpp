// How gradients are grouped into buckets that are reduced together, as pure values.
//
// Buckets are filled in a given order of parameters, one bucket open for each kind (type and device); a bucket closes
// once it reaches its cap, so that it may exceed it by the last parameter. (Li et al., "PyTorch Distributed:
// Experiences on Accelerating Data Parallel Training", section 3.2.3.)
//
//   plan_first_buckets({{4000, 0}, {400, 0}}, {})                        == {{0, 1}}        one bucket a kind
//   plan_ready_buckets(parameters, order, {.cap_bytes = 1 << 20})        in the order gradients became ready
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
  std::optional<std::int64_t> cap_bytes;  // when given, of the first bucket too
  std::int64_t first() const { return cap_bytes.value_or(default_first_bytes); }
  std::int64_t cap() const { return cap_bytes.value_or(default_cap_bytes); }
};

using Buckets = std::vector<std::vector<int>>;  // indices of parameters, in the order of reduction

// Before anything is known of the order: one bucket a kind, in registration order within, the kinds' buckets reversed.
Buckets plan_first_buckets(const std::vector<BucketParameter>& parameters);
// Cut at the caps in registration order and then reversed: when unused parameters are looked for, where the order in
// which gradients become ready may differ between ranks and never decides.
Buckets plan_static_buckets(const std::vector<BucketParameter>& parameters, const BucketLimits& limits);
// In the order in which gradients became ready; `order` holds every parameter once.
Buckets plan_ready_buckets(const std::vector<BucketParameter>& parameters, const std::vector<int>& order,
                           const BucketLimits& limits);

}  // namespace lockstep::layout
