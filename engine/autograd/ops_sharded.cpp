#include "engine/autograd/ops_sharded.hpp"

#include <memory>

#include "engine/autograd/computed.hpp"
#include "engine/autograd/node.hpp"
#include "engine/comm/statements.hpp"
#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::ops {

namespace {

// The factor of the gradient: a mean over n ranks passes 1/n of its gradient to each rank.
double gradient_factor(const layout::ShardedLayout& from, const layout::ShardedLayout& to) {
  double factor = 1.0;
  for (std::size_t axis = 0; axis < from.placements.size(); ++axis) {
    const auto is_mean = [axis](const layout::ShardedLayout& layout) {
      return layout.placements[axis].is_partial() && layout.placements[axis].op == layout::PartialOp::mean;
    };
    const double ranks = from.mesh.size(static_cast<int>(axis));
    if (is_mean(from) && !is_mean(to)) factor /= ranks;
    if (!is_mean(from) && is_mean(to)) factor *= ranks;
    if (defect_armed(Defect::tensor_bias_gradient_divided)) [[unlikely]]
      factor /= from.placements[axis].is_replicate() && to.placements[axis].is_partial() ? ranks : 1.0;
  }
  return factor;
}

// A seeded defect: sets the shards of other ranks to zero.
void keep_own_shard(const Tensor& gathered, const layout::ShardedLayout& from) {
  if (layout::has_shard(*gathered.layout()) || !layout::has_shard(from)) return;
  const Tensor shard = local_shard_of(local_tensor(gathered), from), own = raw::clone(shard);
  if (shard.storage() != gathered.storage()) return;  // the shard has several ranges
  raw::zero_(gathered);
  raw::copy_(shard, own);
}

Tensor redistribute_gradient(const Tensor& grad, const LayoutPtr& to) {
  const Tensor result = lockstep::redistribute(grad, to);
  if (defect_armed(Defect::sharded_gradient_of_own_part)) [[unlikely]]
    keep_own_shard(result, *grad.layout());
  return result;
}

void require_differentiable(const Tensor& a, const layout::ShardedLayout& to) {
  if (!recording({a})) return;
  for (const layout::ShardedLayout* layout : {a.layout().get(), &to})
    for (const layout::Placement& placement : layout->placements)
      if (placement.is_partial() && placement.op != layout::PartialOp::sum && placement.op != layout::PartialOp::mean)
        throw Error(str("redistribute: ", describe_sharded(a), " to ", layout::to_text(to.placements), ": ",
                        layout::to_text(placement), " has no derivative"),
                    "redistribute it without recording, or use a partial sum or mean");
}

}  // namespace

Tensor from_local(const Tensor& local, const LayoutPtr& layout) {
  if (local.is_sharded())
    throw Error(str("from_local: ", describe_sharded(local), " is sharded already"), "give the local shard");
  Tensor made = record("from_local", make_sharded(local, layout), {local}, {},
                       [](const Backward& at) -> Gradients { return {local_tensor(at.grad())}; });
  // The result of an operation on local shards has no other name.
  if (const GradState* state = grad_state(local); grad_state(made) && !(state && state->view))
    grad_state(made)->view = nullptr;
  return made;
}

namespace {

// The remedy for ranks that take their plain tensors for shards of different tensors.
const char* remedy_for(const layout::ShardedLayout& layout, bool has_sizes) {
  if (has_sizes) return "give the same global sizes and placements on all ranks";
  if (!layout::has_shard(layout)) return "all ranks must have tensors of one size";
  return "all ranks must have shards of one size: give the global sizes, or a sharded tensor instead, such as the "
         "result of a style with keep_sharded";
}

// The members of each axis of the mesh compare the layout, which each of them has made without communication.
void state_layout(const Tensor& plain, const DeviceMesh& mesh, const LayoutPtr& layout, const char* is,
                  const char* remedy) {
  if (plain.is_meta()) return;
  std::vector<std::int64_t> agreed(layout->sizes.begin(), layout->sizes.end());
  for (const layout::Placement& placement : layout->placements)
    agreed.insert(agreed.end(), {static_cast<int>(placement.kind), placement.dim, placement.split_factor,
                                 static_cast<int>(placement.op)});
  for (int axis = 0; axis < mesh.num_axes(); ++axis)
    if (mesh.shape().size(axis) > 1)
      comm::add_statement(mesh.group(axis), agreed,
                          [layout, is, remedy, sizes = plain.sizes(), place = RankContext::current().place] {
                            return str("a plain tensor of ", to_text(sizes), is, layout->text(),
                                       place.empty() ? "" : str(" at ", place), " (", remedy, ")");
                          });
}

}  // namespace

