// States and gathers of a group; its reduction is in shard_reduction.cpp.
#include "engine/parallel/shard_group.hpp"

#include <algorithm>
#include <utility>

#include "engine/autograd/autograd.hpp"
#include "engine/core/checked.hpp"
#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"
#include "engine/parallel/events.hpp"
#include "engine/parallel/shard_copies.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::parallel {

const char* name_of(GroupState state) {
  static constexpr const char* names[] = {"sharded", "kept", "gathering", "unsharded"};
  return names[static_cast<int>(state)];
}

ShardGroup::ShardGroup(GroupSettings settings, std::vector<ShardParameter> parameters)
    : context(std::make_shared<ShardContext>()), settings_(std::move(settings)), parameters_(std::move(parameters)) {
  for (const ShardParameter& parameter : parameters_) cuts_.push_back(parameter.cut());
}

ShardGroup::~ShardGroup() = default;

void ShardGroup::move_to(GroupState next) {
  using enum GroupState;
  const bool allowed = (next == gathering && (state_ == sharded || state_ == kept)) ||
                       (next == unsharded && state_ == gathering) || (next == kept && state_ == unsharded) ||
                       next == sharded;
  LOCKSTEP_CHECK(allowed, "group ", settings_.owner, " cannot go from ", name_of(state_), " to ", name_of(next));
  state_ = next;
}

// ---- what it is made of ----
bool ShardGroup::offloads() const {
  return settings_.offload != Offload::none && settings_.device.kind != device::Kind::cpu;
}

DType ShardGroup::original_type() const { return parameters_.front().sharded().dtype(); }

DType ShardGroup::compute_type() const {
  if (defect_armed(Defect::shard_cast_left_out)) [[unlikely]]
    return original_type();
  return settings_.mixed_precision.param.value_or(original_type());
}

DType ShardGroup::reduce_type() const { return settings_.mixed_precision.reduce.value_or(compute_type()); }

std::vector<std::string> ShardGroup::names_on_meta() const {
  std::vector<std::string> names;
  for (const ShardParameter& parameter : parameters_)
    if (parameter.slots().front().get().tensor.is_meta()) names.push_back(settings_.owner + "." + parameter.name());
  return names;
}

void ShardGroup::adopt_slots() {
  for (ShardParameter& parameter : parameters_) parameter.adopt_slots();
  const device::Device at = offloads() ? device::Device{} : settings_.device;
  for (const ShardParameter& parameter : parameters_) {
    if (parameter.sharded().dtype() != original_type())
      throw Error(str("FSDP expects uniform original parameter dtype: the parameters of ", settings_.owner,
                      " have the types ", name_of(original_type()), " (", parameters_.front().name(), ") and ",
                      name_of(parameter.sharded().dtype()), " (", parameter.name(), ")"),
                  "a group has one type: cast them, or shard the modules apart");
    if (!(parameter.sharded().device() == at))
      throw Error(
          str(offloads() ? "FSDP parameters should be materialized on CPU when enabling CPU offloading: `"
                         : "fully_shard: `",
              parameter.name(), "` of ", settings_.owner, " is on ", device::to_text(parameter.sharded().device()),
              ", the group keeps its parts on ", device::to_text(at)),
          offloads() ? "with offload, parameters and loaded values stay on the cpu"
                     : "move the module there before the first forward");
  }
}

// ---- gather ----
void ShardGroup::fill_gather_input(const Tensor& input, const layout::FlatShards& flat) {
  std::int64_t left_out = 0;  // of a seeded defect
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (state_ == GroupState::kept) {
      raw::copy_(slice(input, 0, flat.offsets[i], flat.offsets[i] + kept_.pieces[i].num_elements()), kept_.pieces[i]);
      continue;
    }
    const Tensor part = local_tensor(parameters_[i].sharded());
    const Dims padded = layout::padded_part_sizes(cuts_[i]);
    if (part.num_elements() == 0) {
      if (defect_armed(Defect::shard_empty_part_offset)) [[unlikely]]
        left_out += num_elements(padded);
      continue;
    }
    const Tensor to = as_strided(input, part.sizes(), contiguous_strides(padded), flat.offsets[i] - left_out);
    if (!offloads()) {
      raw::copy_(to, part);
    } else if (to.dtype() == part.dtype() && to.is_contiguous() && part.is_contiguous()) {
      device::copy_bytes(device::current_stream(settings_.device), write(to), read(part));
    } else {
      const Tensor there = empty(part.sizes(), part.dtype(), settings_.device);
      device::copy_bytes(device::current_stream(settings_.device), write(there), read(raw::contiguous(part)));
      raw::copy_(to, there);
    }
  }
}

