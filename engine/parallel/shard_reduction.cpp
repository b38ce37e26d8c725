// The reduction of a group: from full gradients to the sharded mean, which is added to the gradients of the shards.
//
//   compute         copy-in |            ...              | wait (at the end of backward)
//   reduce_scatter          | sum over the shard axis, partial sums | divide, cast, add
//   all_reduce                        (2-d mesh)                    | sum over the replicate axis | divide, cast, add
#include <algorithm>
#include <utility>

#include "engine/autograd/autograd.hpp"
#include "engine/autograd/grad_of_peers.hpp"
#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"
#include "engine/core/fnv.hpp"
#include "engine/parallel/events.hpp"
#include "engine/parallel/shard_group.hpp"
#include "engine/parallel/waits.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::parallel {

// ---- gradients of a backward ----
void ShardGroup::on_gradient(std::size_t index, const Tensor& gradient) {
  UnshardedParameter& parameter = shards_->parameter(index);
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
  a = reduced_over_inner_axes(a, owner());
  b = reduced_over_inner_axes(b, owner());
}

bool ShardGroup::synchronizes_gradients() const {
  return requires_gradient_sync || defect_armed(Defect::shard_sync_flag_ignored);
}

namespace {

// Whether this backward adds nothing to the gradient any more.
bool is_complete(const UnshardedParameter& parameter) {
  return parameter.fresh.defined() || !backward_reaches(parameter.leaf);
}

}  // namespace

bool ShardGroup::awaits_gradients() const {
  for (std::size_t i = 0; i < shards_->num_parameters(); ++i)
    if (!is_complete(std::as_const(*shards_).parameter(i))) return true;
  return false;
}

void ShardGroup::take_gradients(bool at_end) {
  const NoGrad no_grad;
  std::vector<bool> complete;
  for (std::size_t i = 0; i < shards_->num_parameters(); ++i) {
    UnshardedParameter& parameter = shards_->parameter(i);
    complete.push_back(at_end || is_complete(parameter));
    if (shards_->gradients_follow_trained() && !parameter.requires_grad()) parameter.fresh = FullGradient();
    if (parameter.fresh.defined()) accumulate_fresh(parameter);
  }
  if (!synchronizes_gradients()) return note_gradients_kept_back();
  ReductionPlan plan = shards_->plan_reduction(complete, requires_all_reduce);
  if (plan.members.empty()) return;
  num_reduced_ += plan.members.size();
  const std::vector<std::size_t> members = plan.members;
  try {
    for (const std::size_t i : members) {
      FullGradient& gradient = shards_->parameter(i).accumulated;
      gradient = reduced_over_inner_axes(gradient, owner());
    }
    reduce(std::move(plan));
  } catch (...) {  // gradients that a failed reduction leaves would be in the sum of the next one
    for (const std::size_t i : members) shards_->parameter(i).accumulated = FullGradient();
    throw;
  }
}

namespace {

void add_gradient(Tensor& accumulated, const Tensor& fresh, DType type) {
  if (defect_armed(Defect::shard_gradient_overwritten)) [[unlikely]]
    accumulated = raw::cast(fresh, type);
  else
    raw::add_(accumulated, raw::cast(fresh, type));
}

}  // namespace

void ShardGroup::accumulate_fresh(UnshardedParameter& parameter) {
  const DType type = shards_->accumulation_type();
  FullGradient fresh = std::exchange(parameter.fresh, FullGradient());
  if (parameter.accumulated.defined()) {
    make_addable(parameter.accumulated, fresh);
    add_gradient(parameter.accumulated.local, fresh.local, type);
  } else if (!synchronizes_gradients()) {
    const device::PurposeScope purpose(device::Purpose::gradient, &owner());
    const Tensor& local = fresh.local;
    parameter.accumulated = {local.dtype() == type ? raw::clone(local) : raw::cast(local, type), fresh.layout};
  } else {
    parameter.accumulated = fresh;  // this reduction reads and drops it
  }
}

void ShardGroup::note_gradients_kept_back() {
  if (!shards_->gradients_follow_trained()) return;
  for (std::size_t i = 0; i < shards_->num_parameters(); ++i) {
    if (!shards_->parameter(i).accumulated.defined()) continue;
    const auto forget = [weak = weak_from_this(), i] {  // must not own the group, which owns the tensor
      if (const auto group = weak.lock()) group->forget_gradient_kept_back(i);
    };
    keep_back(shards_->trained(i), {Tensor(), forget});
  }
}

