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

// The tape adds the gradients of the uses of a parameter, and reduces a partial sum before it adds a full gradient.
void ShardPlan::add_to_gradient(TensorId parameter, const std::optional<Axis>& partial_over) {
  const auto [sum, is_first] = groups_[owner_of_.at(parameter)].arriving.try_emplace(parameter, partial_over);
  if (is_first || sum->second.has_value() == partial_over.has_value()) return;
  reduce_partial("", parameter, compute_type(parameter), sum->second ? *sum->second : *partial_over);
  sum->second.reset();
}

void ShardPlan::gradient(TensorId parameter) {
  Group& group = groups_[owner_of_.at(parameter)];
  std::optional<Axis>& partial_over = group.fresh[parameter];
  if (const auto at = group.choices.partial_gradients.find(parameter); at != group.choices.partial_gradients.end())
    partial_over = at->second;
  if (const auto sum = group.arriving.extract(parameter); sum && sum.mapped()) partial_over = sum.mapped();
}

void ShardPlan::note_frozen(TensorId parameter, bool is_frozen) {
  std::set<TensorId>& frozen = groups_[owner_of_.at(parameter)].frozen;
  if (is_frozen)
    frozen.insert(parameter);
  else
    frozen.erase(parameter);
}

// Adds the gradients of this backward to those that wait, and returns them. If only one of the two is a partial sum, it
// is reduced first. A parameter that was frozen after its forward gets none.
ShardPlan::FullGradients ShardPlan::take_fresh(Group& group) {
  FullGradients taken = std::exchange(group.fresh, {});
  std::erase_if(taken, [&group](const auto& gradient) { return group.frozen.contains(gradient.first); });
  for (const TensorId id : group.parameters) {
    const auto fresh = taken.find(id);
    if (fresh == taken.end()) continue;
    const auto [waiting, is_first] = group.unreduced.insert(*fresh);
    if (is_first || waiting->second.has_value() == fresh->second.has_value()) continue;
    reduce_partial(group.choices.owner, id, gradient_type(group, id),
                   waiting->second ? *waiting->second : *fresh->second);
    waiting->second.reset();
  }
  return taken;
}

void ShardPlan::reduce_partial(const std::string& owner, TensorId parameter, DType type, const Axis& axis) {
  issue(owner, "all_reduce", axis, bytes_of(facts_.tensor(parameter).sizes, type), "tensor_parallel");
}

// Of one that waits to be reduced.
DType ShardPlan::gradient_type(const Group& group, TensorId parameter) const {
  return group.choices.flat ? compute_type(parameter) : reduced_type(group, parameter);
}

// Reduces the gradients of a group. Unless `at_end`, a parameter that this backward will reach again waits.
void ShardPlan::reduce(Group& group, bool at_end) {
  if (group.sync && group.choices.flat) return reduce_unit(group, at_end);
  const FullGradients fresh = take_fresh(group);
  if (!group.sync) return;
  std::set<TensorId> scattered, summed;  // to reduce-scatter, to all-reduce
  for (const TensorId id : group.parameters) {
    if (!at_end && !fresh.contains(id) && awaited_.contains(id)) continue;
    if (group.unreduced.contains(id)) scattered.insert(id);
    if (group.choices.replicate && (scattered.contains(id) || group.partial.contains(id))) summed.insert(id);
  }
  for (const TensorId id : group.parameters) {
    if (!scattered.contains(id)) continue;
    if (const auto full = group.unreduced.extract(id); full.mapped())
      reduce_partial(group.choices.owner, id, gradient_type(group, id), *full.mapped());
  }
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
  take_fresh(group);
  FullGradients gradients = group.unreduced;
  std::erase_if(gradients, [&group](const auto& gradient) { return group.frozen.contains(gradient.first); });
  if (gradients.empty()) return;
  group.unreduced.clear();
  for (const TensorId id : group.parameters)
    if (const auto full = gradients.find(id); full != gradients.end() && full->second)
      reduce_partial(group.choices.owner, id, gradient_type(group, id), *full->second);
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
    group.arriving.clear();
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
