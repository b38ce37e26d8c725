#include "harness/plan/replicate_plan.hpp"

#include <algorithm>
#include <utility>

#include "engine/core/checked.hpp"

namespace lockstep::plan {

namespace {
constexpr std::int64_t number_bytes = 8;  // of the counts and indices that ranks agree on
constexpr std::int64_t flag_bytes = 4;    // of the map of used parameters
}  // namespace

ReplicatePlan::ReplicatePlan(ReplicateChoices choices, Cover cover, const Facts& facts,
                             const std::set<TensorId>& awaited, Issue issue)
    : choices_(std::move(choices)),
      cover_(std::move(cover)),
      facts_(facts),
      awaited_(awaited),
      issue_(std::move(issue)) {}

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
    bytes = checked_add(bytes, bytes_of(facts_.tensor(id).sizes, facts_.tensor(id).dtype), "plan");
    one_type = one_type && facts_.tensor(id).dtype == facts_.tensor(tensors[0]).dtype;
  }
  issue_on_whole(family, "broadcast", bytes, !one_type);
}

bool ReplicatePlan::owns(TensorId parameter) const { return place_of_.contains(parameter); }

void ReplicatePlan::start() {
  started_ = true;
  std::vector<TensorId> parameters;
  for (const auto& [slot, id] : cover_().parameters) parameters.push_back(id);
  std::int64_t num_ranks = 1;
  for (const Axis& axis : choices_.axes) num_ranks = checked_multiply(num_ranks, axis.size, "plan");
  issue_on_whole("start_up", "all_gather", checked_multiply(number_bytes, num_ranks, "plan"), false);
  if (!parameters.empty()) {
    issue_on_whole("start_up", "broadcast", 0, true);  // shapes and types
    broadcast_values(parameters, "start_up");
  }
  members_ = trained_now();
  plan_first();
}

std::vector<ReplicatePlan::Member> ReplicatePlan::trained_now() const {
  std::vector<Member> now;
  for (const auto& [slot, id] : cover_().parameters)
    if (facts_.tensor(id).requires_grad) now.push_back({slot, id, facts_.tensor(id).dtype});
  return now;
}

std::vector<BucketMember> ReplicatePlan::bucket_members() const {
  std::vector<BucketMember> all;
  for (const Member& member : members_)
    all.push_back({bytes_of(facts_.tensor(member.id).sizes, member.dtype), member.dtype});
  return all;
}

void ReplicatePlan::plan_first() {
  buckets_ = choices_.find_unused_parameters ? registered_buckets(bucket_members(), choices_.bucket_cap_bytes)
                                             : first_buckets(bucket_members());
  order_known_ = choices_.find_unused_parameters;
  ready_.clear();
  place_of_.clear();
  for (std::size_t i = 0; i < members_.size(); ++i) place_of_.emplace(members_[i].id, i);
}

// Parameters may have been frozen or thawed since, exchanged in their slots or cast; then the buckets begin anew.
void ReplicatePlan::follow_changes(bool recording) {
  std::vector<Member> now = trained_now();
  const bool others = !std::equal(now.begin(), now.end(), members_.begin(), members_.end(),
                                  [](const Member& one, const Member& other) { return one.slot == other.slot; });
  if (others) {
    std::set<Slot> kept;
    for (const Member& member : now)
      if (kept_.contains(member.slot)) kept.insert(member.slot);
    kept_ = std::move(kept);
  }
  if (others || (recording && now != members_)) {
    members_ = std::move(now);
    plan_first();
  }
  if (!recording) return;
  forward_sync_ = sync_;
  if (order_known_ || members_.empty() || ready_.size() != members_.size()) return;
  buckets_ = rebuilt_buckets(bucket_members(), ready_, choices_.bucket_cap_bytes);
  order_known_ = true;
  issue_on_whole("start_up", "broadcast",
                 checked_multiply(static_cast<std::int64_t>(members_.size()), number_bytes, "plan"), true);
  issue_on_whole("start_up", "broadcast",
                 checked_multiply(static_cast<std::int64_t>(buckets_.size()), number_bytes, "plan"), true);
}

void ReplicatePlan::enter(bool recording) {
  if (!started_) start();
  follow_changes(recording);
  if (!choices_.broadcast_buffers) return;
  const std::vector<TensorId> buffers = cover_().buffers;
  if (!buffers.empty()) broadcast_values(buffers, "data_parallel");
}

// ---- backward ----
void ReplicatePlan::backward_reaches() {
  if (reached_ || members_.empty()) return;
  reached_ = true;
  collects_ = forward_sync_;
  if (!collects_) return;
  if (!order_known_) ready_.clear();
  settled_.clear();
  next_bucket_ = 0;
  for (std::size_t i = 0; i < members_.size(); ++i)
    if (!awaited_.contains(members_[i].id) && (choices_.find_unused_parameters || kept_.contains(members_[i].slot)))
      settled_.insert(i);
  reduce_ready();
}

void ReplicatePlan::gradient(TensorId parameter) {
  backward_reaches();
  const std::size_t at = place_of_.at(parameter);
  if (!collects_) {
    kept_.insert(members_[at].slot);
    return;
  }
  if (!order_known_) ready_.push_back(static_cast<int>(at));
  settled_.insert(at);
  reduce_ready();
}

void ReplicatePlan::reduce_ready() {
  for (; next_bucket_ < buckets_.size(); ++next_bucket_) {
    std::int64_t bytes = 0;
    for (const int index : buckets_[next_bucket_]) {
      const Member& member = members_[static_cast<std::size_t>(index)];
      if (!settled_.contains(static_cast<std::size_t>(index))) return;
      bytes = checked_add(bytes, bytes_of(facts_.tensor(member.id).sizes, member.dtype), "plan");
    }
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
}

void ReplicatePlan::end_backward() {
  if (!std::exchange(reached_, false) || !collects_) return;
  for (std::size_t i = 0; i < members_.size(); ++i) settled_.insert(i);
  reduce_ready();
  if (choices_.find_unused_parameters)
    issue_on_whole("data_parallel", "all_reduce",
                   checked_multiply(static_cast<std::int64_t>(members_.size()), flag_bytes, "plan"), false);
  kept_.clear();
}

}  // namespace lockstep::plan
