#include "harness/plan/shard_plan.hpp"

#include <algorithm>

#include "engine/core/checked.hpp"
#include "engine/core/error.hpp"

namespace lockstep::plan {

// ---- groups and their options ----
void ShardPlan::add_group(const std::vector<ModuleId>& modules, const std::vector<TensorId>& parameters,
                          ShardChoices choices) {
  const std::size_t number = groups_.size();
  Group& added = groups_.emplace_back();
  added.modules = modules;
  added.parameters = parameters;
  added.choices = std::move(choices);
  for (const ModuleId module : modules) group_of_[module] = number;
  for (const TensorId parameter : parameters) owner_of_[parameter] = number;
}

void ShardPlan::change(ModuleId module, const FlagChange& flags) {
  if (!has(module)) return;
  Group& group = groups_[number(module)];
  if (flags.requires_gradient_sync) group.sync = group.all_reduce = *flags.requires_gradient_sync;
  if (flags.requires_all_reduce) group.all_reduce = *flags.requires_all_reduce;
  if (flags.is_last_backward) group.last_backward = *flags.is_last_backward;
  if (flags.reshard_after_backward) group.reshard_after_backward = *flags.reshard_after_backward;
  if (flags.reshard_after_forward) group.choices.reshard_after_forward = *flags.reshard_after_forward;
}

void ShardPlan::set_forward_prefetch(ModuleId module, const std::vector<ModuleId>& next) {
  std::vector<std::size_t>& list = groups_[number(module)].forward_prefetch;
  list.clear();
  for (const ModuleId id : next) list.push_back(number(id));
}

void ShardPlan::set_backward_prefetch(ModuleId module, const std::vector<ModuleId>& next) {
  auto& list = groups_[number(module)].backward_prefetch;
  list.emplace();
  for (const ModuleId id : next) list->push_back(number(id));
}

// ---- all-gathers ----
void ShardPlan::issue(const Group& group, const char* operation, const Axis& axis, std::int64_t bytes,
                      const char* family) {
  Collective collective;
  collective.family = family;
  collective.operation = operation;
  collective.axis = axis.name;
  collective.group_size = axis.size;
  collective.owner = group.choices.owner;
  collective.bytes = bytes;
  issue_(std::move(collective));
}

int ShardPlan::dim_of(TensorId parameter) const {
  const std::map<TensorId, int>& dims = groups_[owner_of_.at(parameter)].choices.dims;
  const auto other = dims.find(parameter);
  return other == dims.end() ? 0 : other->second;
}

DType ShardPlan::compute_type(TensorId parameter) const {
  const ShardChoices& choices = groups_[owner_of_.at(parameter)].choices;
  const DType stored = facts_.tensor(parameter).dtype;
  return choices.param && is_floating(stored) ? *choices.param : stored;
}

Dims ShardPlan::padded_shard_sizes(TensorId parameter) const {
  const std::int64_t num_shards = groups_[owner_of_.at(parameter)].choices.shard.size;
  Dims sizes = facts_.tensor(parameter).sizes;
  const int dim = dim_of(parameter);
  sizes[dim] = (sizes[dim] + num_shards - 1) / num_shards;
  return sizes;
}

void ShardPlan::set_gather_inputs(TensorId parameter, std::vector<GatherInput> sent) {
  groups_[owner_of_.at(parameter)].sent[parameter] = std::move(sent);
}

// The bytes of full parameters or gradients, each padded to shards of equal size; `reduced`: in the reduce dtype.
std::int64_t ShardPlan::padded_bytes(const Group& group, const std::set<TensorId>& tensors, bool reduced) const {
  std::int64_t bytes = 0;
  for (const TensorId id : tensors) {
    const DType type = reduced ? reduced_type(group, id) : compute_type(id);
    bytes = checked_add(bytes, bytes_of(padded_shard_sizes(id), type), "plan");
  }
  return checked_multiply(bytes, group.choices.shard.size, "plan");
}

DType ShardPlan::reduced_type(const Group& group, TensorId parameter) const {
  return group.choices.reduce ? *group.choices.reduce : compute_type(parameter);
}

// With several dtypes, each tensor starts at a multiple of eight bytes.
std::int64_t ShardPlan::gathered_bytes(const Group& group) const {
  constexpr std::int64_t alignment = 8;
  std::vector<GatherInput> all;
  for (const TensorId id : group.parameters) {
    const auto sent = group.sent.find(id);
    if (sent == group.sent.end())
      all.push_back({bytes_of(padded_shard_sizes(id), compute_type(id)), compute_type(id)});
    else
      all.insert(all.end(), sent->second.begin(), sent->second.end());
  }
  const bool one_type = group.sent.empty() || std::all_of(all.begin(), all.end(), [&](const GatherInput& sent) {
                          return sent.dtype == all.front().dtype;
                        });
  std::int64_t bytes = 0;
  for (const GatherInput& sent : all)
    bytes = checked_add(bytes, one_type ? sent.bytes : (sent.bytes + alignment - 1) / alignment * alignment, "plan");
  return checked_multiply(bytes, group.choices.shard.size, "plan");
}

bool ShardPlan::is_stale(const Group& group) const {
  return std::any_of(group.parameters.begin(), group.parameters.end(), [&](TensorId id) {
    const auto at = group.gathered.find(id);
    return at == group.gathered.end() || at->second != facts_.tensor(id).version;
  });
}

void ShardPlan::all_gather(std::size_t number, bool prefetch) {
  Group& group = groups_[number];
  if (group.parameters.empty()) return;
  const bool stale = is_stale(group);
  if (group.state == State::unsharded && !stale) return;
  if (group.state == State::prefetched) {
    if (!prefetch) group.state = State::unsharded;
    return;
  }
  Axis axis = group.choices.shard;
  std::int64_t bytes = 0;
  if (group.state == State::sharded_post_forward && !stale) {
    axis.size = group.choices.reshard_after_forward.ranks;
    bytes = padded_bytes(group, {group.parameters.begin(), group.parameters.end()}, false);
  } else {
    bytes = gathered_bytes(group);
  }
  issue(group, "all_gather", axis, bytes);
  for (const TensorId id : group.parameters) group.gathered[id] = facts_.tensor(id).version;
  group.state = prefetch ? State::prefetched : State::unsharded;
}

void ShardPlan::reshard_after_forward(Group& group) {
  const Reshard& how = group.choices.reshard_after_forward;
  const bool among_one_rank = how.kind == Reshard::Kind::among && how.ranks == 1;
  if (how.kind == Reshard::Kind::no || among_one_rank || group.state != State::unsharded) return;
  const bool among_few = how.kind == Reshard::Kind::among && how.ranks < group.choices.shard.size;
  group.state = among_few ? State::sharded_post_forward : State::sharded;
}

void ShardPlan::unshard(ModuleId module, bool async) {
  if (has(module)) all_gather(number(module), async);
}

void ShardPlan::reshard(ModuleId module) {
  if (has(module)) groups_[number(module)].state = State::sharded;
}

void ShardPlan::wait_for_unshard(ModuleId module) {
  if (!has(module)) return;
  Group& group = groups_[number(module)];
  if (group.state == State::prefetched) group.state = State::unsharded;
}

// ---- queries about a parameter ----
ShardPlan::SlotTensor ShardPlan::slot_tensor(TensorId parameter) const {
  const State state = groups_[owner_of_.at(parameter)].state;
  if (state == State::unsharded) return SlotTensor::full;
  return state == State::sharded_post_forward ? SlotTensor::post_forward_shard : SlotTensor::local_shard;
}

int ShardPlan::num_post_forward_ranks(TensorId parameter) const {
  return groups_[owner_of_.at(parameter)].choices.reshard_after_forward.ranks;
}

bool ShardPlan::moves_inputs(ModuleId module) const {
  const std::size_t at = number(module);
  if (groups_[at].context < 0) return false;
  return groups_[at].is_root || contexts_[static_cast<std::size_t>(groups_[at].context)].outermost == at;
}

void ShardPlan::swap(ShardPlan& other) {
  groups_.swap(other.groups_);
  contexts_.swap(other.contexts_);
  group_of_.swap(other.group_of_);
  owner_of_.swap(other.owner_of_);
  reduced_.swap(other.reduced_);
}

// ---- forward ----
ShardPlan::Context& ShardPlan::context_of(std::size_t group) {
  return contexts_[static_cast<std::size_t>(groups_[group].context)];
}

// The group whose forward runs first is the root of all groups below it.
void ShardPlan::make_context(std::size_t root) {
  const int index = static_cast<int>(contexts_.size());
  Context& context = contexts_.emplace_back();
  context.root = root;
  groups_[root].is_root = true;
  groups_[root].choices.reshard_after_forward = {Reshard::Kind::no};  // until a flag changes it: backward follows
  for (const ModuleId top : groups_[root].modules)
    for (const ModuleId module : facts_.pre_order(top)) {
      if (!has(module) || groups_[number(module)].context == index) continue;
      groups_[number(module)].context = index;
      context.groups.push_back(number(module));
    }
}

// Resets the forward state for a call from outside of all groups. An earlier outermost call that is still running has
// failed.
void ShardPlan::begin_outermost(std::size_t group) {
  Context& context = context_of(group);
  const bool is_new = !context.outermost || group == context.root || group == *context.outermost;
  if (!is_new) return;
  for (const std::size_t at : context.groups) {
    groups_[at].entered.clear();
    groups_[at].left.clear();
    if (!context.outermost) continue;
    groups_[at].in_backward = false;
    groups_[at].fresh.clear();
    groups_[at].positions.clear();
  }
  if (context.outermost) context.forward_order.clear();
  context.outermost = group;
}

bool ShardPlan::enter(ModuleId module, bool recomputing) {
  const std::size_t at = number(module);
  if (recomputing && groups_[at].in_backward) return false;
  if (groups_[at].context < 0) make_context(at);
  // A recomputation may stop before it leaves the module. So a call of the only module of a group is always a new one.
  const bool alone = groups_[at].modules.size() == 1;
  if (!recomputing && (alone || groups_[at].entered.empty())) begin_outermost(at);
  const bool first = alone || groups_[at].entered.empty();
  groups_[at].entered.insert(module);
  all_gather(at);
  if (!first) return false;
  for (const std::size_t next : groups_[at].forward_prefetch) all_gather(next, true);
  return !recomputing;
}

bool ShardPlan::leave(ModuleId module, bool recomputing) {
  const std::size_t at = number(module);
  Group& group = groups_[at];
  if (recomputing && group.in_backward) return false;
  group.left.insert(module);
  if (group.left.size() < group.modules.size()) return !recomputing;
  if (!recomputing && context_of(at).outermost == at) context_of(at).outermost.reset();
  group.entered.clear();
  group.left.clear();
  if (recomputing) return false;  // the group stays unsharded for its own backward, which follows
  reshard_after_forward(group);
  if (!group.parameters.empty()) {  // an empty group neither prefetches nor is prefetched
    Context& context = context_of(at);
    group.positions.push_back(context.forward_order.size());
    context.forward_order.push_back(at);
  }
  return true;
}

// ---- backward ----
void ShardPlan::backward_reaches(ModuleId module) {
  const std::size_t at = number(module);
  if (groups_[at].context < 0) return;
  if (groups_[at].in_backward && groups_[at].modules.size() > 1) return;  // by another of its modules
  groups_[at].in_backward = true;
  all_gather(at);
  Group& group = groups_[at];
  if (group.backward_prefetch) {
    for (const std::size_t next : *group.backward_prefetch) all_gather(next, true);
  } else if (!group.positions.empty()) {
    const std::size_t position = group.positions.back();
    group.positions.pop_back();
    if (position > 0) all_gather(context_of(at).forward_order[position - 1], true);
  }
}

void ShardPlan::backward_leaves(ModuleId module) {
  Group& group = groups_[number(module)];
  if (group.in_backward) leave_backward(group);
}

void ShardPlan::leave_backward(Group& group) {
  group.in_backward = false;
  if (group.state == State::unsharded && group.reshard_after_backward) group.state = State::sharded;
  reduce(group, false);
}

void ShardPlan::gradient(TensorId parameter) { groups_[owner_of_.at(parameter)].fresh.insert(parameter); }

void ShardPlan::reduce_over_tensor_parallelism(const Group& group, const std::set<TensorId>& scattered) {
  for (const TensorId id : group.parameters)
    if (const auto at = group.choices.partial_gradients.find(id);
        at != group.choices.partial_gradients.end() && scattered.contains(id))
      issue(group, "all_reduce", at->second, bytes_of(facts_.tensor(id).sizes, reduced_type(group, id)),
            "tensor_parallel");
}

// Reduces the gradients of a group. Unless `at_end`, a parameter that this backward will reach again waits.
void ShardPlan::reduce(Group& group, bool at_end) {
  if (!group.sync) {
    group.unreduced.merge(group.fresh);
    group.fresh.clear();
    return;
  }
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

// Reduces the groups that backward did not leave (inputs without gradient), and gradients that waited.
void ShardPlan::end_backward(int root) {
  Context& context = contexts_[static_cast<std::size_t>(root)];
  const bool last = groups_[context.root].last_backward;
  for (const std::size_t at : context.groups) {
    Group& group = groups_[at];
    if (group.in_backward) leave_backward(group);
    if (group.state == State::unsharded && group.reshard_after_backward) group.state = State::sharded;
    reduce(group, true);
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
