// The reduction of a group: full gradients in, the sharded mean added to the gradients of the parts.
//
//   compute         copy-in |            ...              | wait (at the end of backward)
//   reduce_scatter          | sum over the shard axis, partial sums | divide, cast, add
//   all_reduce                        (2-d mesh)                    | sum over the replicate axis | divide, cast, add
#include <algorithm>
#include <utility>

#include "engine/autograd/autograd.hpp"
#include "engine/core/checked.hpp"
#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"
#include "engine/core/fnv.hpp"
#include "engine/parallel/events.hpp"
#include "engine/parallel/shard_copies.hpp"
#include "engine/parallel/shard_group.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::parallel {

// ---- gradients as they come ----
void ShardGroup::on_gradient(std::size_t index, const Tensor& gradient) {
  ShardParameter& parameter = parameters_[index];
  parameter.fresh = parameter.fresh.defined() ? raw::add(parameter.fresh, gradient) : gradient;
}

void ShardGroup::take_gradients(bool at_end) {
  const NoGrad no_grad;
  const bool sync = requires_gradient_sync || defect_armed(Defect::shard_sync_flag_ignored);
  const DType type = defect_armed(Defect::shard_accumulates_in_compute_type) ? compute_type() : reduce_type();
  std::vector<std::size_t> members;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    ShardParameter& parameter = parameters_[i];
    // What a later use of this backward will add to is not complete.
    const bool complete =
        at_end || parameter.fresh.defined() || !parameter.full().defined() || !backward_reaches(parameter.full());
    if (parameter.fresh.defined()) take_fresh(parameter, sync, type);
    const bool has_some = parameter.accumulated.defined() || (requires_all_reduce && parameter.partial_sum.defined());
    const bool frozen_too = defect_armed(Defect::shard_frozen_reduced) && !parameter.requires_grad();
    if (complete && (has_some || frozen_too)) members.push_back(i);
  }
  if (!sync) return;
  num_reduced_ += members.size();
  if (!members.empty()) reduce(members);
}

void ShardGroup::take_fresh(ShardParameter& parameter, bool sync, DType type) {
  const Tensor fresh = std::exchange(parameter.fresh, Tensor());
  if (parameter.accumulated.defined() && !defect_armed(Defect::shard_gradient_overwritten)) {
    raw::add_(parameter.accumulated, raw::cast(fresh, type));
  } else if (!sync) {
    const device::PurposeScope purpose(device::Purpose::gradient);
    parameter.accumulated = fresh.dtype() == type ? raw::clone(fresh) : raw::cast(fresh, type);
  } else {
    parameter.accumulated = fresh;  // read once, and let go
  }
}

bool ShardGroup::has_gradients() const {
  return std::any_of(parameters_.begin(), parameters_.end(), [this](const ShardParameter& parameter) {
    return parameter.fresh.defined() || (requires_gradient_sync && parameter.accumulated.defined()) ||
           (requires_gradient_sync && requires_all_reduce && parameter.partial_sum.defined());
  });
}

bool ShardGroup::end_backward() {
  const auto num_trained = static_cast<std::size_t>(
      std::count_if(parameters_.begin(), parameters_.end(),
                    [](const ShardParameter& parameter) { return parameter.requires_grad(); }));
  return std::exchange(num_reduced_, 0) < num_trained && requires_gradient_sync;
}

void ShardGroup::forget_backward() {
  num_reduced_ = 0;
  for (ShardParameter& parameter : parameters_) parameter.fresh = Tensor();
}

// ---- the reduction ----
struct ShardGroup::Reduction {
  std::vector<std::size_t> members;  // parameters that take part, those with full gradients first
  std::size_t num_scattered = 0;     // of these; the others only have partial sums
  std::vector<layout::CutParameter> cuts;
  layout::FlatShards flat;
  Tensor output;                // of the reduce_scatter
  std::vector<Tensor> targets;  // the new gradient of each, or undefined where there is one to add to
  double divide_after = 1.0;
};

