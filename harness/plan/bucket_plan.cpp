#include "harness/plan/bucket_plan.hpp"

#include <algorithm>
#include <map>
#include <numeric>

namespace lockstep::plan {

namespace {

constexpr std::int64_t mebibyte = 1024 * 1024;

struct Bucket {
  std::vector<int> members;
  bool is_closed = false;
  std::size_t end = 0;  // the position in the order, of the member that closed it
  DType dtype = DType::float32;
};

// Appends the buckets of one dtype. A bucket closes when its bytes reach the cap.
void fill_buckets_of_type(const std::vector<BucketMember>& members, const std::vector<int>& order, DType dtype,
                          std::optional<std::int64_t> cap_bytes, std::vector<Bucket>& buckets) {
  std::int64_t bytes_left = cap_bytes.value_or(mebibyte);
  Bucket open;
  open.dtype = dtype;
  for (std::size_t position = 0; position < order.size(); ++position) {
    const BucketMember& member = members[static_cast<std::size_t>(order[position])];
    if (member.dtype != dtype) continue;
    open.members.push_back(order[position]);
    bytes_left -= member.bytes;
    if (bytes_left > 0) continue;
    open.is_closed = true;
    open.end = position;
    buckets.push_back(open);
    open = Bucket{{}, false, 0, dtype};
    bytes_left = cap_bytes.value_or(25 * mebibyte);
  }
  if (!open.members.empty()) buckets.push_back(open);
}

std::vector<Bucket> fill_buckets(const std::vector<BucketMember>& members, const std::vector<int>& order,
                                 std::optional<std::int64_t> cap_bytes) {
  std::vector<Bucket> buckets;
  for (int type = 0; type < num_dtypes; ++type)
    fill_buckets_of_type(members, order, static_cast<DType>(type), cap_bytes, buckets);
  return buckets;
}

BucketList lists_of(const std::vector<Bucket>& buckets) {
  BucketList lists;
  for (const Bucket& bucket : buckets) lists.push_back(bucket.members);
  return lists;
}

}  // namespace

BucketList first_buckets(const std::vector<BucketMember>& members) {
  std::vector<Bucket> buckets;
  for (std::size_t i = 0; i < members.size(); ++i) {
    const auto at = std::find_if(buckets.begin(), buckets.end(),
                                 [&](const Bucket& bucket) { return bucket.dtype == members[i].dtype; });
    Bucket& bucket = at == buckets.end() ? buckets.emplace_back(Bucket{{}, false, 0, members[i].dtype}) : *at;
    bucket.members.push_back(static_cast<int>(i));
  }
  std::reverse(buckets.begin(), buckets.end());
  return lists_of(buckets);
}

BucketList registered_buckets(const std::vector<BucketMember>& members, std::optional<std::int64_t> cap_bytes) {
  std::vector<int> order(members.size());
  std::iota(order.begin(), order.end(), 0);
  std::map<int, std::vector<int>> by_first;
  for (const Bucket& bucket : fill_buckets(members, order, cap_bytes))
    by_first[bucket.members.front()] = bucket.members;
  BucketList lists;
  for (auto at = by_first.rbegin(); at != by_first.rend(); ++at) lists.push_back(at->second);
  return lists;
}

BucketList rebuilt_buckets(const std::vector<BucketMember>& members, const std::vector<int>& gradient_order,
                           std::optional<std::int64_t> cap_bytes) {
  std::vector<Bucket> buckets = fill_buckets(members, gradient_order, cap_bytes);
  const auto open = std::stable_partition(buckets.begin(), buckets.end(), [](const Bucket& b) { return b.is_closed; });
  std::sort(buckets.begin(), open, [](const Bucket& a, const Bucket& b) { return a.end < b.end; });
  return lists_of(buckets);
}

}  // namespace lockstep::plan
