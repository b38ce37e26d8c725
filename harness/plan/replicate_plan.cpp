#include "harness/plan/replicate_plan.hpp"

#include <algorithm>
#include <utility>

namespace lockstep::plan {

namespace {
constexpr std::int64_t number_bytes = 8;  // of the counts and indices that ranks agree on
constexpr std::int64_t flag_bytes = 4;    // of the map of used parameters
}  // namespace

ReplicatePlan::ReplicatePlan(ReplicateChoices choices, Cover cover, const Facts& facts, Issue issue)
    : choices_(std::move(choices)), cover_(std::move(cover)), facts_(facts), issue_(std::move(issue)) {}

void ReplicatePlan::issue_on_whole(const char* family, const char* operation, std::int64_t bytes, bool least) {
  int size = 1;
  for (const Axis& axis : choices_.axes) size *= axis.size;
  Collective one;
  one.family = family;
  one.operation = operation;
  one.axis = choices_.axes.size() == 1 ? choices_.axes[0].name : "";
  one.group_size = size;
  one.owner = choices_.owner;
  one.bytes = bytes;
  one.bytes_are_least = least;
  issue_(std::move(one));
}

// One coalesced broadcast; of several types it may hold gaps between them.
void ReplicatePlan::broadcast_values(const std::vector<TensorId>& tensors, const char* family) {
  std::int64_t bytes = 0;
  bool one_type = true;
  for (const TensorId id : tensors) {
    bytes += bytes_of(facts_.tensor(id).sizes, facts_.tensor(id).dtype);
    one_type = one_type && facts_.tensor(id).dtype == facts_.tensor(tensors[0]).dtype;
  }
  issue_on_whole(family, "broadcast", bytes, !one_type);
}

bool ReplicatePlan::owns(TensorId parameter) const {
  return std::any_of(members_.begin(), members_.end(), [&](const Member& member) { return member.id == parameter; });
}

void ReplicatePlan::start() {
  started_ = true;
  const std::vector<TensorId> parameters = cover_().parameters;
  std::int64_t num_ranks = 1;
  for (const Axis& axis : choices_.axes) num_ranks *= axis.size;
  issue_on_whole("start_up", "all_gather", number_bytes * num_ranks, false);
  if (!parameters.empty()) {
    issue_on_whole("start_up", "broadcast", 0, true);  // shapes and types
    broadcast_values(parameters, "start_up");
  }
  for (std::size_t place = 0; place < parameters.size(); ++place) {
    const TensorFacts& tensor = facts_.tensor(parameters[place]);
    if (!tensor.requires_grad) continue;
    places_.push_back(place);
    members_.push_back({parameters[place], tensor.dtype});
  }
  plan_first();
}

std::vector<layout::BucketParameter> ReplicatePlan::bucket_parameters() const {
  std::vector<layout::BucketParameter> all;
  for (const Member& member : members_)
    all.push_back({bytes_of(facts_.tensor(member.id).sizes, member.dtype), static_cast<int>(member.dtype)});
  return all;
}

void ReplicatePlan::plan_first() {
  const layout::BucketLimits limits{choices_.bucket_cap_bytes};
  buckets_ = choices_.find_unused_parameters ? layout::plan_static_buckets(bucket_parameters(), limits)
                                             : layout::plan_first_buckets(bucket_parameters());
  order_known_ = choices_.find_unused_parameters;
  ready_.clear();
}

// Parameters may have been exchanged in their slots or cast since; then all begins anew.
void ReplicatePlan::prepare() {
  forward_sync_ = sync_;
  const std::vector<TensorId> covered = cover_().parameters;
  std::vector<Member> now;
  for (const std::size_t place : places_)
    if (place < covered.size()) now.push_back({covered[place], facts_.tensor(covered[place]).dtype});
  if (now != members_) {
    members_ = std::move(now);
    plan_first();
  }
  if (order_known_ || members_.empty() || ready_.size() != members_.size()) return;
  buckets_ = layout::plan_ready_buckets(bucket_parameters(), ready_, layout::BucketLimits{choices_.bucket_cap_bytes});
  order_known_ = true;
  issue_on_whole("start_up", "broadcast", static_cast<std::int64_t>(members_.size()) * number_bytes, true);
  issue_on_whole("start_up", "broadcast", static_cast<std::int64_t>(buckets_.size()) * number_bytes, true);
}

void ReplicatePlan::enter(bool recording) {
  if (!started_) start();
  if (recording) prepare();
  if (!choices_.broadcast_buffers) return;
  const std::vector<TensorId> buffers = cover_().buffers;
  if (!buffers.empty()) broadcast_values(buffers, "data_parallel");
}

void ReplicatePlan::backward_reaches() {
  if (reached_ || members_.empty()) return;
  reached_ = true;
  collects_ = forward_sync_;
  if (!order_known_ && collects_) ready_.clear();
}

void ReplicatePlan::gradient(TensorId parameter) {
  backward_reaches();
  if (!collects_ || order_known_) return;
  for (std::size_t i = 0; i < members_.size(); ++i)
    if (members_[i].id == parameter) ready_.push_back(static_cast<int>(i));
}

void ReplicatePlan::end_backward() {
  if (!std::exchange(reached_, false) || !collects_) return;
  const std::vector<layout::BucketParameter> all = bucket_parameters();
  for (const std::vector<int>& bucket : buckets_) {
    std::int64_t bytes = 0;
    for (const int index : bucket) bytes += all[static_cast<std::size_t>(index)].bytes;
    for (auto axis = choices_.axes.rbegin(); axis != choices_.axes.rend(); ++axis) {
      Collective one;
      one.family = "data_parallel";
      one.operation = "all_reduce";
      one.axis = axis->name;
      one.group_size = axis->size;
      one.owner = choices_.owner;
      one.bytes = bytes;
      issue_(std::move(one));
    }
  }
  if (choices_.find_unused_parameters)
    issue_on_whole("data_parallel", "all_reduce", static_cast<std::int64_t>(members_.size()) * flag_bytes, false);
}

}  // namespace lockstep::plan