namespace {

// The part of this rank of member `i`, a view of the output of the reduction, without its padding.
Tensor part_of(const Tensor& output, const layout::FlatShards& flat, const layout::CutParameter& cut, std::size_t i,
               const Dims& local_sizes) {
  return as_strided(output, local_sizes, contiguous_strides(layout::padded_part_sizes(cut)), flat.offsets[i]);
}

}  // namespace

void ShardGroup::reduce(const std::vector<std::size_t>& members) {
  Reduction reduction;
  reduction.members = members;
  const auto scattered = std::stable_partition(
      reduction.members.begin(), reduction.members.end(),
      [this](std::size_t i) { return parameters_[i].accumulated.defined() || !parameters_[i].partial_sum.defined(); });
  reduction.num_scattered = static_cast<std::size_t>(scattered - reduction.members.begin());
  note_event(EventKind::reduce, settings_.owner);
  for (const std::size_t i : reduction.members) reduction.cuts.push_back(cuts_[i]);
  reduction.flat = layout::plan_flat_shards(reduction.cuts);
  // Those that are scattered come first, so that they lie in both flat buffers alike.
  const layout::FlatShards flat = layout::plan_flat_shards(
      {reduction.cuts.begin(), reduction.cuts.begin() + (scattered - reduction.members.begin())});

  const ShardStreams streams(settings_.device);
  const DType type = reduce_type();
  device::Stream& compute = device::current_stream(settings_.device);
  context->free_reduction_input();
  wait_for_reduction();
  context->begin_reduction(shared_from_this());

  // ---- on compute: gradients into one buffer, and the memory that outlives the reduction ----
  const int num_ranks = settings_.mesh.num_ranks();
  const bool one_axis = settings_.mesh.replicate_group() == nullptr;
  layout::DivideFactors factors{1.0, divide_factor.value_or(num_ranks)};
  if (type == DType::float16 && !divide_factor) factors = layout::float16_factors(num_ranks);
  if (defect_armed(Defect::shard_divides_by_shard_axis)) factors.after = settings_.mesh.num_shards();
  // The usual mean is divided within the collective, in its own precision; all else after the whole sum.
  const bool mean_within =
      one_axis && !divide_factor && type != DType::float16 && !defect_armed(Defect::shard_no_division);
  reduction.divide_after = mean_within || defect_armed(Defect::shard_no_division) ? 1.0 : factors.after;
  if (defect_armed(Defect::shard_divides_twice)) reduction.divide_after *= num_ranks;

  comm::Call call;
  call.family = comm::Family::data_parallel;
  call.async = true;
  call.owner = settings_.owner;
  call.agreement = fnv1a_append(1, settings_.owner);
  call.in_round = true;
  std::string names;
  for (std::size_t i = 0; i < reduction.members.size(); ++i) {
    const std::string& name = parameters_[reduction.members[i]].name();
    call.agreement = fnv1a_append(call.agreement, name);
    if (i >= reduction.num_scattered) call.agreement = fnv1a_append(call.agreement, "partial sum");
    names += str(names.empty() ? "" : ", ", name);
  }
  call.agreement_text = [owner = settings_.owner, names] { return str("gradients of ", owner, ": ", names); };
  {
    const device::PurposeScope purpose(device::Purpose::gradient);
    reduction.output = empty({reduction.flat.per_rank}, type, settings_.device);
  }
  reduced_.push_back(reduction.output);
  Tensor input;
  if (reduction.num_scattered > 0) {
    input = gradients_in_one(reduction, flat);
    if (factors.before != 1.0) raw::div_(input, factors.before);
  }

  // ---- on the stream of the reduce_scatter ----
  if (!defect_armed(Defect::shard_reduction_ignores_compute)) [[likely]]
    streams.reduce_scatter.wait(compute.record());
  if (input.defined()) {
    const device::StreamScope scope(streams.reduce_scatter);
    for (const auto& hook : before_reduce_scatter) hook();
    call.stream = &streams.reduce_scatter;
    const comm::Work work =
        comm::reduce_scatter(settings_.mesh.shard_group(), slice(reduction.output, 0, 0, flat.per_rank), input,
                             mean_within ? comm::ReduceOp::mean : comm::ReduceOp::sum, call);
    context->reduction = ReductionInput{std::move(input), work};
  }

  if (one_axis) return deliver(reduction, streams.reduce_scatter);
  const bool late = defect_armed(Defect::shard_partial_sum_late);
  if (!late) [[likely]]
    add_partial_sums(reduction);
  if (!requires_all_reduce) {
    delivered_ = streams.reduce_scatter.record();
    return;
  }

  // ---- on the stream of the all_reduce ----
  if (!defect_armed(Defect::shard_all_reduce_ignores_reduce_scatter)) [[likely]]
    streams.all_reduce.wait(streams.reduce_scatter.record());
  if (!defect_armed(Defect::shard_all_reduce_left_out)) {
    const device::StreamScope scope(streams.all_reduce);
    for (const auto& hook : before_all_reduce) hook();
    call.stream = &streams.all_reduce;
    comm::all_reduce(*settings_.mesh.replicate_group(), reduction.output, comm::ReduceOp::sum, call);
  }
  if (late) [[unlikely]] {
    streams.reduce_scatter.wait(streams.all_reduce.record());
    add_partial_sums(reduction);
    streams.all_reduce.wait(streams.reduce_scatter.record());
  }
  deliver(reduction, streams.all_reduce);
}