void ShardGroup::begin_unshard(bool after_compute) {
  const bool holds_values = state_ == GroupState::unsharded || state_ == GroupState::kept;
  const bool changed = std::any_of(parameters_.begin(), parameters_.end(),
                                   [](const ShardParameter& parameter) { return parameter.is_stale(); });
  if (holds_values && changed && !defect_armed(Defect::shard_stale_after_evaluation)) reshard();
  if (state_ == GroupState::gathering || state_ == GroupState::unsharded) return;
  if (state_ == GroupState::sharded) adopt_slots();
  note_event(EventKind::unshard, settings_.owner);

  const ShardStreams streams(settings_.device);
  const NoGrad no_grad;
  const bool from_kept = state_ == GroupState::kept;
  const int parts_per_rank = from_kept ? settings_.mesh.num_shards() / gather_ranks_ : 1;
  comm::ProcessGroup& group = from_kept ? kept_group() : settings_.mesh.shard_group();
  const layout::FlatShards flat = layout::plan_flat_shards(cuts_, parts_per_rank);

  // A root's forward has waited for what wrote the parts before it; what wrote them since is on compute.
  if ((after_compute || (changed && in_backward())) && !defect_armed(Defect::shard_unshard_ignores_compute))
    streams.copy_in.wait(device::stream(settings_.device, device::Role::compute).record());
  if (from_kept && !defect_armed(Defect::shard_gather_ignores_kept_parts)) streams.copy_in.wait(kept_.written);
  GatherBuffers buffers;
  {
    const device::StreamScope scope(streams.copy_in);
    const device::PurposeScope purpose(device::Purpose::communication);
    if (!from_kept && has_extensions()) {
      buffers.input = pack_extended();
    } else {
      buffers.input = empty({flat.per_rank}, compute_type(), settings_.device);
      fill_gather_input(buffers.input, flat);
    }
  }
  if (!defect_armed(Defect::shard_gather_ignores_copy_in)) streams.all_gather.wait(streams.copy_in.record());
  {
    const device::StreamScope scope(streams.all_gather);
    const device::PurposeScope purpose(device::Purpose::communication);
    for (const auto& hook : before_all_gather) hook();
    buffers.output = empty({checked_multiply(buffers.input.size(0), flat.num_ranks, "all_gather of a group")},
                           buffers.input.dtype(), settings_.device);
    comm::Call call;
    call.family = comm::Family::data_parallel;
    call.async = true;
    call.stream = &streams.all_gather;
    call.owner = settings_.owner;
    buffers.work = comm::all_gather(group, buffers.output, buffers.input, call);
  }
  gather_ = std::move(buffers);
  if (!from_kept) gather_ranks_ = 0;
  move_to(GroupState::gathering);
}

