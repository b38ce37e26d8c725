#include "harness/plan/replicate_plan.hpp"

#include <utility>

#include "engine/core/checked.hpp"

namespace lockstep::plan {

namespace {
constexpr std::int64_t number_bytes = 8;  // per count or index that ranks exchange
constexpr std::int64_t flag_bytes = 4;    // per parameter in the map of used parameters
}  // namespace

ReplicatePlan::ReplicatePlan(ReplicateChoices choices, std::function<CoveredTensors()> find_covered, const Facts& facts,
                             const std::set<TensorId>& awaited, IssueCollective issue)
    : choices_(std::move(choices)),
      find_covered_(std::move(find_covered)),
      facts_(facts),
      awaited_(awaited),
      issue_(std::move(issue)) {}

void ReplicatePlan::issue_on_all_axes(const char* family, const char* operation, std::int64_t bytes, bool least) {
  int size = 1;
  for (const Axis& axis : choices_.axes) size *= axis.size;
  Collective collective;
  collective.family = family;
  collective.operation = operation;
  collective.axis = choices_.axes.size() == 1 ? choices_.axes[0].name : "";
  collective.group_size = size;
  collective.owner = choices_.owner;
  collective.bytes = bytes;
  collective.bytes_are_least = least;
  issue_(std::move(collective));
}

// One coalesced broadcast. With several dtypes, it may contain padding between them.
void ReplicatePlan::broadcast_values(const std::vector<TensorId>& tensors, const char* family) {
  std::int64_t bytes = 0;
  bool one_type = true;
  for (const TensorId id : tensors) {
    bytes = checked_add(bytes, bytes_of(facts_.tensor(id).sizes, facts_.tensor(id).dtype), "plan");
    one_type = one_type && facts_.tensor(id).dtype == facts_.tensor(tensors[0]).dtype;
  }
  issue_on_all_axes(family, "broadcast", bytes, !one_type);
}

bool ReplicatePlan::owns(TensorId parameter) const { return index_of_.contains(parameter); }

void ReplicatePlan::synchronize_parameters() {
  started_ = true;
  std::vector<TensorId> parameters;
  for (const auto& [slot, id] : find_covered_().parameters) parameters.push_back(id);
  std::int64_t num_ranks = 1;
  for (const Axis& axis : choices_.axes) num_ranks = checked_multiply(num_ranks, axis.size, "plan");
  issue_on_all_axes("start_up", "all_gather", checked_multiply(number_bytes, num_ranks, "plan"), false);
  if (!parameters.empty()) {
    issue_on_all_axes("start_up", "broadcast", 0, true);  // shapes and types
    broadcast_values(parameters, "start_up");
  }
  members_ = find_trained();
  reset_buckets();
}

std::vector<ReplicatePlan::Member> ReplicatePlan::find_trained() const {
  std::vector<Member> now;
  for (const auto& [slot, id] : find_covered_().parameters)
    if (facts_.tensor(id).requires_grad) now.push_back({slot, id, facts_.tensor(id).dtype, facts_.tensor(id).device});
  return now;
}

std::vector<BucketMember> ReplicatePlan::bucket_members() const {
  std::vector<BucketMember> all;
  for (const Member& member : members_)
    all.push_back({bytes_of(facts_.tensor(member.id).sizes, member.dtype), member.dtype});
  return all;
}

void ReplicatePlan::reset_buckets() {
  buckets_ = choices_.find_unused_parameters ? registered_buckets(bucket_members(), choices_.bucket_cap_bytes)
                                             : first_buckets(bucket_members());
  order_known_ = choices_.find_unused_parameters;
  gradient_order_.clear();
  index_of_.clear();
  for (std::size_t i = 0; i < members_.size(); ++i) index_of_.emplace(members_[i].id, i);
}

// Resets the buckets after parameters were frozen, unfrozen, replaced in their slots, cast or moved. Rebuilds them once
// after the first backward that gave the gradient order.
void ReplicatePlan::update_buckets(bool recording) {
  if (!recording) return;
  if (std::vector<Member> now = find_trained(); now != members_) {
    members_ = std::move(now);
    reset_buckets();
  }
  forward_sync_ = sync_;
  if (order_known_ || members_.empty() || gradient_order_.size() != members_.size()) return;
  buckets_ = rebuilt_buckets(bucket_members(), gradient_order_, choices_.bucket_cap_bytes);
  order_known_ = true;
  issue_on_all_axes("start_up", "broadcast",
                    checked_multiply(static_cast<std::int64_t>(members_.size()), number_bytes, "plan"), true);
  issue_on_all_axes("start_up", "broadcast",
                    checked_multiply(static_cast<std::int64_t>(buckets_.size()), number_bytes, "plan"), true);
}

void ReplicatePlan::enter(bool recording, bool in_backward) {
  if (in_backward && reached_) return;  // the backward around it fills the buckets
  if (!started_) synchronize_parameters();
  update_buckets(recording);
  if (!choices_.broadcast_buffers) return;
  const std::vector<TensorId> buffers = find_covered_().buffers;
  if (!buffers.empty()) broadcast_values(buffers, "data_parallel");
}

// ---- backward ----
void ReplicatePlan::backward_reaches() {
  if (reached_ || members_.empty()) return;
  reached_ = true;
  reduces_ = forward_sync_;
  if (!reduces_) return;
  if (!order_known_) gradient_order_.clear();
  settled_.clear();
  next_bucket_ = 0;
  for (std::size_t i = 0; i < members_.size(); ++i)
    if (!awaited_.contains(members_[i].id) && (choices_.find_unused_parameters || unreduced_.contains(members_[i].id)))
      settle_without_gradient(i);
  reduce_ready();
}

// A gradient of an earlier backward has a place in the order, too.
void ReplicatePlan::settle_without_gradient(std::size_t member) {
  if (!settled_.insert(member).second || order_known_) return;
  if (unreduced_.contains(members_[member].id)) gradient_order_.push_back(static_cast<int>(member));
}

void ReplicatePlan::gradient(TensorId parameter) {
  backward_reaches();
  const std::size_t at = index_of_.at(parameter);
  if (!reduces_) {
    unreduced_.insert(parameter);
    return;
  }
  if (settled_.insert(at).second && !order_known_) gradient_order_.push_back(static_cast<int>(at));
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
      Collective collective;
      collective.family = "data_parallel";
      collective.operation = "all_reduce";
      collective.axis = axis->name;
      collective.group_size = axis->size;
      collective.owner = choices_.owner;
      collective.bytes = bytes;
      issue_(std::move(collective));
    }
  }
}

void ReplicatePlan::end_backward() {
  if (!std::exchange(reached_, false) || !reduces_) return;
  for (std::size_t i = 0; i < members_.size(); ++i) settle_without_gradient(i);
  reduce_ready();
  if (choices_.find_unused_parameters)
    issue_on_all_axes("data_parallel", "all_reduce",
                      checked_multiply(static_cast<std::int64_t>(members_.size()), flag_bytes, "plan"), false);
  for (const Member& member : members_) unreduced_.erase(member.id);
}

}  // namespace lockstep::plan
