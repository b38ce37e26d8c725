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
  if (!added.choices.flat || parameters.empty()) return;
  std::vector<Dims> sizes;
  sizes.reserve(parameters.size());
  for (const TensorId parameter : parameters) sizes.push_back(facts_.tensor(parameter).sizes);
  const FlatChoices& flat = *added.choices.flat;
  added.flat = FlatLayout(sizes, flat.shards ? added.choices.shard.size : 1,
                          flat.aligned ? flat_step(compute_type(parameters.front())) : 1);
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
  std::vector<std::size_t>& list = groups_[number(module)].backward_prefetch;
  list.clear();
  for (const ModuleId id : next) list.push_back(number(id));
}

// ---- all-gathers ----
void ShardPlan::issue(const Group& group, const char* operation, const Axis& axis, std::int64_t bytes) {
  issue(group.choices.owner, operation, axis, bytes, "data_parallel");
}

void ShardPlan::issue(const std::string& owner, const char* operation, const Axis& axis, std::int64_t bytes,
                      const char* family) {
  Collective collective;
  collective.family = family;
  collective.operation = operation;
  collective.axis = axis.name;
  collective.group_size = axis.size;
  collective.owner = owner;
  collective.bytes = bytes;
  issue_(std::move(collective));
}

bool ShardPlan::has_owner(const std::string& owner) const {
  return std::any_of(groups_.begin(), groups_.end(), [&](const Group& group) { return group.choices.owner == owner; });
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
  if (group.choices.flat) return bytes_of({group.flat.padded()}, compute_type(group.parameters.front()));
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
  group.shows_shards = false;
  const bool stale = is_stale(group);
  if (group.state == State::unsharded && !stale) return;
  if (group.state == State::prefetched && !stale) {
    if (!prefetch) group.state = State::unsharded;
    return;
  }
  Axis axis = group.choices.shard;
  std::int64_t bytes = 0;
  group.from_post_forward = group.state == State::sharded_post_forward && !stale;
  if (group.from_post_forward) {
    axis.size = group.choices.reshard_after_forward.ranks;
    bytes = padded_bytes(group, {group.parameters.begin(), group.parameters.end()}, false);
  } else {
    bytes = gathered_bytes(group);
  }
  if (!group.choices.flat || group.choices.flat->shards) issue(group, "all_gather", axis, bytes);
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

std::vector<ModuleId> ShardPlan::modules_of_group(ModuleId module) const {
  return has(module) ? groups_[number(module)].modules : std::vector<ModuleId>();
}

void ShardPlan::unshard(ModuleId module, bool async) {
  if (has(module)) all_gather(number(module), async);
}

void ShardPlan::reshard(ModuleId module) {
  if (has(module)) groups_[number(module)].state = State::sharded;
}

void ShardPlan::summon(ModuleId module, const std::optional<SummonedGradients>& gradients) {
  if (!is_flat(module)) return;
  Group& group = groups_[number(module)];
  group.state = State::sharded;
  if (group.parameters.empty() || !group.choices.flat->shards) return;
  const TensorId first = group.parameters.front();
  const DType stored = facts_.tensor(first).dtype;
  gather_flat(module, stored);
  if (!gradients) return;
  const std::size_t num_trained = gradients->original_parameters ? group.parameters.size() : 1;
  issue(group, "all_reduce", group.choices.shard, bytes_of({static_cast<std::int64_t>(num_trained)}, DType::int32));
  const DType type = gradients->compute_type ? compute_type(first) : stored;
  gather_flat(module, type);
}

std::optional<Axis> ShardPlan::shard_axis_of_unit(ModuleId unit) const {
  const Group& group = groups_[number(unit)];
  if (group.parameters.empty() || !group.choices.flat->shards) return std::nullopt;
  return group.choices.shard;
}

void ShardPlan::gather_flat(ModuleId unit, DType type) {
  const Group& group = groups_[number(unit)];
  if (const auto axis = shard_axis_of_unit(unit))
    issue(group, "all_gather", *axis, bytes_of({group.flat.padded()}, type));
}

void ShardPlan::wait_for_unshard(ModuleId module) {
  if (!has(module)) return;
  Group& group = groups_[number(module)];
  if (group.state == State::prefetched) group.state = State::unsharded;
}

// ---- queries about a parameter ----
ShardPlan::SlotTensor ShardPlan::slot_tensor(TensorId parameter) const {
  const Group& group = groups_[owner_of_.at(parameter)];
  const State state = group.state;
  if (state == State::unsharded) return group.shows_shards ? SlotTensor::local_shard : SlotTensor::full;
  return state == State::sharded_post_forward ? SlotTensor::post_forward_shard : SlotTensor::local_shard;
}

bool ShardPlan::is_unsharded(TensorId parameter) const {
  return groups_[owner_of_.at(parameter)].state == State::unsharded;
}

bool ShardPlan::is_from_post_forward_shards(TensorId parameter) const {
  const Group& group = groups_[owner_of_.at(parameter)];
  return group.from_post_forward && (group.state == State::prefetched || group.state == State::unsharded);
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
  replicated_.swap(other.replicated_);
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
  for (const ModuleId module : modules_below(groups_[root])) {
    if (!has(module) || groups_[number(module)].context == index) continue;
    groups_[number(module)].context = index;
    context.groups.push_back(number(module));
  }
}

// Of a group and its descendants, parents first. Those of units end at replicated modules.
std::vector<ModuleId> ShardPlan::modules_below(const Group& root) const {
  std::vector<ModuleId> modules;
  const std::set<ModuleId> none;
  for (const ModuleId top : root.modules)
    for (const ModuleId module : facts_.pre_order(top, root.choices.flat ? replicated_ : none))
      modules.push_back(module);
  return modules;
}

// Resets the forward state for a call from outside of all groups. An earlier outermost call that is still running has
// failed.
void ShardPlan::begin_outermost(std::size_t group, std::uint64_t call) {
  Context& context = context_of(group);
  const bool is_new =
      !context.outermost || group == context.root || group == *context.outermost || call != context.call;
  if (!is_new) return;
  context.ran.clear();
  for (const std::size_t at : context.groups) {
    groups_[at].entered.clear();
    groups_[at].left.clear();
    if (!context.outermost) continue;
    groups_[at].in_backward = false;
    groups_[at].arriving.clear();
    groups_[at].fresh.clear();
    groups_[at].positions.clear();
  }
  if (context.outermost) context.forward_order.clear();
  context.outermost = group;
  context.call = call;
}

bool ShardPlan::enter(ModuleId module, bool in_backward, std::uint64_t call) {
  const std::size_t at = number(module);
  if (in_backward && groups_[at].in_backward) return false;
  if (groups_[at].context < 0) make_context(at);
  // A recomputation may stop before it leaves the module. So a call of the only module of a group is always a new one.
  const bool alone = groups_[at].modules.size() == 1;
  if (!in_backward && (alone || groups_[at].entered.empty())) begin_outermost(at, call);
  const bool first = alone || groups_[at].entered.empty();
  groups_[at].entered.insert(module);
  all_gather(at);
  if (!first) return false;
  for (const std::size_t next : groups_[at].forward_prefetch) all_gather(next, true);
  if (!in_backward) prefetch_next(at);
  return true;
}

void ShardPlan::prefetch_next(std::size_t number) {
  const Group& group = groups_[number];
  if (!group.choices.flat || group.parameters.empty()) return;
  Context& context = context_of(number);
  context.ran.insert(number);
  std::vector<std::size_t>& order = context.first_forward;
  const auto at = std::find(order.begin(), order.end(), number);
  if (!context.first_forward_ended) {
    if (at == order.end()) order.push_back(number);
    return;
  }
  if (!group.choices.flat->forward_prefetch || at == order.end() || at + 1 == order.end()) return;
  if (!context.ran.contains(*(at + 1))) all_gather(*(at + 1), true);
}

bool ShardPlan::leave(ModuleId module, bool in_backward, bool recording) {
  const std::size_t at = number(module);
  Group& group = groups_[at];
  if (in_backward && group.in_backward) return false;
  group.left.insert(module);
  if (group.left.size() < group.modules.size()) return true;
  if (!in_backward && context_of(at).outermost == at) {
    context_of(at).outermost.reset();
    context_of(at).first_forward_ended = true;
  }
  group.entered.clear();
  group.left.clear();
  if (in_backward) return true;  // the group stays unsharded for its own backward, which follows
  reshard_after_forward(group);
  group.shows_shards = group.choices.flat && !recording;
  if (!group.parameters.empty()) {  // an empty group neither prefetches nor is prefetched
    Context& context = context_of(at);
    if (recording || !group.choices.flat) group.positions.push_back(context.forward_order.size());
    context.forward_order.push_back(at);
  }
  return true;
}

}  // namespace lockstep::plan
