// The backward of the groups: prefetch, reshard and reduction.
#include <algorithm>
#include <utility>

#include "engine/core/checked.hpp"
#include "harness/plan/shard_plan.hpp"

namespace lockstep::plan {

void ShardPlan::backward_reaches(ModuleId module) {
  const std::size_t at = number(module);
  if (groups_[at].context < 0) return;
  // By another of its modules, or another call of a flat unit.
  if (groups_[at].in_backward && (groups_[at].modules.size() > 1 || groups_[at].choices.flat)) return;
  groups_[at].in_backward = true;
  all_gather(at);
  Group& group = groups_[at];
  const bool before = !group.choices.flat || group.choices.flat->backward_prefetch == BackwardPrefetch::before;
  if (!group.backward_prefetch.empty()) {
    for (const std::size_t next : group.backward_prefetch) all_gather(next, true);
  } else if (before) {
    prefetch_previous(at);
  }
}

void ShardPlan::prefetch_previous(std::size_t number) {
  Group& group = groups_[number];
  if (group.positions.empty()) return;
  const std::size_t position = group.positions.back();
  group.positions.pop_back();
  if (position == 0) return;
  const std::size_t next = context_of(number).forward_order[position - 1];
  const bool is_passed = groups_[next].choices.flat && groups_[next].positions.empty();
  if (!is_passed) all_gather(next, true);
}

void ShardPlan::backward_leaves(ModuleId module) {
  Group& group = groups_[number(module)];
  if (!group.in_backward || (group.choices.flat && awaits_gradients(group))) return;
  leave_backward(group, false);
}

// Whether this backward will reach a parameter (again).
bool ShardPlan::awaits_gradients(const Group& group) const {
  return std::any_of(group.parameters.begin(), group.parameters.end(),
                     [&](TensorId id) { return awaited_.contains(id) && !group.fresh.contains(id); });
}

bool ShardPlan::reshards_after_backward(const Group& group) const {
  const bool stays = !group.sync && group.choices.flat && group.choices.flat->stays_unsharded_without_sync;
  return group.reshard_after_backward && !stays;
}

void ShardPlan::leave_backward(Group& group, bool at_end) {
  group.in_backward = false;
  if (group.state == State::unsharded && reshards_after_backward(group)) group.state = State::sharded;
  const bool after = group.choices.flat && group.choices.flat->backward_prefetch == BackwardPrefetch::after;
  if (after && !at_end && group.backward_prefetch.empty()) prefetch_previous(number(group.modules.front()));
  reduce(group, false);
}

void ShardPlan::gradient(TensorId parameter) { groups_[owner_of_.at(parameter)].fresh.insert(parameter); }

void ShardPlan::note_frozen(TensorId parameter, bool is_frozen) {
  std::set<TensorId>& frozen = groups_[owner_of_.at(parameter)].frozen;
  if (is_frozen)
    frozen.insert(parameter);
  else
    frozen.erase(parameter);
}

// A parameter that was frozen after its forward gets none.
std::set<TensorId> ShardPlan::take_fresh(Group& group) {
  std::set<TensorId> taken = std::exchange(group.fresh, {});
  std::erase_if(taken, [&group](TensorId id) { return group.frozen.contains(id); });
  return taken;
}

void ShardPlan::reduce_over_tensor_parallelism(const Group& group, const std::set<TensorId>& scattered) {
  for (const TensorId id : group.parameters)
    if (const auto at = group.choices.partial_gradients.find(id);
        at != group.choices.partial_gradients.end() && scattered.contains(id))
      issue(group, "all_reduce", at->second,
            bytes_of(facts_.tensor(id).sizes, group.choices.flat ? compute_type(id) : reduced_type(group, id)),
            "tensor_parallel");
}

// Reduces the gradients of a group. Unless `at_end`, a parameter that this backward will reach again waits.
void ShardPlan::reduce(Group& group, bool at_end) {
  if (!group.sync) {
    group.unreduced.merge(take_fresh(group));
    return;
  }
  if (group.choices.flat) return reduce_unit(group, at_end);
  std::set<TensorId> scattered, summed;  // to reduce-scatter, to all-reduce
  for (const TensorId id : group.parameters) {
    const bool is_fresh = group.fresh.contains(id);
    if (!at_end && !is_fresh && awaited_.contains(id)) continue;
    if (is_fresh || group.unreduced.contains(id)) scattered.insert(id);
    if (group.choices.replicate && (scattered.contains(id) || group.partial.contains(id))) summed.insert(id);
  }
  group.fresh.clear();
  for (const TensorId id : scattered) group.unreduced.erase(id);
  reduce_over_tensor_parallelism(group, scattered);
  if (!scattered.empty()) issue(group, "reduce_scatter", group.choices.shard, padded_bytes(group, scattered, true));
  if (!group.choices.replicate) reduced_.insert(reduced_.end(), scattered.begin(), scattered.end());
  if (!group.all_reduce) {
    group.partial.merge(summed);
    return;
  }
  if (summed.empty()) return;
  issue(group, "all_reduce", *group.choices.replicate, padded_bytes(group, summed, true) / group.choices.shard.size);
  for (const TensorId id : summed) group.partial.erase(id);
  reduced_.insert(reduced_.end(), summed.begin(), summed.end());
}

// Frozen parameters and those without a gradient take part with zeros.
void ShardPlan::reduce_unit(Group& group, bool at_end) {
  if (!at_end && awaits_gradients(group)) return;
  group.unreduced.merge(take_fresh(group));
  std::set<TensorId> gradients = group.unreduced;
  std::erase_if(gradients, [&group](TensorId id) { return group.frozen.contains(id); });
  if (gradients.empty()) return;
  group.unreduced.clear();
  reduce_over_tensor_parallelism(group, gradients);
  const DType type = reduced_type(group, group.parameters.front());
  if (group.choices.flat->shards)
    issue(group, "reduce_scatter", group.choices.shard, bytes_of({group.flat.padded()}, type));
  if (group.choices.replicate)
    issue(group, "all_reduce", *group.choices.replicate, bytes_of({group.flat.chunk()}, type));
  reduced_.insert(reduced_.end(), group.parameters.begin(), group.parameters.end());
}

// Reduces the groups that backward did not leave (inputs without gradient), and gradients that waited.
void ShardPlan::end_backward(int root) {
  Context& context = contexts_[static_cast<std::size_t>(root)];
  const bool last = groups_[context.root].last_backward;
  for (const std::size_t at : context.groups) {
    Group& group = groups_[at];
    if (group.in_backward) leave_backward(group, true);
    if (group.state == State::unsharded && reshards_after_backward(group)) group.state = State::sharded;
    reduce(group, true);
    if (group.choices.flat && group.state == State::unsharded) group.shows_shards = true;
    group.entered.clear();
    group.left.clear();
  }
  if (!last) return;
  for (const std::size_t at : context.groups) {
    Group& group = groups_[at];
    // An unused prefetch, or post-forward shards that no backward used.
    if (group.state == State::prefetched || group.state == State::sharded_post_forward) group.state = State::sharded;
    group.positions.clear();
  }
  context.forward_order.clear();
}

}  // namespace lockstep::plan
