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

struct OpenBucket {
  std::vector<int> members;
  std::int64_t bytes = 0;
  bool first = true;  // no bucket of this kind has closed yet
};

bool is_full(std::int64_t bytes, std::int64_t cap) {
  if (defect_armed(Defect::bucket_cap_ignored)) [[unlikely]]
    return false;
  return bytes >= cap;
}

// Returns the closed buckets in the order of closing, then those still open in the order of their kinds.
Buckets fill_buckets(const std::vector<BucketParameter>& parameters, const std::vector<int>& order,
                     std::int64_t first_cap, std::int64_t cap) {
  Buckets buckets;
  std::map<int, OpenBucket> open;
  for (const int index : order) {
    const BucketParameter& parameter = parameters[static_cast<std::size_t>(index)];
    OpenBucket& bucket = open[parameter.kind];
    bucket.members.push_back(index);
    bucket.bytes = checked_add(bucket.bytes, parameter.bytes, "bucket");
    if (!is_full(bucket.bytes, bucket.first ? first_cap : cap)) continue;
    buckets.push_back(std::move(bucket.members));
    bucket = OpenBucket{{}, 0, false};
  }
  for (auto& [kind, bucket] : open)
    if (!bucket.members.empty()) buckets.push_back(std::move(bucket.members));
  return buckets;
}

// Fills in registration order, then reverses the buckets.
Buckets fill_in_registration_order(const std::vector<BucketParameter>& parameters, std::int64_t first_cap,
                                   std::int64_t cap) {
  std::vector<int> order(parameters.size());
  std::iota(order.begin(), order.end(), 0);
  Buckets buckets = fill_buckets(parameters, order, first_cap, cap);
  std::sort(buckets.begin(), buckets.end(),
            [](const std::vector<int>& a, const std::vector<int>& b) { return a.front() > b.front(); });
  return buckets;
}

}  // namespace

Buckets make_first_buckets(const std::vector<BucketParameter>& parameters) {
  constexpr std::int64_t no_cap = std::numeric_limits<std::int64_t>::max();
  return fill_in_registration_order(parameters, no_cap, no_cap);
}

Buckets make_static_buckets(const std::vector<BucketParameter>& parameters, const BucketLimits& limits) {
  return fill_in_registration_order(parameters, limits.first(), limits.cap());
}

Buckets make_ready_buckets(const std::vector<BucketParameter>& parameters, const std::vector<int>& order,
                           const BucketLimits& limits) {
  std::vector<int> sorted = order;
  std::sort(sorted.begin(), sorted.end());
  for (std::size_t i = 0; i < sorted.size(); ++i)
    LOCKSTEP_CHECK(sorted[i] == static_cast<int>(i), "the order of parameters does not hold each of them once");
  LOCKSTEP_CHECK(order.size() == parameters.size(), order.size(), " of ", parameters.size(),
                 " parameters in the order");
  return fill_buckets(parameters, order, limits.first(), limits.cap());
}

}  // namespace lockstep::layout