// All parameters of a flat chunk are trained as one tensor.
void ShardGroup::forget_gradient_kept_back(std::size_t index) {
  for (std::size_t i = 0; i < shards_->num_parameters(); ++i)
    if (shards_->trained(i).same_as(shards_->trained(index))) shards_->parameter(i).accumulated = FullGradient();
}

bool ShardGroup::has_gradients() const {
  for (std::size_t i = 0; i < shards_->num_parameters(); ++i) {
    const UnshardedParameter& parameter = shards_->parameter(i);
    if (parameter.fresh.defined() || (requires_gradient_sync && parameter.accumulated.defined())) return true;
  }
  if (!requires_gradient_sync || !requires_all_reduce) return false;
  for (std::size_t i = 0; i < shards_->num_trained(); ++i)
    if (shards_->partial_sum(i).defined()) return true;
  return false;
}

bool ShardGroup::end_backward() {
  std::size_t num_trained = 0;
  for (std::size_t i = 0; i < shards_->num_parameters(); ++i)
    if (shards_->parameter(i).requires_grad()) ++num_trained;
  return std::exchange(num_reduced_, 0) < num_trained && requires_gradient_sync;
}

void ShardGroup::forget_backward() {
  num_reduced_ = 0;
  for (std::size_t i = 0; i < shards_->num_parameters(); ++i) shards_->parameter(i).fresh = FullGradient();
}

// ---- the reduction ----
struct ShardGroup::Reduction {
  ReductionPlan plan;
  Division division;
  comm::Call call;  // of its collectives
  Tensor output;
  // Per piece: its part of the output, the same in the original type, and whether that is added to an earlier gradient
  // instead of being the new one.
  std::vector<Tensor> shards, casts;
  std::vector<bool> adds;
};

namespace {

// A piece of the output, with or without its padding.
Tensor part_of(const Tensor& output, const ReducedPiece& piece, const Dims& sizes) {
  return as_strided(output, sizes, contiguous_strides(piece.padded_sizes), output.offset() + piece.offset);
}

}  // namespace

void ShardGroup::reduce(ReductionPlan plan) {
  note_event(EventKind::reduce, owner(), settings().module);
  Reduction reduction;
  reduction.plan = std::move(plan);
  reduction.division = division();
  reduction.call = reduction_call(reduction.plan);
  context->free_reduction_inputs_for_next();
  wait_for_reduction();
  context->free_reduction_outputs_for_next(shared_from_this());
  reduce_scatter(reduction);
  reduction_outputs_.push_back(reduction.output);

  const ShardStreams streams(settings().device);
  if (settings().mesh.replicate_group() == nullptr) return deliver(reduction, streams.reduce_scatter);
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
  return defect_armed(Defect::shard_divides_by_all_axes) ? settings().mesh.mesh.root_shape().num_ranks()
                                                         : settings().mesh.num_ranks();
}

Division ShardGroup::division() const {
  const ShardMesh& mesh = settings().mesh;
  return shards_->division({.num_ranks = num_ranks_of_mean(),
                            .num_shards = mesh.num_shards(),
                            .replicates = mesh.replicate_group() != nullptr,
                            .reduce_type = shards_->reduce_type(),
                            .divide_factor = divide_factor});
}

// Ranks compare a digest of the members, so that a rank with other gradients is an error instead of a wrong sum.
comm::Call ShardGroup::reduction_call(const ReductionPlan& plan) const {
  comm::Call call;
  call.family = comm::Family::data_parallel;
  call.async = true;
  call.owner = owner();
  call.content_digest = fnv1a_append(1, owner());
  call.in_round = true;
  std::string names;
  for (std::size_t i = 0; i < plan.members.size(); ++i) {
    const std::string& name = shards_->parameter(plan.members[i]).name;
    call.content_digest = fnv1a_append(call.content_digest, name);
    if (i >= plan.num_scattered) call.content_digest = fnv1a_append(call.content_digest, "partial sum");
    names += str(names.empty() ? "" : ", ", name);
  }
  call.content_text = [owner = owner(), names] { return str("gradients of ", owner, ": ", names); };
  return call;
}