void ShardGroup::finish_unshard(bool keep_buffers) {
  if (state_ != GroupState::gathering) return;
  const ShardStreams streams(settings_.device);
  const NoGrad no_grad;
  device::Stream& compute = device::current_stream(settings_.device);
  if (!defect_armed(Defect::shard_compute_ignores_gather)) [[likely]]
    gather_->work.wait(compute);
  const int parts_per_rank = gather_ranks_ == 0 ? 1 : settings_.mesh.num_shards() / gather_ranks_;
  const layout::FlatShards flat = layout::plan_flat_shards(cuts_, parts_per_rank);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    ShardParameter& parameter = parameters_[i];
    const bool is_new = !parameter.full().defined();
    const Tensor before = parameter.full();
    const Tensor memory = parameter.attach_full(compute_type(), settings_.device);
    if (sent_.empty())
      copy_out(memory, gather_->output, cuts_[i], flat, i);
    else
      unpack_extended(i, gather_->output, memory);
    if (is_new || !parameter.full().same_as(before))
      // The tensor must not keep the group alive, which holds it.
      set_accumulator(parameter.full(), [weak = weak_from_this(), i](const Tensor&, const Tensor& gradient) {
        if (const auto group = weak.lock()) group->on_gradient(i, gradient);
      });
    parameter.show_full();
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

void ShardGroup::drop_unused_gather() {
  if (state_ != GroupState::gathering) return;
  const ShardStreams streams(settings_.device);
  device::Stream& compute = device::current_stream(settings_.device);
  gather_->work.wait(compute);
  gather_->copied_out = compute.record();
  gather_->free(streams);
  gather_.reset();
  sent_.clear();
  reshard();
}

// ---- reshard ----
void ShardGroup::reshard() {
  if (state_ == GroupState::sharded) return;
  if (state_ == GroupState::gathering && gather_) return drop_unused_gather();
  note_event(EventKind::reshard, settings_.owner);
  for (ShardParameter& parameter : parameters_) {
    parameter.release_full("sharded");
    parameter.show_sharded();
  }
  kept_ = {};
  gather_ranks_ = 0;
  move_to(GroupState::sharded);
}

int ShardGroup::ranks_to_keep() const {
  const ReshardAfterForward& how = settings_.reshard_after_forward;
  return how.kind == ReshardAfterForward::Kind::among ? how.ranks : 0;
}

void ShardGroup::set_reshard_after_forward(const ReshardAfterForward& value) {
  settings_.reshard_after_forward = value;
}

void ShardGroup::reshard_after_forward() {
  if (state_ != GroupState::unsharded) return;
  using Kind = ReshardAfterForward::Kind;
  const Kind kind = settings_.reshard_after_forward.kind;
  if (kind == Kind::no) {
    const bool anyway =
        is_root ? defect_armed(Defect::shard_root_resharded) : defect_armed(Defect::shard_reshard_too_often);
    if (!anyway) [[likely]]
      return;
  } else if (defect_armed(Defect::shard_reshard_forgotten)) [[unlikely]] {
    return;
  }
  if (const int ranks = ranks_to_keep(); ranks > 1 && ranks < settings_.mesh.num_shards())
    keep_parts(ranks);
  else
    reshard();
}

comm::ProcessGroup& ShardGroup::kept_group() const {
  const comm::ProcessGroup& all = settings_.mesh.shard_group();
  const int first = all.rank() / gather_ranks_ * gather_ranks_;
  const std::vector<int> members(all.members().begin() + first, all.members().begin() + first + gather_ranks_);
  return comm::group_of(members, all.axis());
}

// Each of `ranks` consecutive ranks keeps as many of the padded parts, in the order of the gathered buffer, so that the
// gather among them gives the same buffer. What the slots show is cut without that padding.
void ShardGroup::keep_parts(int ranks) {
  note_event(EventKind::reshard, settings_.owner);
  const NoGrad no_grad;
  const device::PurposeScope purpose(device::Purpose::gathered);
  gather_ranks_ = ranks;
  const comm::ProcessGroup& group = settings_.mesh.shard_group();
  const int parts_per_rank = settings_.mesh.num_shards() / ranks;
  const int place = group.rank() % ranks;
  const layout::MeshShape mesh({settings_.mesh.num_shards() / ranks, ranks}, {"kept_replicate", "kept_shard"},
                               group.members());
  kept_.pieces.clear();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    ShardParameter& parameter = parameters_[i];
    const layout::CutParameter& cut = cuts_[i];
    const std::int64_t part_elements = layout::padded_part_elements(cut);
    const Tensor piece = empty({checked_multiply(part_elements, parts_per_rank, "shards kept of a group")},
                               compute_type(), settings_.device);
    // The parts of this rank, as the flat buffer of a gather of this parameter alone would hold them.
    const Dims part_sizes = layout::padded_part_sizes(cut);
    const Tensor whole = detach(parameter.full());
    for (int number = 0; number < parts_per_rank; ++number) {
      const layout::Chunk at = layout::chunk(cut.sizes[cut.dim], cut.parts, place * parts_per_rank + number);
      const Tensor to =
          as_strided(piece, part_sizes, contiguous_strides(part_sizes), bounded_product(part_elements, number));
      if (at.length < part_sizes[cut.dim] && part_elements > 0)
        raw::zero_(slice(to, cut.dim, at.length, part_sizes[cut.dim]));
      if (at.length > 0)
        raw::copy_(slice(to, cut.dim, 0, at.length), slice(whole, cut.dim, at.begin, at.begin + at.length));
    }
    kept_.pieces.push_back(piece);

    const layout::ShardedLayout layout{mesh, {layout::replicate(), layout::shard(cut.dim)}, cut.sizes};
    const layout::Chunk mine = layout::chunk(cut.sizes[cut.dim], ranks, place);
    const Tensor shown = slice(whole, cut.dim, mine.begin, mine.begin + mine.length);
    const bool even = cut.dim == 0 && cut.sizes[0] % cut.parts == 0;
    const Tensor local = even ? view(piece, shown.sizes()) : raw::clone(shown);
    const Tensor kept = make_sharded(local, layout);
    kept.set_name(parameter.sharded().name());
    if (parameter.requires_grad()) set_requires_grad(kept, true);
    parameter.release_full("kept in parts after forward");
    parameter.show(kept);
  }
  kept_.written = device::current_stream(settings_.device).record();
  move_to(GroupState::kept);
}

}  // namespace lockstep::parallel
