#include "engine/parallel/shard_state.hpp"

#include <algorithm>
#include <any>
#include <utility>

#include "engine/autograd/autograd.hpp"
#include "engine/autograd/ops.hpp"
#include "engine/autograd/watch.hpp"
#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"
#include "engine/device/capabilities.hpp"
#include "engine/parallel/contract.hpp"
#include "engine/parallel/events.hpp"

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

// A recomputation moves and casts its inputs as the forward did.
void ShardState::move_inputs(nn::Inputs& inputs) const {
  if (!device::is_accelerator(settings_.device)) return;
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
  if (in_backward())
    leave_failed_backward();
  else if (phase_ == Phase::backward)
    recover();
  const bool recomputes_itself = phase_ == Phase::backward;
  const bool is_first = modules_to_run_.empty() && !recomputes_itself;
  if (is_first) {
    phase_ = Phase::forward;
    enter_as_root();
    for (const auto& module : modules_)
      if (const auto alive = module.lock(); alive && modules_.size() > 1) modules_to_run_.insert(alive.get());
  }
  if (!in_backward()) moves_inputs_ = is_root_ || context->forward_root == this;
  if (moves_inputs_) move_inputs(inputs);
  cast_inputs(inputs);
  if (!is_first) {
    // reshard() may have been called since the first of its modules ran.
    if (group_ && phase_ == Phase::forward && group_->state() != GroupState::unsharded) {
      group_->begin_unshard();
      group_->finish_unshard(!in_backward());
    }
    return;
  }
  note_event(EventKind::pre_forward, settings_.owner, settings_.module);
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
  if (at == order.end() || std::next(at) == order.end() || defect_armed(Defect::flat_forward_prefetch_left_out)) return;
  const auto next = std::next(at)->lock();
  const auto& begun = context->begun;
  if (!next || std::find(begun.begin(), begun.end(), next.get()) != begun.end()) return;
  context->free_used(ShardStreams(settings_.device), 0);  // this group and the next are the two in memory
  next->begin_unshard();
}

namespace {

bool need_gradients(const nn::Structure& outputs) {
  const std::vector<Tensor> tensors = nn::tensors_of(outputs);
  return grad_enabled() &&
         std::any_of(tensors.begin(), tensors.end(), [](const Tensor& one) { return requires_grad(one); });
}

}  // namespace

// A flat-sharded unit whose outputs require no gradient is not gathered ahead.
bool ShardState::may_run_backward(const nn::Structure& outputs) const {
  if (settings_.api != flat_shard_name || defect_armed(Defect::flat_prefetch_without_gradient)) return true;
  return need_gradients(outputs);
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
    if (!grad_enabled()) context->let_writers_wait_for_copy_in(settings_.device);  // an evaluation, no recomputation
  } else if (group_) {
    group_->reshard_after_forward();
    if (may_run_backward(outputs)) group_->positions.push_back(context->forward_order.size());
    context->forward_order.push_back(group_);
    if (!need_gradients(outputs)) group_->show_shards_until_next_use();
  }
  note_event(EventKind::post_forward, settings_.owner, settings_.module);
  watch_outputs(outputs);
  phase_ = Phase::idle;
  if (context->forward_root == this) {
    context->let_writers_wait_for_copy_in(settings_.device);
    context->free_gather_buffers(ShardStreams(settings_.device));
    context->free_used(ShardStreams(settings_.device), 0);
    context->forward_root = nullptr;
    context->first_forward_is_complete = true;
  }
  cast_outputs(outputs);
}

void ShardState::watch_inputs(nn::Inputs& inputs) {
  if (!grad_enabled()) return;
  nn::Structure all = nn::Structure::list(
      {nn::Structure::list(std::move(inputs.positional)), nn::Structure::map(std::move(inputs.named))});
  const std::vector<Tensor> watched = watch_passing(
      nn::tensors_of(all),
      [weak = weak_from_this()] {
        if (const auto state = weak.lock()) state->post_backward();
      },
      Watched::inputs);
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
  leave_failed_backward();
  context->callback_in = backward_id();
  queue_backward_callback([weak = std::weak_ptr(context)] {
    const auto at = weak.lock();
    if (!at) return;
    const std::uint64_t id = std::exchange(at->callback_in, 0);
    const bool is_last = at->is_last_backward;
    const auto states = at->living_states();
    try {
      // The end reshards groups that this backward has not reached, so a tensor in their slots would be lost.
      for (const ShardStatePtr& state : states)
        if (state->group()) state->group()->refuse_replaced_leaves();
      for (const ShardStatePtr& state : states) state->finish_backward();
    } catch (...) {
      at->callback_in = id;  // the next backward drops the gradients that are left
      throw;
    }
    if (!states.empty()) at->free_used(ShardStreams(states.front()->settings_.device), 0);
    at->agree_on_end();
    if (is_last)
      for (const ShardStatePtr& state : states) state->wait_at_end();
    // Copy-in may still read the shards, and a group without a gradient has no reduction that would be waited for. A
    // backward that is not the last one keeps all-gathers that it has not used.
    if (!states.empty()) at->let_writers_wait_for_copy_in(states.front()->settings_.device);
    if (!is_last) return;
    at->forward_order.clear();
    at->free_reductions();
    if (!states.empty()) at->free_gather_buffers(ShardStreams(states.front()->settings_.device));
  });
}

void ShardState::pre_backward() {
  queue_end_of_backward();
  // Backward has reached another of its modules before, or another call of a flat-sharded one.
  if (phase_ == Phase::backward && (modules_.size() > 1 || settings_.api == flat_shard_name)) return;
  phase_ = Phase::backward;
  note_event(EventKind::pre_backward, settings_.owner, settings_.module);
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
  const bool skips_passed = settings_.api == flat_shard_name && !defect_armed(Defect::flat_prefetch_of_passed_unit);
  if (!group || (skips_passed && group->positions.empty())) return;
  if (group_->state() == GroupState::unsharded)  // this group and the next are the two in memory
    context->free_used(ShardStreams(settings_.device), 0);
  group->begin_unshard();
}

void ShardState::post_backward(bool at_end) {
  if (phase_ != Phase::backward) return;
  // A flat-sharded unit stays unsharded until backward has left all its calls.
  if (settings_.api == flat_shard_name && !at_end && group_ && group_->awaits_gradients()) return;
  phase_ = Phase::idle;
  if (group_) {
    // Frees the unsharded parameters before the reduction allocates memory.
    if (group_->reshards_after_backward() && group_->state() == GroupState::unsharded) group_->reshard();
    if (settings_.backward_prefetch == BackwardPrefetch::after && !at_end) prefetch_previous();
    group_->take_gradients(false);
  }
  note_event(EventKind::post_backward, settings_.owner, settings_.module);
}

void ShardState::finish_backward() {
  if (phase_ == Phase::backward) post_backward(true);
  if (group_) {
    if (group_->state() == GroupState::unsharded && group_->reshards_after_backward()) group_->reshard();
    if (group_->has_gradients()) group_->take_gradients(true);
    group_->show_shards_until_next_use();  // where it stays unsharded, without synchronization
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
