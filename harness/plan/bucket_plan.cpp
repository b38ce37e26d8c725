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
  std::size_t end = 0;  // the place in the order of the member that closed it
  DType dtype = DType::float32;
};

// One type at a time: places of its members in the order, cut where the bytes since the last cut reach the cap.
void cut_type(const std::vector<BucketMember>& members, const std::vector<int>& order, DType dtype,
              std::optional<std::int64_t> cap_bytes, std::vector<Bucket>& buckets) {
  std::int64_t room = cap_bytes.value_or(mebibyte);
  Bucket open;
  open.dtype = dtype;
  for (std::size_t place = 0; place < order.size(); ++place) {
    const BucketMember& member = members[static_cast<std::size_t>(order[place])];
    if (member.dtype != dtype) continue;
    open.members.push_back(order[place]);
    room -= member.bytes;
    if (room > 0) continue;
    open.is_closed = true;
    open.end = place;
    buckets.push_back(open);
    open = Bucket{{}, false, 0, dtype};
    room = cap_bytes.value_or(25 * mebibyte);
  }
  if (!open.members.empty()) buckets.push_back(open);
}

std::vector<Bucket> cut(const std::vector<BucketMember>& members, const std::vector<int>& order,
                        std::optional<std::int64_t> cap_bytes) {
  std::vector<Bucket> buckets;
  for (int type = 0; type < num_dtypes; ++type) cut_type(members, order, static_cast<DType>(type), cap_bytes, buckets);
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
  for (const Bucket& bucket : cut(members, order, cap_bytes)) by_first[bucket.members.front()] = bucket.members;
  BucketList lists;
  for (auto at = by_first.rbegin(); at != by_first.rend(); ++at) lists.push_back(at->second);
  return lists;
}

BucketList rebuilt_buckets(const std::vector<BucketMember>& members, const std::vector<int>& came,
                           std::optional<std::int64_t> cap_bytes) {
  std::vector<Bucket> buckets = cut(members, came, cap_bytes);
  const auto open = std::stable_partition(buckets.begin(), buckets.end(), [](const Bucket& b) { return b.is_closed; });
  std::sort(buckets.begin(), open, [](const Bucket& a, const Bucket& b) { return a.end < b.end; });
  return lists_of(buckets);
}

}  // namespace lockstep::plan
