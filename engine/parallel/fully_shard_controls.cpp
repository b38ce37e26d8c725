// Functions for modules that are fully sharded already: explicit unshard and reshard, flags, prefetch, hooks.
#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/core/error.hpp"
#include "engine/parallel/fully_shard.hpp"
#include "engine/parallel/shard_state.hpp"
#include "engine/parallel/waits.hpp"

namespace lockstep::parallel {

using nn::ModulePtr;

bool is_fully_sharded(const ModulePtr& module) { return shard_state_of(*module) != nullptr; }

namespace {

ShardStatePtr require_state(const nn::Module& module, const char* what) {
  ShardStatePtr state = shard_state_of(module);
  if (!state || state->settings().api != fully_shard_name)
    throw Error(str(what, ": fully_shard was not applied to ", module.type(), " (Expects FSDPModule but got ",
                    module.type(), ")"),
                "apply it first, or name its module");
  return state;
}

// The states of a module, with `recurse` of all modules below too, each once.
std::vector<ShardStatePtr> states_of(const ModulePtr& module, bool recurse) {
  std::vector<ShardStatePtr> states;
  const auto modules = recurse ? nn::named_modules(module) : std::vector<nn::NamedModule>{{"", module}};
  for (const nn::NamedModule& entry : modules)
    if (const ShardStatePtr state = shard_state_of(*entry.module);
        state && std::find(states.begin(), states.end(), state) == states.end())
      states.push_back(state);
  return states;
}

}  // namespace

// ---- explicit unshard and reshard ----
void UnshardHandle::wait() {
  const auto module = std::exchange(module_, {}).lock();
  if (!module) return;
  const std::shared_ptr<ShardGroup> group = require_state(*module, "unshard")->group();
  if (!group) return;
  group->finish_unshard();
  if (group->shards().offloads())
    parallel::wait(WaitEdge::host_for_copy_in, device::current_stream(device::Device{}),
                   ShardStreams(group->settings().device).copy_in.record());
}

UnshardHandle unshard(const ModulePtr& module, bool async) {
  const ShardStatePtr state = require_state(*module, "unshard");
  if (state->group()) state->group()->begin_unshard(true);
  UnshardHandle handle;
  handle.module_ = module;
  if (!async) handle.wait();
  return handle;
}

void reshard(const ModulePtr& module) {
  if (const auto& group = require_state(*module, "reshard")->group()) {
    group->refuse_replaced_leaves();
    group->reshard();
  }
}

// ---- flags ----
namespace {

void set_group_flags(ShardGroup& group, const ShardFlags& flags) {
  if (flags.requires_gradient_sync) {
    group.requires_gradient_sync = *flags.requires_gradient_sync;
    group.requires_all_reduce = *flags.requires_gradient_sync;
  }
  if (flags.requires_all_reduce) group.requires_all_reduce = *flags.requires_all_reduce;
  if (flags.reshard_after_backward) group.reshard_after_backward = *flags.reshard_after_backward;
  if (flags.reshard_after_forward)
    group.set_reshard_after_forward(normalized(*flags.reshard_after_forward, group.settings().mesh.num_shards()));
  if (flags.reduce_divide_factor) group.divide_factor = flags.reduce_divide_factor;
}

void check_flags(const ShardState& state, const ShardFlags& flags) {
  const bool of_groups = flags.requires_all_reduce || flags.is_last_backward || flags.reshard_after_backward ||
                         flags.reshard_after_forward || flags.reduce_divide_factor;
  if (of_groups && state.settings().api != fully_shard_name)
    throw Error(str("set_flags: ", state.owner(), " is flat-sharded, and has requires_gradient_sync only"),
                "choose a strategy of flat_shard, or use fully_shard");
  if (!state.group()) return;
  if (flags.reshard_after_forward)
    normalized(*flags.reshard_after_forward, state.group()->settings().mesh.num_shards());
  if (flags.reduce_divide_factor && (!(*flags.reduce_divide_factor > 0) || !std::isfinite(*flags.reduce_divide_factor)))
    throw Error(str("set_flags: reduce_divide_factor is ", *flags.reduce_divide_factor),
                "it must be above 0 and finite");
}

}  // namespace

int check_flags(const ModulePtr& module, const ShardFlags& flags, bool recurse) {
  const std::vector<ShardStatePtr> states = states_of(module, recurse);
  for (const ShardStatePtr& state : states) check_flags(*state, flags);
  return static_cast<int>(states.size());
}

int set_flags(const ModulePtr& module, const ShardFlags& flags, bool recurse) {
  check_flags(module, flags, recurse);
  const std::vector<ShardStatePtr> states = states_of(module, recurse);
  for (const ShardStatePtr& state : states) {
    if (flags.is_last_backward) state->set_is_last_backward(*flags.is_last_backward);
    if (state->group()) set_group_flags(*state->group(), flags);
  }
  return static_cast<int>(states.size());
}

namespace {
std::vector<std::weak_ptr<ShardState>> states_of(const std::vector<ModulePtr>& modules, const char* what) {
  std::vector<std::weak_ptr<ShardState>> states;
  states.reserve(modules.size());
  for (const ModulePtr& module : modules) states.push_back(require_state(*module, what));
  return states;
}
}  // namespace

void set_forward_prefetch(const ModulePtr& module, const std::vector<ModulePtr>& next) {
  require_state(*module, "prefetch")->forward_prefetch = states_of(next, "prefetch");
}
void set_backward_prefetch(const ModulePtr& module, const std::vector<ModulePtr>& next) {
  require_state(*module, "prefetch")->backward_prefetch = states_of(next, "prefetch");
}

void register_forward_method(const ModulePtr& module, const std::string& method) {
  const std::vector<std::string> known = module->methods();
  if (std::find(known.begin(), known.end(), method) == known.end())
    throw Error(str("register_forward_method: ", module->type(), " does not have a method ", method),
                "register one that it has");
  module->register_forward_method(method);
}

void set_post_optim_event(const ModulePtr& root, device::Event event) {
  require_state(*root, "set_post_optim_event")->context->post_optim_event = std::move(event);
}

void add_shard_hook(const ModulePtr& module, ShardPoint point, std::function<void()> hook) {
  const ShardStatePtr state = shard_state_of(*module);  // of either API
  const auto& group = state ? state->group() : require_state(*module, "add_shard_hook")->group();
  if (!group)
    throw Error(str("add_shard_hook: the group of ", module->type(), " has no parameters, and makes no collectives"),
                "hook a module whose group has some");
  switch (point) {
    case ShardPoint::before_all_gather:
      return group->before_all_gather.push_back(std::move(hook));
    case ShardPoint::before_reduce_scatter:
      return group->before_reduce_scatter.push_back(std::move(hook));
    case ShardPoint::before_all_reduce:
      return group->before_all_reduce.push_back(std::move(hook));
  }
}

}  // namespace lockstep::parallel
