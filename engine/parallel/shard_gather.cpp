// The all-gather of a group:
//
//   copy-in      shards into one flat input
//   all-gather            | flat input to flat output
//   compute                                          | flat output into the unsharded parameters
//
// A group on a mesh that does not shard makes no collective.
#include <utility>

#include "engine/autograd/autograd.hpp"
#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"
#include "engine/mesh/sharded.hpp"
#include "engine/parallel/events.hpp"
#include "engine/parallel/shard_group.hpp"
#include "engine/parallel/waits.hpp"

namespace lockstep::parallel {

// ---- begin: copy-in and the collective ----
// A tensor that was put in a slot of an unsharded group, or of one that keeps shards, would be lost when the group is
// resharded, and the graph that is open has saved the leaf. During an all-gather, the unsharded parameters would
// replace it.
void ShardGroup::refuse_replaced_leaves() {
  const Unsharding* gathered = std::get_if<Unsharding>(&buffers_);
  if (state() == GroupState::sharded || shows_shards() || (gathered && gathered->fills_slots)) return;
  const KeptShards* kept = gathered && gathered->source ? &*gathered->source : std::get_if<PostForward>(&buffers_);
  if (!kept) shards_->refuse_replaced_shards();
  for (std::size_t i = 0; i < shards_->num_parameters(); ++i) {
    const UnshardedParameter& parameter = shards_->parameter(i);
    const Tensor& held = kept ? kept->shown[i] : gathered ? shards_->shown(i) : parameter.leaf;
    for (const ParameterSlotRef& ref : parameter.slots) {
      if (ref.get().tensor.same_as(held)) continue;
      const Tensor put = std::exchange(ref.get().tensor, held);
      throw Error(str("`", parameter.name, "` of ", owner(), " was replaced by ",
                      put.defined() ? describe_sharded(put) : "nothing", " while it was ",
                      kept       ? "kept after forward"
                      : gathered ? "being gathered"
                                 : "unsharded"),
                  "reshard the module, then assign a tensor that is sharded as the parameter");
    }
  }
}

void ShardGroup::begin_unshard(bool after_compute) {
  refuse_replaced_leaves();
  if (shows_shards()) adopt_slots();
  bool changed = shards_->shards_changed();
  if (holds_stale_values()) reshard();
  if (Unsharded* unsharded = std::get_if<Unsharded>(&buffers_)) {
    shards_->show_unsharded();  // also where they are shown: parameters may have been frozen or thawed
    unsharded->shows_shards = false;
    return;
  }
  if (state() == GroupState::unsharding) return;
  if (state() == GroupState::sharded) {
    adopt_slots();
    changed = changed || shards_->shards_changed();  // a tensor that was put in a slot may just have been written
  }
  note_event(EventKind::unshard, owner(), settings().module);

  const NoGrad no_grad;
  const device::Device device = settings().device;
  const ShardStreams streams(device);
  Unsharding next{{}, settings().mesh.num_shards(), {}};
  if (state() == GroupState::sharded_post_forward) {
    next.source = std::get<PostForward>(buffers_);
    next.num_ranks = next.source->ranks;
  }
  const KeptShards* kept = next.source ? &*next.source : nullptr;
  // Copy-in has waited at the root's forward for all earlier writes of the shards. Later writes are on compute.
  if (after_compute || (changed && in_backward()))
    wait(WaitEdge::copy_in_for_shard_writes, streams.copy_in, device::stream(device, device::Role::compute));
  if (kept) wait(WaitEdge::copy_in_for_kept_shards, streams.copy_in, kept->written);
  GatherBuffers& buffers = next.buffers;
  {
    const device::StreamScope scope(streams.copy_in);
    const device::PurposeScope purpose(device::Purpose::communication, &owner());
    buffers.input = shards_->gather_input(kept);
  }
  wait(WaitEdge::all_gather_for_copy_in, streams.all_gather, streams.copy_in);
  context->wait_for_freed(settings().max_gathers_in_flight);
  context->free_used(streams, 1);
  {
    const device::StreamScope scope(streams.all_gather);
    const bool gathers = settings().mesh.is_sharded();
    if (gathers)
      for (const auto& hook : before_all_gather) hook();
    buffers.output = shards_->gather_output(buffers.input, next.num_ranks);
    if (gathers) buffers.work = all_gather(buffers, kept);
  }
  move_to(std::move(next));
}

comm::Work ShardGroup::all_gather(GatherBuffers& buffers, const KeptShards* kept) const {
  comm::Call call;
  call.family = comm::Family::data_parallel;
  call.async = true;
  call.stream = &device::current_stream(settings().device);
  call.owner = owner();
  comm::ProcessGroup& group = kept ? kept_group(kept->ranks) : settings().mesh.shard_group();
  return comm::all_gather(group, buffers.output, buffers.input, call);
}

// The consecutive ranks among which this rank keeps shards.
comm::ProcessGroup& ShardGroup::kept_group(int ranks) const {
  const comm::ProcessGroup& all = settings().mesh.shard_group();
  const int first = all.rank() / ranks * ranks;
  const std::vector<int> members(all.members().begin() + first, all.members().begin() + first + ranks);
  return comm::group_of(members, all.axis());
}

namespace {

void wait_for_gather(WaitEdge edge, device::Stream& compute, const GatherBuffers& buffers,
                     const ShardStreams& streams) {
  if (buffers.work.defined())
    wait(edge, compute, buffers.work);
  else
    wait(edge, compute, streams.all_gather);
}

}  // namespace

// ---- finish: copy-out ----
void ShardGroup::finish_unshard(bool keep_buffers) {
  if (state() != GroupState::unsharding) return;
  refuse_replaced_leaves();
  const ShardStreams streams(settings().device);
  const NoGrad no_grad;
  auto& [buffers, num_ranks, source, fills_slots] = std::get<Unsharding>(buffers_);
  device::Stream& compute = device::current_stream(settings().device);
  wait_for_gather(WaitEdge::compute_for_all_gather, compute, buffers, streams);
  fills_slots = true;
  if (source) source->shown.clear();  // only the slots keep them from here on
  const bool took_output = shards_->install_unsharded(buffers.output, num_ranks);
  buffers.metadata = shards_->take_gather_metadata();
  for (std::size_t i = 0; i < shards_->num_parameters(); ++i) {
    UnshardedParameter& parameter = shards_->parameter(i);
    if (!std::exchange(parameter.is_new_leaf, false)) continue;
    set_accumulator(  // must not own the group, which owns the leaf
        parameter.leaf,
        [weak = weak_from_this(), i](const Tensor&, const Tensor& gradient) {
          if (const auto group = weak.lock()) group->on_gradient(i, gradient);
        },
        true);
  }
  if (took_output) buffers.output = Tensor();
  buffers.copied_out = compute.record();
  context->free_gather_buffers(streams);
  context->gathered = std::move(buffers);
  if (!keep_buffers) context->free_gather_buffers(streams);
  move_to(Unsharded{});
}

// ---- an all-gather that is not used ----
bool ShardGroup::has_unused_gather() const {
  return state() == GroupState::unsharding && !defect_armed(Defect::shard_unused_gather_kept);
}

bool ShardGroup::gathers_out_of_shards() const {
  const Unsharding* gathered = std::get_if<Unsharding>(&buffers_);
  if (!gathered || !gathered->buffers.input.defined()) return false;
  return gathered->buffers.input.storage() == shards_->trained(0).storage();
}

void ShardGroup::free_unused_gather() {
  const ShardStreams streams(settings().device);
  GatherBuffers& buffers = std::get<Unsharding>(buffers_).buffers;
  device::Stream& compute = device::current_stream(settings().device);
  wait_for_gather(WaitEdge::compute_for_unused_all_gather, compute, buffers, streams);
  buffers.copied_out = compute.record();
  if (shards_->offloads())
    wait(WaitEdge::host_for_copy_in, device::current_stream(device::Device{}), buffers.copied_out);
  buffers.metadata = shards_->take_gather_metadata();
  buffers.free(streams);
}

void ShardGroup::drop_unused_gather() {
  note_event(EventKind::reshard, owner(), settings().module);
  free_unused_gather();
  shards_->install_shards();
  move_to(Sharded{});
}

}  // namespace lockstep::parallel
