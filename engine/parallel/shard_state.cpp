#include "engine/parallel/shard_state.hpp"

#include <algorithm>
#include <any>
#include <utility>

#include "engine/autograd/autograd.hpp"
#include "engine/autograd/ops.hpp"
#include "engine/autograd/watch.hpp"
#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"
#include "engine/parallel/contract.hpp"
#include "engine/parallel/events.hpp"
#include "engine/parallel/waits.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::parallel {

ShardStatePtr shard_state_of(const nn::Module& module) {
  for (const std::string_view api : {fully_shard_name, flat_shard_name})
    if (const auto found = module.applied.find(api); found != module.applied.end())
      return std::any_cast<ShardStatePtr>(found->second.state);
  return nullptr;
}

ShardState::ShardState(std::vector<nn::ModulePtr> modules, StateSettings settings, std::shared_ptr<ShardGroup> group)
    : context(group ? group->context : std::make_shared<ShardContext>()),
      modules_(modules.begin(), modules.end()),
      settings_(std::move(settings)),
      group_(std::move(group)) {}

namespace {

void replace_tensors(nn::Inputs& inputs, const std::function<Tensor(const Tensor&)>& replace) {
  for (nn::Structure& value : inputs.positional) value = nn::map_tensors(value, replace);
  for (auto& [name, value] : inputs.named) value = nn::map_tensors(value, replace);
}

}  // namespace

namespace {

// The modules whose states the root gets. A replicated module below a flat-sharded one keeps its units to itself: they
// have roots of their own.
std::vector<nn::NamedModule> modules_of_root(const nn::ModulePtr& root, std::string_view api) {
  std::vector<nn::NamedModule> modules;
  std::string outside;  // the prefix of the paths below the last replicated module
  for (nn::NamedModule& entry : nn::named_modules(root)) {
    if (!outside.empty() && entry.path.starts_with(outside)) continue;
    outside.clear();
    if (api == flat_shard_name && !entry.path.empty() && is_applied(*entry.module, replicate_name))
      outside = entry.path + ".";
    modules.push_back(std::move(entry));
  }
  return modules;
}

}  // namespace

// ---- the root ----
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
  for (const auto& weak : settings_.buffer_modules) {
    const nn::ModulePtr module = weak.lock();
    if (!module) continue;
    for (std::size_t slot = 0; slot < module->buffers.size(); ++slot) {
      const Tensor& tensor = module->buffers[slot].tensor;
      if (!tensor.defined() || !is_floating(tensor.dtype()) || tensor.dtype() == *settings_.buffer_type) continue;
      cast_buffers_.push_back({module, slot, tensor.dtype()});
      nn::swap_data(tensor, raw::cast(detach(tensor), *settings_.buffer_type));
    }
  }
}

// A forward or backward that threw leaves states in the middle of a phase. The next forward of the root resets them.
void ShardState::recover() {
  for (const ShardStatePtr& state : context->living_states()) {
    state->phase_ = Phase::idle;
    state->modules_to_run_.clear();
    if (!state->group_) continue;
    state->group_->forget_backward();
    state->group_->positions.clear();
  }
  context->forward_order.clear();
  context->forward_root = nullptr;
}

