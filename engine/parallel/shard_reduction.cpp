// The reduction of a group: from full gradients to the sharded mean, which is added to the gradients of the shards.
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
#include "engine/parallel/waits.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::parallel {

// ---- gradients of a backward ----
void ShardGroup::on_gradient(std::size_t index, const Tensor& gradient) {
  ShardParameter& parameter = parameters_[index];
  FullGradient given{local_tensor(gradient), gradient.layout()};
  parameter.fresh = parameter.fresh.defined() ? sum_of(parameter.fresh, std::move(given)) : std::move(given);
}

// The sum of two gradients. Where only one of them is a partial sum, it is reduced first.
FullGradient ShardGroup::sum_of(FullGradient a, FullGradient b) const {
  make_addable(a, b);
  return {raw::add(a.local, b.local), a.layout};
}

void ShardGroup::make_addable(FullGradient& a, FullGradient& b) const {
  if (a.layout == b.layout || (a.layout && b.layout && *a.layout == *b.layout)) return;
  a = reduced_over_inner_axes(a, settings_.owner);
  b = reduced_over_inner_axes(b, settings_.owner);
}

bool ShardGroup::synchronizes_gradients() const {
  return requires_gradient_sync || defect_armed(Defect::shard_sync_flag_ignored);
}

DType ShardGroup::accumulation_type() const {
  if (defect_armed(Defect::shard_accumulates_in_compute_type)) [[unlikely]]
    return compute_type();
  return reduce_type();
}

// Whether a reduction includes the parameter.
bool ShardGroup::takes_part(const ShardParameter& parameter) const {
  if (defect_armed(Defect::shard_frozen_reduced) && !parameter.requires_grad()) [[unlikely]]
    return true;
  return parameter.accumulated.defined() || (requires_all_reduce && parameter.partial_sum.defined());
}

void ShardGroup::take_gradients(bool at_end) {
  const NoGrad no_grad;
  std::vector<std::size_t> members;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    ShardParameter& parameter = parameters_[i];
    // If this backward will reach the parameter again, its gradient is not complete.
    const bool complete = at_end || parameter.fresh.defined() || !parameter.unsharded().defined() ||
                          !backward_reaches(parameter.unsharded());
    if (parameter.fresh.defined()) accumulate_fresh(parameter);
    if (complete && takes_part(parameter)) members.push_back(i);
  }
  if (!synchronizes_gradients()) return;
  num_reduced_ += members.size();
  for (const std::size_t i : members) {
    FullGradient& gradient = parameters_[i].accumulated;
    if (gradient.defined()) gradient = reduced_over_inner_axes(gradient, settings_.owner);
  }
  if (!members.empty()) reduce(members);
}

namespace {

void add_gradient(Tensor& accumulated, const Tensor& fresh, DType type) {
  if (defect_armed(Defect::shard_gradient_overwritten)) [[unlikely]]
    accumulated = raw::cast(fresh, type);
  else
    raw::add_(accumulated, raw::cast(fresh, type));
}

}  // namespace