// The sum over the shard axis. On a mesh that does not shard, the flat gradients of this rank are its result.
void ShardGroup::reduce_scatter(Reduction& reduction) {
  const ShardStreams streams(settings().device);
  device::Stream& compute = device::current_stream(settings().device);
  if (!settings().mesh.is_sharded()) {
    reduction.output = fill_input(reduction, device::Purpose::gradient);
    return wait(WaitEdge::reduce_scatter_for_gradients, streams.reduce_scatter, compute);
  }
  {
    const device::PurposeScope purpose(device::Purpose::gradient, &owner());
    reduction.output = empty({reduction.plan.output_elements}, shards_->reduce_type(), settings().device);
  }
  Tensor input;
  if (reduction.plan.num_scattered > 0) input = fill_input(reduction, device::Purpose::communication);
  wait(WaitEdge::reduce_scatter_for_gradients, streams.reduce_scatter, compute);
  if (!input.defined()) return;
  const device::StreamScope scope(streams.reduce_scatter);
  for (const auto& hook : before_reduce_scatter) hook();
  reduction.call.stream = &streams.reduce_scatter;
  const comm::ReduceOp op = reduction.division.within_collective ? comm::ReduceOp::mean : comm::ReduceOp::sum;
  const Tensor output = slice(reduction.output, 0, 0, reduction.plan.scattered_elements);
  const comm::Work work = comm::reduce_scatter(settings().mesh.shard_group(), output, input, op, reduction.call);
  context->reduction_inputs.push_back({std::move(input), work});
}

// The full gradients of the scattered members in one flat buffer, on compute.
Tensor ShardGroup::fill_input(const Reduction& reduction, device::Purpose purpose) {
  const device::PurposeScope scope(purpose, &owner());
  Tensor input = empty({reduction.plan.input_elements}, shards_->reduce_type(), settings().device);
  shards_->fill_reduction_input(reduction.plan, input);
  if (reduction.division.before != 1.0) raw::div_(input, reduction.division.before);
  return input;
}