Tensor from_local(const Tensor& local, const DeviceMesh& mesh, const Placements& placements, const Dims* sizes) {
  const auto layout = std::make_shared<const layout::ShardedLayout>(layout_of_local(local, mesh, placements, sizes));
  Tensor made = from_local(local, layout);
  note_view(made, local, ViewOrigin::of_other_layout);
  state_layout(local, mesh, layout, " is taken as the local shard of ", remedy_for(*layout, sizes != nullptr));
  return made;
}

Tensor to_local(const Tensor& a) { return to_local(a, layout::gradient_layout(a.layout())); }

namespace {

// The layout that gradients of the layout `from` get on their way to the layout `to`: they stay partial where `to`
// replicates (see is_unreduced).
LayoutPtr on_the_way(const LayoutPtr& from, const LayoutPtr& to) {
  if (defect_armed(Defect::tensor_gradient_reduced_per_use)) [[unlikely]]
    return to;
  layout::ShardedLayout layout = *to;
  for (std::size_t axis = 0; axis < layout.placements.size(); ++axis)
    if (layout.placements[axis].is_replicate() && from->placements[axis].is_partial())
      layout.placements[axis] = from->placements[axis];
  return std::make_shared<const layout::ShardedLayout>(std::move(layout));
}

}  // namespace

Tensor to_local(const Tensor& a, const LayoutPtr& gradient) {
  if (!a.is_sharded()) return a;
  return record("to_local", local_tensor(a), {a}, {},
                [gradient, wanted = layout::gradient_layout(a.layout())](const Backward& at) -> Gradients {
                  return {lockstep::redistribute(make_sharded(at.grad(), gradient), on_the_way(gradient, wanted))};
                });
}

Tensor redistribute(const Tensor& a, const LayoutPtr& to) {
  const LayoutPtr& from = a.layout();
  if (from && *from == *to) return a;
  if (from) require_differentiable(a, *to);
  const auto derivative = [from, to](const Backward& at) -> Gradients {
    const Tensor grad = redistribute_gradient(at.grad(), layout::gradient_layout(from));
    const double factor = gradient_factor(*from, *to);
    if (factor == 1.0) return {grad};
    return {sharded_like(raw::mul(grad, factor), grad)};
  };
  return taking_unreduced(record(
      "redistribute", computed("redistribute", [&] { return lockstep::redistribute(a, to); }), {a}, {}, derivative));
}

Tensor redistribute(const Tensor& a, const Placements& placements) {
  if (!a.is_sharded()) return lockstep::redistribute(a, placements);  // throws: the tensor is plain
  return ops::redistribute(
      a, std::make_shared<const layout::ShardedLayout>(layout::with_placements(*a.layout(), placements)));
}

Tensor full_tensor(const Tensor& a) {
  if (!a.is_sharded()) return a;
  return to_local(ops::redistribute(a, Placements(a.layout()->placements.size())));
}

Tensor distribute(const Tensor& full, const DeviceMesh& mesh, const Placements& placements) {
  const Tensor made = lockstep::distribute(full, mesh, placements);
  state_layout(full, mesh, made.layout(), " is distributed as ", "give equal tensors and placements on all ranks");
  if (!recording({full})) return made;
  const auto replicated = std::make_shared<const layout::ShardedLayout>(
      layout::ShardedLayout{mesh.shape(), Placements(static_cast<std::size_t>(mesh.num_axes())), full.sizes()});
  const LayoutPtr& to = made.layout();
  return record("distribute", made, {full}, {}, [replicated, to](const Backward& at) -> Gradients {
    const Tensor grad = local_tensor(lockstep::redistribute(at.grad(), replicated));
    const double factor = gradient_factor(*replicated, *to);
    return {factor == 1.0 ? grad : raw::mul(grad, factor)};
  });
}

}  // namespace lockstep::ops