void ShardGroup::accumulate_fresh(ShardParameter& parameter) {
  const DType type = accumulation_type();
  FullGradient fresh = std::exchange(parameter.fresh, FullGradient());
  if (parameter.accumulated.defined()) {
    make_addable(parameter.accumulated, fresh);
    add_gradient(parameter.accumulated.local, fresh.local, type);
  } else if (!synchronizes_gradients()) {
    const device::PurposeScope purpose(device::Purpose::gradient);
    const Tensor& local = fresh.local;
    parameter.accumulated = {local.dtype() == type ? raw::clone(local) : raw::cast(local, type), fresh.layout};
  } else {
    parameter.accumulated = fresh;  // this reduction reads and drops it
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
  for (ShardParameter& parameter : parameters_) parameter.fresh = FullGradient();
}

// ---- the reduction ----
struct ShardGroup::Reduction {
  std::vector<std::size_t> members;  // indices of the parameters; the scattered ones come first
  std::size_t num_scattered = 0;     // those with full gradients; the others only have partial sums
  std::vector<layout::ShardedParameter> cuts;
  layout::FlatShards flat;       // of all members: the output
  layout::FlatShards scattered;  // of the scattered ones: the input. They have the same offsets in both.
  Division division;
  comm::Call call;  // of its collectives
  Tensor output;
  // Per member: its shard of the output, the same in the original type, and the new gradient (undefined where there is
  // one to add to).
  std::vector<Tensor> shards, casts, targets;
};

namespace {

// The shard of member `i`, a view of the output without the padding.
Tensor shard_of(const Tensor& output, const layout::FlatShards& flat, const layout::ShardedParameter& cut,
                std::size_t i, const Dims& local_sizes) {
  return as_strided(output, local_sizes, contiguous_strides(layout::padded_shard_sizes(cut)), flat.offsets[i]);
}

// The gradient that a parameter adds to the reduction: once, however many slots the parameter has.
Tensor contribution(const ShardParameter& parameter) {
  if (defect_armed(Defect::shard_shared_reduced_twice) && parameter.slots().size() > 1) [[unlikely]]
    return raw::mul(parameter.accumulated.local, 2.0);
  return parameter.accumulated.local;
}

}  // namespace

void ShardGroup::reduce(const std::vector<std::size_t>& members) {
  note_event(EventKind::reduce, settings_.owner);
  Reduction reduction = plan_reduction(members);
  context->free_reduction_inputs_for_next();
  wait_for_reduction();
  context->free_reduction_outputs_for_next(shared_from_this());
  {
    const device::PurposeScope purpose(device::Purpose::gradient);
    reduction.output = empty({reduction.flat.per_rank}, reduce_type(), settings_.device);
  }
  reduction_outputs_.push_back(reduction.output);
  reduce_scatter(reduction);

  const ShardStreams streams(settings_.device);
  if (settings_.mesh.replicate_group() == nullptr) return deliver(reduction, streams.reduce_scatter);
  if (!requires_all_reduce) {
    const device::StreamScope scope(streams.reduce_scatter);
    add_partial_sums(reduction);
    delivered_ = streams.reduce_scatter.record();
    return;
  }
  sum_over_replicate_axis(reduction);
  deliver(reduction, streams.all_reduce);
}

// The ranks of tensor parallelism hold shards of one gradient and are not counted.
int ShardGroup::num_ranks_of_mean() const {
  return defect_armed(Defect::shard_divides_by_all_axes) ? settings_.mesh.mesh.root_shape().num_ranks()
                                                         : settings_.mesh.num_ranks();
}

ShardGroup::Reduction ShardGroup::plan_reduction(const std::vector<std::size_t>& members) const {
  Reduction reduction;
  reduction.members = members;
  const auto scattered_end = std::stable_partition(
      reduction.members.begin(), reduction.members.end(),
      [this](std::size_t i) { return parameters_[i].accumulated.defined() || !parameters_[i].partial_sum.defined(); });
  const std::ptrdiff_t num_scattered = scattered_end - reduction.members.begin();
  reduction.num_scattered = static_cast<std::size_t>(num_scattered);
  for (const std::size_t i : reduction.members) reduction.cuts.push_back(cuts_[i]);
  reduction.flat = layout::make_flat_shards(reduction.cuts);
  reduction.scattered = layout::make_flat_shards({reduction.cuts.begin(), reduction.cuts.begin() + num_scattered});
  const ShardMesh& mesh = settings_.mesh;
  reduction.division = shard_division({.num_ranks = num_ranks_of_mean(),
                                       .num_shards = mesh.num_shards(),
                                       .replicates = mesh.replicate_group() != nullptr,
                                       .reduce_type = reduce_type(),
                                       .divide_factor = divide_factor});
  reduction.call = reduction_call(reduction);
  return reduction;
}

// Ranks compare a digest of the members, so that a rank with other gradients is an error instead of a wrong sum.
comm::Call ShardGroup::reduction_call(const Reduction& reduction) const {
  comm::Call call;
  call.family = comm::Family::data_parallel;
  call.async = true;
  call.owner = settings_.owner;
  call.content_digest = fnv1a_append(1, settings_.owner);
  call.in_round = true;
  std::string names;
  for (std::size_t i = 0; i < reduction.members.size(); ++i) {
    const std::string& name = parameters_[reduction.members[i]].name();
    call.content_digest = fnv1a_append(call.content_digest, name);
    if (i >= reduction.num_scattered) call.content_digest = fnv1a_append(call.content_digest, "partial sum");
    names += str(names.empty() ? "" : ", ", name);
  }
  call.content_text = [owner = settings_.owner, names] { return str("gradients of ", owner, ": ", names); };
  return call;
}

void ShardGroup::reduce_scatter(Reduction& reduction) {
  Tensor input;
  if (reduction.num_scattered > 0) {
    input = copy_in_gradients(reduction);
    if (reduction.division.before != 1.0) raw::div_(input, reduction.division.before);
  }
  const ShardStreams streams(settings_.device);
  wait(WaitEdge::reduce_scatter_for_gradients, streams.reduce_scatter, device::current_stream(settings_.device));
  if (!input.defined()) return;
  const device::StreamScope scope(streams.reduce_scatter);
  for (const auto& hook : before_reduce_scatter) hook();
  reduction.call.stream = &streams.reduce_scatter;
  const comm::ReduceOp op = reduction.division.within_collective ? comm::ReduceOp::mean : comm::ReduceOp::sum;
  const Tensor output = slice(reduction.output, 0, 0, reduction.scattered.per_rank);
  const comm::Work work = comm::reduce_scatter(settings_.mesh.shard_group(), output, input, op, reduction.call);
  context->reduction_inputs.push_back({std::move(input), work});
}

// The full gradients of the scattered members in one flat buffer, on compute.
Tensor ShardGroup::copy_in_gradients(const Reduction& reduction) {
  const device::PurposeScope purpose(device::Purpose::communication);
  const layout::FlatShards& flat = reduction.scattered;
  const Tensor input =
      empty({bounded_product(flat.per_rank, flat.num_ranks)}, reduction.output.dtype(), settings_.device);
  for (std::size_t i = 0; i < reduction.num_scattered; ++i) {
    ShardParameter& parameter = parameters_[reduction.members[i]];
    if (!parameter.accumulated.defined()) {
      const std::int64_t elements = layout::padded_shard_elements(reduction.cuts[i]);
      raw::zero_(as_strided(input, {flat.num_ranks, elements}, {flat.per_rank, 1}, flat.offsets[i]));
      continue;
    }
    copy_in(input, contribution(parameter), reduction.cuts[i], flat, i);
    zero_padding(input, reduction.cuts[i], flat, i);
    parameter.accumulated = FullGradient();
  }
  return input;
}

// ---- the replicate axis of a 2-d mesh ----
// Partial sums of earlier microbatches are part of the sum over the replicate axis.
void ShardGroup::sum_over_replicate_axis(Reduction& reduction) {
  const ShardStreams streams(settings_.device);
  if (defect_armed(Defect::shard_partial_sum_late)) [[unlikely]] {
    all_reduce(reduction);
    const device::StreamScope scope(streams.all_reduce);
    return add_partial_sums(reduction);
  }
  {
    const device::StreamScope scope(streams.reduce_scatter);
    add_partial_sums(reduction);
  }
  all_reduce(reduction);
}

void ShardGroup::all_reduce(Reduction& reduction) {
  const ShardStreams streams(settings_.device);
  wait(WaitEdge::all_reduce_for_reduce_scatter, streams.all_reduce, streams.reduce_scatter);
  if (defect_armed(Defect::shard_all_reduce_left_out)) [[unlikely]]
    return;
  const device::StreamScope scope(streams.all_reduce);
  for (const auto& hook : before_all_reduce) hook();
  reduction.call.stream = &streams.all_reduce;
  comm::all_reduce(*settings_.mesh.replicate_group(), reduction.output, comm::ReduceOp::sum, reduction.call);
}

// On the current stream: adds the partial sums of earlier microbatches to the output. If this reduction is not
// all-reduced, the sums become the new partial sums.
void ShardGroup::add_partial_sums(const Reduction& reduction) {
  for (std::size_t i = 0; i < reduction.members.size(); ++i) {
    ShardParameter& parameter = parameters_[reduction.members[i]];
    const Dims padded_sizes = layout::padded_shard_sizes(reduction.cuts[i]);
    const Tensor shard = shard_of(reduction.output, reduction.flat, reduction.cuts[i], i, padded_sizes);
    if (parameter.partial_sum.defined()) {
      if (i < reduction.num_scattered)
        raw::add_(shard, parameter.partial_sum);
      else
        raw::copy_(shard, parameter.partial_sum);
      reduction_outputs_.push_back(std::exchange(parameter.partial_sum, Tensor()));
    }
    if (!requires_all_reduce) parameter.partial_sum = shard;
  }
}

// ---- delivery: from the complete sum to the gradients of the shards ----
// `stream` holds the complete sum. Gradients are memory of the compute stream, which waits before they are read.
void ShardGroup::deliver(Reduction& reduction, device::Stream& stream) {
  allocate_targets(reduction);
  {
    const device::StreamScope scope(stream);
    if (reduction.division.after != 1.0) raw::div_(reduction.output, reduction.division.after);
    write_targets(reduction);
  }
  for (std::size_t i = 0; i < reduction.members.size(); ++i) {
    const Tensor& sharded = parameters_[reduction.members[i]].sharded();
    if (offloads())
      offload_gradient(parameters_[reduction.members[i]], reduction.casts[i], stream);
    else if (reduction.targets[i].defined())
      set_grad(sharded, make_sharded(reduction.targets[i], sharded.layout()));
  }
  delivered_ = stream.record();

  const bool has_hooks = std::any_of(reduction.members.begin(), reduction.members.end(), [this](std::size_t i) {
    return has_post_accumulate_hooks(parameters_[i].sharded());
  });
  if (!has_hooks) return;
  wait_for_reduction();  // the hooks run on compute, and free its memory
  for (const std::size_t i : reduction.members) run_post_accumulate_hooks(parameters_[i].sharded());
}

void ShardGroup::allocate_targets(Reduction& reduction) const {
  const DType type = original_type();
  const device::PurposeScope purpose(device::Purpose::gradient);
  for (std::size_t i = 0; i < reduction.members.size(); ++i) {
    const ShardParameter& parameter = parameters_[reduction.members[i]];
    const Tensor local = local_tensor(parameter.sharded());
    const Tensor shard = shard_of(reduction.output, reduction.flat, reduction.cuts[i], i, local.sizes());
    const bool needs_no_cast = shard.dtype() == type && shard.is_contiguous();
    const bool adds = grad(parameter.sharded()).defined() && !offloads();
    reduction.shards.push_back(shard);
    reduction.casts.push_back(needs_no_cast ? shard : empty(local.sizes(), type, settings_.device));
    reduction.targets.push_back(adds ? Tensor() : reduction.casts.back());
  }
}

// On the current stream: casts, and adds to gradients of earlier backwards.
void ShardGroup::write_targets(const Reduction& reduction) {
  for (std::size_t i = 0; i < reduction.members.size(); ++i) {
    const ShardParameter& parameter = parameters_[reduction.members[i]];
    const Tensor& cast = reduction.casts[i];
    if (!cast.same_as(reduction.shards[i])) {
      raw::copy_(cast, reduction.shards[i]);
      reduction_outputs_.push_back(cast);
    }
    if (const Tensor before = grad(parameter.sharded()); before.defined() && !offloads())
      raw::add_(local_tensor(before), cast);
  }
}

// Copies a gradient to the host on `stream`. The host adds it to a gradient of earlier backwards.
void ShardGroup::offload_gradient(const ShardParameter& parameter, const Tensor& gradient, device::Stream& stream) {
  const device::PurposeScope purpose(device::Purpose::gradient);
  const Tensor& sharded = parameter.sharded();
  const Tensor host = empty(gradient.sizes(), gradient.dtype(), {}, settings_.offload == Offload::cpu_pinned);
  if (host.num_elements() > 0) device::copy_bytes(stream, write(host), read(gradient));
  host_waits_ = true;
  if (!grad(sharded).defined()) return set_grad(sharded, make_sharded(host, sharded.layout()));
  wait(WaitEdge::host_add_for_offload, device::current_stream(host.device()), stream);
  raw::add_(local_tensor(grad(sharded)), host);
}

// ---- waiting for it ----
void ShardGroup::free_reduction_outputs() {
  if (!delivered_.defined()) return;
  wait(WaitEdge::compute_for_earlier_reduction, device::stream(settings_.device, device::Role::compute), delivered_);
  reduction_outputs_.clear();
}

void ShardGroup::wait_for_reduction() {
  if (!delivered_.defined()) return;
  wait(WaitEdge::compute_for_reduction, device::current_stream(settings_.device), delivered_);
  if (std::exchange(host_waits_, false))
    wait(WaitEdge::host_for_offload, device::current_stream(device::Device{}), delivered_);
  delivered_ = device::Event();
  reduction_outputs_.clear();
}

}  // namespace lockstep::parallel