// ---- the replicate axis of a 2-d mesh ----
// Partial sums of earlier microbatches are part of the sum over the replicate axis.
void ShardGroup::sum_over_replicate_axis(Reduction& reduction) {
  const ShardStreams streams(settings().device);
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

namespace {

comm::ProcessGroup& group_of_all_reduce(const ShardMesh& mesh) {
  if (defect_armed(Defect::flat_hybrid_wrong_axis) && mesh.is_sharded()) [[unlikely]]
    return mesh.shard_group();
  return *mesh.replicate_group();
}

}  // namespace

void ShardGroup::all_reduce(Reduction& reduction) {
  const ShardStreams streams(settings().device);
  wait(WaitEdge::all_reduce_for_reduce_scatter, streams.all_reduce, streams.reduce_scatter);
  if (defect_armed(Defect::shard_all_reduce_left_out)) [[unlikely]]
    return;
  const device::StreamScope scope(streams.all_reduce);
  for (const auto& hook : before_all_reduce) hook();
  reduction.call.stream = &streams.all_reduce;
  comm::all_reduce(group_of_all_reduce(settings().mesh), reduction.output, comm::ReduceOp::sum, reduction.call);
}

// On the current stream: adds the partial sums of earlier microbatches to the output. If this reduction is not
// all-reduced, the sums become the new partial sums.
void ShardGroup::add_partial_sums(const Reduction& reduction) {
  for (const ReducedPiece& piece : reduction.plan.pieces) {
    Tensor& partial_sum = shards_->partial_sum(piece.shard);
    const Tensor part = part_of(reduction.output, piece, piece.padded_sizes);
    if (partial_sum.defined()) {
      if (piece.offset < reduction.plan.scattered_elements)
        raw::add_(part, partial_sum);
      else
        raw::copy_(part, partial_sum);
      reduction_outputs_.push_back(std::exchange(partial_sum, Tensor()));
    }
    if (!requires_all_reduce) partial_sum = part;
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
  const std::vector<ReducedPiece>& pieces = reduction.plan.pieces;
  for (std::size_t i = 0; shards_->offloads() && i < pieces.size(); ++i)
    offload_gradient(shards_->trained(pieces[i].shard), reduction.casts[i], stream);
  delivered_ = stream.record();

  const bool has_hooks = std::any_of(pieces.begin(), pieces.end(), [this](const ReducedPiece& piece) {
    return has_post_accumulate_hooks(shards_->trained(piece.shard));
  });
  if (!has_hooks) {
    for (const ReducedPiece& piece : pieces) let_other_gradients_wait(piece.shard);
    return;
  }
  wait_for_reduction();  // the hooks run on compute, and free its memory
  for (const ReducedPiece& piece : pieces) run_post_accumulate_hooks(shards_->trained(piece.shard));
}

// Gradients are views of the output if every shard can be one. Otherwise all are copies, because a view would keep the
// whole output beside them. For the same reason an empty shard is never a view. A new gradient is set at once:
// parameters that were tied after they were sharded have one gradient, and the later ones add to it.
void ShardGroup::allocate_targets(Reduction& reduction) const {
  const DType type = shards_->gradient_type();
  const device::PurposeScope purpose(device::Purpose::gradient, &owner());
  for (const ReducedPiece& piece : reduction.plan.pieces)
    reduction.shards.push_back(part_of(reduction.output, piece, piece.sizes));
  const bool are_views =
      reduction.output.dtype() == type &&
      std::all_of(reduction.shards.begin(), reduction.shards.end(), [](const Tensor& s) { return s.is_contiguous(); });
  for (std::size_t i = 0; i < reduction.shards.size(); ++i) {
    const ReducedPiece& piece = reduction.plan.pieces[i];
    const Tensor& shard = reduction.shards[i];
    const bool is_view = are_views && shard.num_elements() > 0;
    const Tensor& trained = shards_->trained(piece.shard);
    const Tensor& cast = reduction.casts.emplace_back(is_view ? shard : empty(piece.sizes, type, settings().device));
    const bool is_new = !shards_->offloads() && !grad(trained).defined();
    if (is_new) set_grad(trained, sharded_like(cast, trained), GradientType::any_floating);
    reduction.adds.push_back(!shards_->offloads() && !is_new);
  }
}

// On the current stream: casts, and adds to gradients of earlier backwards.
void ShardGroup::write_targets(const Reduction& reduction) {
  for (std::size_t i = 0; i < reduction.plan.pieces.size(); ++i) {
    const Tensor& cast = reduction.casts[i];
    if (!cast.same_as(reduction.shards[i])) {
      raw::copy_(cast, reduction.shards[i]);
      reduction_outputs_.push_back(cast);
    }
    if (reduction.adds[i]) raw::add_(local_tensor(grad(shards_->trained(reduction.plan.pieces[i].shard))), cast);
  }
}

// Copies a gradient to the host on `stream`. The host adds it to a gradient of earlier backwards.
void ShardGroup::offload_gradient(const Tensor& trained, const Tensor& gradient, device::Stream& stream) {
  const device::PurposeScope purpose(device::Purpose::gradient, &owner());
  const Tensor host = empty_offloaded(settings(), gradient.sizes(), gradient.dtype());
  if (host.num_elements() > 0) device::copy_bytes(stream, write(host), read(gradient));
  host_waits_ = true;
  if (!grad(trained).defined()) return set_grad(trained, sharded_like(host, trained), GradientType::any_floating);
  wait(WaitEdge::host_add_for_offload, device::current_stream(host.device()), stream);
  raw::add_(local_tensor(grad(trained)), host);
}

// ---- waiting for it ----
// A gradient that reaches a shard on another way than its group, such as that of a penalty, is added on compute. The
// hook stays: it does nothing while no reduction is in flight. A shard that was replaced gets one of its own.
void ShardGroup::let_other_gradients_wait(std::size_t index) {
  const Tensor& trained = shards_->trained(index);
  if (!requires_grad(trained)) return;
  hooked_.resize(shards_->num_trained());
  if (hooked_[index].lock() == trained.impl_ptr()) return;
  add_hook(trained, [weak = weak_from_this()](const Tensor&) {
    if (const auto group = weak.lock()) group->wait_for_reduction();
    return Tensor();
  });
  hooked_[index] = trained.impl_ptr();
}

void ShardGroup::free_reduction_outputs() {
  if (!delivered_.defined()) return;
  wait(WaitEdge::compute_for_earlier_reduction, device::stream(settings().device, device::Role::compute), delivered_);
  reduction_outputs_.clear();
}

void ShardGroup::wait_for_reduction() {
  if (!delivered_.defined()) return;
  wait(WaitEdge::compute_for_reduction, device::current_stream(settings().device), delivered_);
  if (std::exchange(host_waits_, false))
    wait(WaitEdge::host_for_offload, device::current_stream(device::Device{}), delivered_);
  delivered_ = device::Event();
  reduction_outputs_.clear();
}

}  // namespace lockstep::parallel
