#include "engine/layout/buckets.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>

#include "engine/core/checked.hpp"
#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"

namespace lockstep::layout {

namespace {

struct Open {
  std::vector<int> members;
  std::int64_t bytes = 0;
  bool first = true;  // no bucket of this kind has closed yet
};

// Closed buckets in order of closing, then what is left, by kind.
Buckets cut(const std::vector<BucketParameter>& parameters, const std::vector<int>& order, std::int64_t first_cap,
            std::int64_t cap) {
  if (defect_armed(Defect::bucket_cap_ignored)) [[unlikely]]
    first_cap = cap = std::numeric_limits<std::int64_t>::max();
  Buckets buckets;
  std::map<int, Open> open;
  for (const int index : order) {
    const BucketParameter& parameter = parameters[static_cast<std::size_t>(index)];
    Open& bucket = open[parameter.kind];
    bucket.members.push_back(index);
    bucket.bytes = checked_add(bucket.bytes, parameter.bytes, "bucket");
    if (bucket.bytes < (bucket.first ? first_cap : cap)) continue;
    buckets.push_back(std::move(bucket.members));
    bucket = Open{{}, 0, false};
  }
  for (auto& [kind, bucket] : open)
    if (!bucket.members.empty()) buckets.push_back(std::move(bucket.members));
  return buckets;
}

Buckets registered_then_reversed(const std::vector<BucketParameter>& parameters, std::int64_t first_cap,
                                 std::int64_t cap) {
  std::vector<int> order(parameters.size());
  std::iota(order.begin(), order.end(), 0);
  Buckets buckets = cut(parameters, order, first_cap, cap);
  std::sort(buckets.begin(), buckets.end(),
            [](const std::vector<int>& a, const std::vector<int>& b) { return a.front() > b.front(); });
  return buckets;
}

}  // namespace

Buckets plan_first_buckets(const std::vector<BucketParameter>& parameters) {
  constexpr std::int64_t none = std::numeric_limits<std::int64_t>::max();
  return registered_then_reversed(parameters, none, none);
}

Buckets plan_static_buckets(const std::vector<BucketParameter>& parameters, const BucketLimits& limits) {
  return registered_then_reversed(parameters, limits.first(), limits.cap());
}

Buckets plan_ready_buckets(const std::vector<BucketParameter>& parameters, const std::vector<int>& order,
                           const BucketLimits& limits) {
  std::vector<int> sorted = order;
  std::sort(sorted.begin(), sorted.end());
  for (std::size_t i = 0; i < sorted.size(); ++i)
    LOCKSTEP_CHECK(sorted[i] == static_cast<int>(i), "the order does not hold every parameter once");
  LOCKSTEP_CHECK(order.size() == parameters.size(), order.size(), " of ", parameters.size(),
                 " parameters in the order");
  return cut(parameters, order, limits.first(), limits.cap());
}

}  // namespace lockstep::layout