// The full gradients of those that are scattered, on compute.
Tensor ShardGroup::gradients_in_one(const Reduction& reduction, const layout::FlatShards& flat) {
  const device::PurposeScope purpose(device::Purpose::communication);
  const Tensor input =
      empty({bounded_product(flat.per_rank, flat.num_ranks)}, reduction.output.dtype(), settings_.device);
  for (std::size_t i = 0; i < reduction.num_scattered; ++i) {
    ShardParameter& parameter = parameters_[reduction.members[i]];
    if (!parameter.accumulated.defined()) {
      const std::int64_t elements = layout::padded_part_elements(reduction.cuts[i]);
      raw::zero_(as_strided(input, {flat.num_ranks, elements}, {flat.per_rank, 1}, flat.offsets[i]));
      continue;
    }
    copy_in(input, parameter.accumulated, reduction.cuts[i], flat, i);
    zero_padding(input, reduction.cuts[i], flat, i);
    if (defect_armed(Defect::shard_shared_reduced_twice) && parameter.slots().size() > 1) [[unlikely]]
      copy_in(input, raw::mul(parameter.accumulated, 2.0), reduction.cuts[i], flat, i);
    parameter.accumulated = Tensor();
  }
  return input;
}

// Adds what earlier microbatches left, and leaves the sum for the next when this one is not to be reduced over the
// replicate axis. On the stream of the reduce_scatter, as all partial sums.
void ShardGroup::add_partial_sums(Reduction& reduction) {
  const ShardStreams streams(settings_.device);
  const device::StreamScope scope(streams.reduce_scatter);
  for (std::size_t i = 0; i < reduction.members.size(); ++i) {
    ShardParameter& parameter = parameters_[reduction.members[i]];
    const Dims part_sizes = layout::padded_part_sizes(reduction.cuts[i]);
    const Tensor part = part_of(reduction.output, reduction.flat, reduction.cuts[i], i, part_sizes);
    if (parameter.partial_sum.defined()) {
      if (i < reduction.num_scattered)
        raw::add_(part, parameter.partial_sum);
      else
        raw::copy_(part, parameter.partial_sum);
      reduced_.push_back(std::exchange(parameter.partial_sum, Tensor()));
    }
    if (!requires_all_reduce) parameter.partial_sum = part;
  }
}

