// The all-gather of a group:
//
//   copy-in      shards into one flat input
//   all-gather            | flat input to flat output
//   compute                                          | copy-out: flat output into the unsharded parameters
#include <utility>

#include "engine/autograd/autograd.hpp"
#include "engine/core/checked.hpp"
#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"
#include "engine/parallel/events.hpp"
#include "engine/parallel/shard_copies.hpp"
#include "engine/parallel/shard_group.hpp"
#include "engine/parallel/waits.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::parallel {

layout::FlatShards ShardGroup::gather_plan() const {
  return layout::make_flat_shards(cuts_, gather_ranks_ == 0 ? 1 : settings_.mesh.num_shards() / gather_ranks_);
}

// ---- begin: copy-in and the collective ----
void ShardGroup::begin_unshard(bool after_compute) {
  const bool changed = shards_changed();
  if (holds_stale_values()) reshard();
  if (state_ == GroupState::unsharding || state_ == GroupState::unsharded) return;
  if (state_ == GroupState::sharded) adopt_slots();
  note_event(EventKind::unshard, settings_.owner);

  const NoGrad no_grad;
  const ShardStreams streams(settings_.device);
  const layout::FlatShards flat = gather_plan();
  // Copy-in has waited at the root's forward for all earlier writes of the shards. Later writes are on compute.
  if (after_compute || (changed && in_backward()))
    wait(WaitEdge::copy_in_for_shard_writes, streams.copy_in, device::stream(settings_.device, device::Role::compute));
  if (state_ == GroupState::sharded_post_forward)
    wait(WaitEdge::copy_in_for_kept_shards, streams.copy_in, kept_.written);
  GatherBuffers buffers;
  {
    const device::StreamScope scope(streams.copy_in);
    const device::PurposeScope purpose(device::Purpose::communication);
    buffers.input = make_gather_input(flat);
  }
  wait(WaitEdge::all_gather_for_copy_in, streams.all_gather, streams.copy_in);
  issue_all_gather(buffers, flat.num_ranks);
  gather_ = std::move(buffers);
  move_to(GroupState::unsharding);
}

Tensor ShardGroup::make_gather_input(const layout::FlatShards& flat) {
  if (state_ != GroupState::sharded_post_forward && has_extensions()) return pack_extended();
  const Tensor input = empty({flat.per_rank}, compute_type(), settings_.device);
  fill_gather_input(input, flat);
  return input;
}

void ShardGroup::fill_gather_input(const Tensor& input, const layout::FlatShards& flat) const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (state_ == GroupState::sharded_post_forward) {
      raw::copy_(slice(input, 0, flat.offsets[i], flat.offsets[i] + kept_.pieces[i].num_elements()), kept_.pieces[i]);
      continue;
    }
    const Tensor shard = local_tensor(parameters_[i].sharded());
    if (shard.num_elements() == 0) continue;
    const Dims padded = layout::padded_shard_sizes(cuts_[i]);
    const Tensor to = as_strided(input, shard.sizes(), contiguous_strides(padded), input_offset(flat, i));
    if (!offloads()) {
      raw::copy_(to, shard);
    } else if (to.dtype() == shard.dtype() && to.is_contiguous() && shard.is_contiguous()) {
      device::copy_bytes(device::current_stream(settings_.device), write(to), read(shard));
    } else {
      const Tensor on_device = empty(shard.sizes(), shard.dtype(), settings_.device);
      device::copy_bytes(device::current_stream(settings_.device), write(on_device), read(raw::contiguous(shard)));
      raw::copy_(to, on_device);
    }
  }
}

// Where the shard of a parameter begins. A shard without rows takes the room of a padded shard, too.
std::int64_t ShardGroup::input_offset(const layout::FlatShards& flat, std::size_t index) const {
  std::int64_t offset = flat.offsets[index];
  if (defect_armed(Defect::shard_empty_part_offset)) [[unlikely]]
    for (std::size_t i = 0; i < index; ++i)
      if (local_tensor(parameters_[i].sharded()).num_elements() == 0) offset -= layout::padded_shard_elements(cuts_[i]);
  return offset;
}

void ShardGroup::issue_all_gather(GatherBuffers& buffers, int num_ranks) {
  const ShardStreams streams(settings_.device);
  const device::StreamScope scope(streams.all_gather);
  const device::PurposeScope purpose(device::Purpose::communication);
  for (const auto& hook : before_all_gather) hook();
  buffers.output = empty({checked_multiply(buffers.input.size(0), num_ranks, "all_gather of a group")},
                         buffers.input.dtype(), settings_.device);
  comm::ProcessGroup& group = state_ == GroupState::sharded_post_forward ? kept_group() : settings_.mesh.shard_group();
  comm::Call call;
  call.family = comm::Family::data_parallel;
  call.async = true;
  call.stream = &streams.all_gather;
  call.owner = settings_.owner;
  buffers.work = comm::all_gather(group, buffers.output, buffers.input, call);
}

// ---- finish: copy-out ----
void ShardGroup::finish_unshard(bool keep_buffers) {
  if (state_ != GroupState::unsharding) return;
  const ShardStreams streams(settings_.device);
  const NoGrad no_grad;
  device::Stream& compute = device::current_stream(settings_.device);
  wait(WaitEdge::compute_for_all_gather, compute, gather_->work);
  const layout::FlatShards flat = gather_plan();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    ShardParameter& parameter = parameters_[i];
    const Tensor before = parameter.unsharded();
    const Tensor memory = parameter.allocate_unsharded(compute_type(), settings_.device);
    if (sent_.empty())
      copy_out(memory, gather_->output, cuts_[i], flat, i);
    else
      unpack_extended(i, gather_->output, memory);
    const bool is_new = !before.defined() || !parameter.unsharded().same_as(before);
    if (is_new)  // the accumulator must not own the group, which owns the tensor
      set_accumulator(
          parameter.unsharded(),
          [weak = weak_from_this(), i](const Tensor&, const Tensor& gradient) {
            if (const auto group = weak.lock()) group->on_gradient(i, gradient);
          },
          true);
    parameter.put_unsharded();
  }
  gather_->copied_out = compute.record();
  context->free_gather_buffers(streams);
  context->gathered = std::exchange(gather_, std::nullopt);
  if (!keep_buffers) context->free_gather_buffers(streams);
  kept_ = {};
  sent_.clear();
  gather_ranks_ = 0;
  move_to(GroupState::unsharded);
}

// ---- an all-gather that is not used ----
bool ShardGroup::has_unused_gather() const {
  return state_ == GroupState::unsharding && !defect_armed(Defect::shard_unused_gather_kept);
}

void ShardGroup::drop_unused_gather() {
  if (state_ != GroupState::unsharding) return;
  device::Stream& compute = device::current_stream(settings_.device);
  wait(WaitEdge::compute_for_unused_all_gather, compute, gather_->work);
  gather_->copied_out = compute.record();
  gather_->free(ShardStreams(settings_.device));
  gather_.reset();
  sent_.clear();
  reshard();
}

}  // namespace lockstep::parallel