void ShardState::enter_as_root() {
  if (!is_initialized_) make_root();
  if (in_backward()) return;  // a recomputation: its forward has waited for the optimizer
  if (context->forward_root && (is_root_ || context->forward_root == this)) recover();
  if (context->forward_root) return;
  context->forward_root = this;
  context->begun.clear();
  for (const ShardStatePtr& state : context->living_states()) state->leave_unfinished_forward();
  phase_ = Phase::forward;
  // Every all-gather waits for its copy-in, so one wait of the copy-in stream orders all of them after the optimizer.
  device::Stream& copy_in = device::stream(settings_.device, device::Role::copy_in);
  if (context->post_optim_event) {
    note_event(EventKind::wait_event, settings_.owner);
    wait(WaitEdge::copy_in_for_optimizer, copy_in, *context->post_optim_event);
    context->post_optim_event.reset();
  } else {
    note_event(EventKind::wait_stream, settings_.owner);
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

// A recomputation moves and casts its inputs as the forward did.
void ShardState::move_inputs(nn::Inputs& inputs) const {
  if (settings_.device.kind != device::Kind::sim && settings_.device.kind != device::Kind::cuda) return;
  replace_tensors(inputs, [this](const Tensor& tensor) {
    return tensor.device() == settings_.device ? tensor : ops::to_device(tensor, settings_.device);
  });
}

void ShardState::cast_inputs(nn::Inputs& inputs) const {
  const bool casts = settings_.precision.cast_forward_inputs ||
                     (is_root_ && settings_.casts_root_inputs && !defect_armed(Defect::flat_root_inputs_not_cast));
  if (!casts || !settings_.precision.param) return;
  replace_tensors(inputs, [this](const Tensor& tensor) {
    return is_floating(tensor.dtype()) ? ops::cast(tensor, *settings_.precision.param) : tensor;
  });
}

void ShardState::cast_outputs(nn::Structure& outputs) const {
  if (!settings_.precision.output) return;
  outputs = nn::map_tensors(outputs, [this](const Tensor& tensor) {
    return is_floating(tensor.dtype()) ? ops::cast(tensor, *settings_.precision.output) : tensor;
  });
}

void ShardState::set_is_last_backward(bool value) { context->is_last_backward = value; }

// ---- forward ----
void ShardState::pre_forward(nn::Inputs& inputs) {
  if (phase_ == Phase::backward && !in_backward()) recover();
  const bool recomputes_itself = phase_ == Phase::backward;
  const bool is_first = modules_to_run_.empty() && !recomputes_itself;
  if (is_first) {
    phase_ = Phase::forward;
    enter_as_root();
    for (const auto& module : modules_)
      if (const auto alive = module.lock(); alive && modules_.size() > 1) modules_to_run_.insert(alive.get());
  }
  if (is_root_ || context->forward_root == this) move_inputs(inputs);
  cast_inputs(inputs);
  if (!is_first) {
    // reshard() may have been called since the first of its modules ran.
    if (group_ && phase_ == Phase::forward && group_->state() != GroupState::unsharded) {
      group_->begin_unshard();
      group_->finish_unshard(!in_backward());
    }
    return;
  }
  note_event(EventKind::pre_forward, settings_.owner);
  if (group_) {
    group_->begin_unshard();
    group_->finish_unshard(!in_backward());
    watch_inputs(inputs);
  }
  for (const auto& next : forward_prefetch)
    if (const auto state = next.lock(); state && state->group_) state->group_->begin_unshard();
  if (settings_.forward_prefetch && group_ && !in_backward()) prefetch_next();
}

// The first forward records the order of the groups. A group that has run in this forward is not gathered again.
void ShardState::prefetch_next() {
  context->begun.push_back(group_.get());
  std::vector<std::weak_ptr<ShardGroup>>& order = context->first_forward;
  const auto at = std::find_if(order.begin(), order.end(), [this](const auto& one) { return one.lock() == group_; });
  if (!context->first_forward_is_complete) {
    if (at == order.end()) order.push_back(group_);
    return;
  }
  if (at == order.end() || std::next(at) == order.end()) return;
  const auto next = std::next(at)->lock();
  const auto& begun = context->begun;
  if (next && std::find(begun.begin(), begun.end(), next.get()) == begun.end()) next->begin_unshard();
}

// A flat-sharded unit whose outputs require no gradient is not gathered ahead.
bool ShardState::may_run_backward(const nn::Structure& outputs) const {
  if (settings_.api != flat_shard_name) return true;
  const std::vector<Tensor> tensors = nn::tensors_of(outputs);
  return grad_enabled() &&
         std::any_of(tensors.begin(), tensors.end(), [](const Tensor& one) { return requires_grad(one); });
}

void ShardState::post_forward(const nn::Module& module, nn::Structure& outputs) {
  if (phase_ == Phase::backward) return cast_outputs(outputs);
  modules_to_run_.erase(&module);
  if (!modules_to_run_.empty()) {
    watch_outputs(outputs);
    return cast_outputs(outputs);
  }
  if (in_backward()) {
    queue_end_of_backward();  // reshards the group if this backward never reaches it
  } else if (group_) {
    group_->reshard_after_forward();
    if (may_run_backward(outputs)) group_->positions.push_back(context->forward_order.size());
    context->forward_order.push_back(group_);
  }
  note_event(EventKind::post_forward, settings_.owner);
  watch_outputs(outputs);
  phase_ = Phase::idle;
  if (context->forward_root == this) {
    context->free_gather_buffers(ShardStreams(settings_.device));
    context->forward_root = nullptr;
    context->first_forward_is_complete = true;
  }
  cast_outputs(outputs);
}

void ShardState::watch_inputs(nn::Inputs& inputs) {
  if (!grad_enabled()) return;
  nn::Structure all = nn::Structure::list(
      {nn::Structure::list(std::move(inputs.positional)), nn::Structure::map(std::move(inputs.named))});
  const std::vector<Tensor> watched = watch_passing(nn::tensors_of(all), [weak = weak_from_this()] {
    if (const auto state = weak.lock()) state->post_backward();
  });
  all = nn::with_tensors(all, watched);
  inputs.positional = all.items()[0].items();
  inputs.named = all.items()[1].entries();
}

void ShardState::watch_outputs(nn::Structure& outputs) {
  if (!grad_enabled()) return;
  outputs = nn::with_tensors(outputs, watch_first_gradient(nn::tensors_of(outputs), [weak = weak_from_this()] {
                               if (const auto state = weak.lock()) state->pre_backward();
                             }));
}

// ---- backward ----
void ShardState::queue_end_of_backward() {
  if (context->callback_in == backward_id()) return;
  context->callback_in = backward_id();
  queue_backward_callback([weak = std::weak_ptr(context)] {
    const auto at = weak.lock();
    if (!at) return;
    at->callback_in = 0;
    const bool is_last = at->is_last_backward;
    const auto states = at->living_states();
    for (const ShardStatePtr& state : states) state->finish_backward();
    at->agree_on_end();
    if (is_last)
      for (const ShardStatePtr& state : states) state->wait_at_end();
    if (!is_last) return;
    at->forward_order.clear();
    at->free_reductions();
    if (!states.empty()) at->free_gather_buffers(ShardStreams(states.front()->settings_.device));
  });
}

void ShardState::pre_backward() {
  queue_end_of_backward();
  if (phase_ == Phase::backward && modules_.size() > 1) return;  // backward has reached another of its modules before
  phase_ = Phase::backward;
  note_event(EventKind::pre_backward, settings_.owner);
  if (group_) {
    group_->begin_unshard();
    group_->finish_unshard();
    if (backward_prefetch.empty() && settings_.backward_prefetch == BackwardPrefetch::before) prefetch_previous();
  }
  for (const auto& next : backward_prefetch)
    if (const auto state = next.lock(); state && state->group_) state->group_->begin_unshard();
}

namespace {

// The position in the order of forwards that backward reaches after `position`; num_positions: none.
std::size_t next_in_backward(std::size_t position, std::size_t num_positions) {
  if (defect_armed(Defect::shard_prefetch_wrong_group)) [[unlikely]]
    return position + 1;
  return position == 0 ? num_positions : position - 1;
}

}  // namespace

void ShardState::prefetch_previous() {
  if (settings_.api == flat_shard_name && defect_armed(Defect::flat_prefetch_left_out)) [[unlikely]]
    return;
  if (group_->positions.empty()) return;  // a second backward through a retained graph
  const std::size_t num_positions = context->forward_order.size();
  const std::size_t next = next_in_backward(group_->positions.back(), num_positions);
  group_->positions.pop_back();
  if (next == num_positions) return;
  const auto group = context->forward_order[next].lock();
  if (!group || (settings_.api == flat_shard_name && group->positions.empty())) return;  // backward has passed it
  group->begin_unshard();
}

void ShardState::post_backward(bool at_end) {
  if (phase_ != Phase::backward) return;
  phase_ = Phase::idle;
  if (group_) {
    // Frees the unsharded parameters before the reduction allocates memory.
    if (group_->reshards_after_backward() && group_->state() == GroupState::unsharded) group_->reshard();
    if (settings_.backward_prefetch == BackwardPrefetch::after && !at_end) prefetch_previous();
    group_->take_gradients(false);
  }
  note_event(EventKind::post_backward, settings_.owner);
}

void ShardState::finish_backward() {
  if (phase_ == Phase::backward) post_backward(true);
  if (group_) {
    if (group_->state() == GroupState::unsharded && group_->reshards_after_backward()) group_->reshard();
    if (group_->has_gradients()) group_->take_gradients(true);
  }
  phase_ = Phase::idle;
  modules_to_run_.clear();
}

void ShardState::wait_at_end() {
  if (!group_) return;
  if (group_->has_unused_gather()) group_->drop_unused_gather();
  // The shards were kept for a backward that did not reach the group. The optimizer is about to change them.
  if (group_->state() == GroupState::sharded_post_forward) group_->reshard();
  group_->wait_for_reduction();
  group_->positions.clear();
}

// Ranks that disagree on the parameters that got a gradient raise an error now. A rank that reduced everything need not
// compare: its peers can see its pending collective.
void ShardContext::agree_on_end() const {
  std::vector<comm::ProcessGroup*> process_groups;
  bool left_out = false;
  std::string owner;
  for (const ShardStatePtr& state : living_states()) {
    if (owner.empty()) owner = state->owner();
    if (!state->group()) continue;
    left_out = state->group()->end_backward() || left_out;
    const ShardMesh& mesh = state->group()->settings().mesh;
    for (comm::ProcessGroup* one : {mesh.is_sharded() ? &mesh.shard_group() : nullptr, mesh.replicate_group()})
      if (one && std::find(process_groups.begin(), process_groups.end(), one) == process_groups.end())
        process_groups.push_back(one);
  }
  for (comm::ProcessGroup* one : process_groups) comm::end_round(*one, left_out, owner);
}

}  // namespace lockstep::parallel