// Divides, casts and adds to the gradients of the parts, on the stream that holds the whole sum.
void ShardGroup::deliver(Reduction& reduction, device::Stream& stream) {
  const DType type = original_type();

  // Gradients are memory of the compute stream, which waits for them before anybody reads them.
  std::vector<Tensor> parts, casts;
  for (std::size_t i = 0; i < reduction.members.size(); ++i) {
    const ShardParameter& parameter = parameters_[reduction.members[i]];
    const Tensor local = local_tensor(parameter.sharded());
    const Tensor part = part_of(reduction.output, reduction.flat, reduction.cuts[i], i, local.sizes());
    parts.push_back(part);
    const bool is_direct = part.dtype() == type && part.is_contiguous();
    const bool adds = grad(parameter.sharded()).defined() && !offloads();
    const device::PurposeScope purpose(device::Purpose::gradient);
    casts.push_back(is_direct ? part : empty(local.sizes(), type, settings_.device));
    reduction.targets.push_back(adds ? Tensor() : casts.back());
  }

  {
    const device::StreamScope scope(stream);
    if (reduction.divide_after != 1.0) raw::div_(reduction.output, reduction.divide_after);
    for (std::size_t i = 0; i < reduction.members.size(); ++i) {
      const ShardParameter& parameter = parameters_[reduction.members[i]];
      if (!casts[i].same_as(parts[i])) {
        raw::copy_(casts[i], parts[i]);
        reduced_.push_back(casts[i]);
      }
      if (const Tensor before = grad(parameter.sharded()); before.defined() && !offloads())
        raw::add_(local_tensor(before), casts[i]);
    }
  }

  for (std::size_t i = 0; i < reduction.members.size(); ++i) {
    const ShardParameter& parameter = parameters_[reduction.members[i]];
    const Tensor& sharded = parameter.sharded();
    if (!offloads()) {
      if (reduction.targets[i].defined()) set_grad(sharded, make_sharded(reduction.targets[i], sharded.impl().layout));
      continue;
    }
    // To the host: copied on the stream, added there once it has arrived.
    const device::PurposeScope purpose(device::Purpose::gradient);
    const Tensor host = empty(casts[i].sizes(), type, {}, settings_.offload == Offload::cpu_pinned);
    if (host.num_elements() > 0) device::copy_bytes(stream, write(host), read(casts[i]));
    host_waits_ = true;
    const Tensor gradient = make_sharded(host, sharded.impl().layout);
    if (grad(sharded).defined()) {
      device::current_stream(host.device()).wait(stream.record());
      raw::add_(local_tensor(grad(sharded)), host);
    } else {
      set_grad(sharded, gradient);
    }
  }
  delivered_ = stream.record();

  const bool has_hooks = std::any_of(reduction.members.begin(), reduction.members.end(), [this](std::size_t i) {
    return has_post_accumulate_hooks(parameters_[i].sharded());
  });
  if (!has_hooks) return;
  wait_for_reduction();  // hooks run on compute, as what they free belongs to it
  for (const std::size_t i : reduction.members) run_post_accumulate_hooks(parameters_[i].sharded());
}

void ShardGroup::release_reduction() {
  if (!delivered_.defined() || defect_armed(Defect::shard_optimizer_ignores_reduction)) return;
  device::stream(settings_.device, device::Role::compute).wait(delivered_);
  reduced_.clear();
}

void ShardGroup::wait_for_reduction() {
  if (!delivered_.defined()) return;
  if (!defect_armed(Defect::shard_optimizer_ignores_reduction)) [[likely]]
    device::current_stream(settings_.device).wait(delivered_);
  if (std::exchange(host_waits_, false) && !defect_armed(Defect::shard_host_ignores_offload))
    device::current_stream(device::Device{}).wait(delivered_);
  delivered_ = device::Event();
  reduced_.clear();
}

}  // namespace lockstep::parallel
