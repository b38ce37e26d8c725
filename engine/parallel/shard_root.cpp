// The root of a tree of sharded modules: which states it gets, what it does once, and what each of its forwards begins
// with.
#include <algorithm>
#include <utility>

#include "engine/autograd/autograd.hpp"
#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"
#include "engine/parallel/contract.hpp"
#include "engine/parallel/events.hpp"
#include "engine/parallel/shard_state.hpp"
#include "engine/parallel/waits.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::parallel {

namespace {

// The modules whose states the root gets. A replicated module below a flat-sharded one keeps its units to itself: they
// have roots of their own.
std::vector<nn::NamedModule> modules_of_root(const nn::ModulePtr& root, std::string_view api) {
  std::vector<nn::NamedModule> modules;
  std::string outside;  // the prefix of the paths below the last replicated module
  for (nn::NamedModule& entry : nn::named_modules(root)) {
    if (!outside.empty() && entry.path.starts_with(outside)) continue;
    outside.clear();
    if (api == flat_shard_name && !entry.path.empty() && is_applied(*entry.module, replicate_name) &&
        !defect_armed(Defect::flat_root_takes_replicas))
      outside = entry.path + ".";
    modules.push_back(std::move(entry));
  }
  return modules;
}

}  // namespace

// All checks come before the first change, so a root that was refused may try again.
void ShardState::make_root() {
  if (modules_.size() > 1)
    throw Error(str("FSDP requires a single root module but got ", settings_.owner, ", a group of several"),
                "shard a module around them, and run that");
  const nn::ModulePtr root = modules_.front().lock();
  std::vector<std::string> on_meta;
  std::vector<ShardStatePtr> states;
  for (const nn::NamedModule& entry : modules_of_root(root, settings_.api)) {
    const ShardStatePtr state = shard_state_of(*entry.module);
    if (!state || std::find(states.begin(), states.end(), state) != states.end()) continue;
    if (state.get() != this && state->is_initialized_)
      throw Error(str("FSDP state has already been lazily initialized for `", entry.path, "` of ", settings_.owner,
                      ", which ran before this root did: FSDP requires running forward through the root module first"),
                  "run a forward of the root before those of its children");
    if (state->settings_.api != settings_.api)
      throw Error(str("`", entry.path, "` of ", settings_.owner, " is managed by ", state->settings_.api,
                      ", and the root by ", settings_.api),
                  "shard a model with one of the two");
    states.push_back(state);
    if (state->group_)
      for (std::string& name : state->group_->names_on_meta()) on_meta.push_back(std::move(name));
  }
  if (!on_meta.empty()) {
    std::string names;
    for (const std::string& name : on_meta) names += str(names.empty() ? "" : ", ", name);
    throw Error(str("FSDP parameters should be materialized from meta device before training, but the following were "
                    "still on meta device: [",
                    names, "]"),
                "give the module storage and load or draw its values");
  }
  for (const ShardStatePtr& state : states)
    if (state->group_ && state->group_->state() == GroupState::sharded) state->group_->adopt_slots();

  is_root_ = true;
  context->states.assign(states.begin(), states.end());
  for (const ShardStatePtr& state : states) {
    state->is_initialized_ = true;
    state->context = context;
    if (state->group_) state->group_->context = context;
    state->cast_own_buffers();
  }
  if (!group_) return;
  group_->is_root = true;
  group_->set_reshard_after_forward(ReshardAfterForward::of(false));  // backward would unshard it at once
}

// Buffers keep the type of the computation; state dicts give the original one.
void ShardState::cast_own_buffers() {
  if (!settings_.buffer_type || defect_armed(Defect::flat_buffers_not_cast)) return;
  const NoGrad no_grad;
  const device::PurposeScope purpose(device::Purpose::other);
  for (const UnitBuffer& buffer : settings_.buffers) {
    const nn::ModulePtr module = buffer.owner.lock();
    if (!module) continue;
    const Tensor& tensor = module->buffers[buffer.slot].tensor;
    if (!tensor.defined() || !is_floating(tensor.dtype())) continue;
    if (buffer.original != settings_.buffer_type) cast_buffers_.push_back(buffer);
    if (tensor.dtype() != *settings_.buffer_type)
      nn::swap_data(tensor, raw::cast(detach(tensor), *settings_.buffer_type));
  }
}

// A forward or backward that threw leaves states in the middle of a phase. The next forward of the root, or of a module
// that runs alone, resets them.
void ShardState::recover() {
  for (const ShardStatePtr& state : context->living_states()) {
    state->forget_backward();
    if (state->group_) state->group_->positions.clear();
  }
  context->forward_order.clear();
  context->forward_root = nullptr;
  context->callback_in = 0;
}

void ShardState::forget_backward() {
  phase_ = Phase::idle;
  modules_to_run_.clear();
  if (group_) group_->forget_backward();
}

// In a backward: one that began before the outermost one that runs, and has not ended, has failed. The positions of
// forwards since then stay.
void ShardState::leave_failed_backward() {
  if (context->callback_in == 0 || context->callback_in >= outermost_backward_id()) return;
  context->callback_in = 0;
  for (const ShardStatePtr& state : context->living_states()) state->forget_backward();
}

void ShardState::enter_as_root() {
  if (!is_initialized_) make_root();
  if (in_backward()) return;  // a recomputation: its forward has waited for the optimizer
  if (context->forward_root && (is_root_ || context->forward_root == this || !context->in_forward())) recover();
  if (context->forward_root) return;
  context->forward_root = this;
  context->forward_call = nn::running_call();
  context->begun.clear();
  for (const ShardStatePtr& state : context->living_states()) state->leave_unfinished_forward();
  phase_ = Phase::forward;
  // Every all-gather waits for its copy-in, so one wait of the copy-in stream orders all of them after the optimizer.
  device::Stream& copy_in = device::stream(settings_.device, device::Role::copy_in);
  if (context->post_optim_event) {
    note_event(EventKind::wait_event, settings_.owner, settings_.module);
    wait(WaitEdge::copy_in_for_optimizer, copy_in, *context->post_optim_event);
    context->post_optim_event.reset();
  } else {
    note_event(EventKind::wait_stream, settings_.owner, settings_.module);
    wait(WaitEdge::copy_in_for_optimizer, copy_in, device::current_stream(settings_.device));
  }
}

// If one module of a group of several did not run in the previous forward, the group is still in its forward.
void ShardState::leave_unfinished_forward() {
  if (defect_armed(Defect::shard_entered_group_kept)) [[unlikely]]
    return;
  if (phase_ == Phase::forward) phase_ = Phase::idle;
  modules_to_run_.clear();
}

}  // namespace lockstep::parallel
