// Cross-entropy of logits whose classes are sharded (vocabulary-parallel). The logits stay sharded: ranks exchange
// three numbers per row, each with one all-reduce per axis that shards the classes. Backward needs none.
//
//   top     the largest logit of the row               all-reduce (max)
//   sum     of e^(logit - top) over the classes        all-reduce (sum)
//   picked  the logit of the target, 0 elsewhere       all-reduce (sum)
//   loss  = log(sum) - (picked - top)
#include <limits>

#include "engine/autograd/computed.hpp"
#include "engine/autograd/ops.hpp"
#include "engine/autograd/ops_on_sharded_internal.hpp"
#include "engine/autograd/ops_sharded.hpp"
#include "engine/core/defects.hpp"
#include "engine/tensor/ops.hpp"
#include "engine/tensor/ops_network.hpp"
#include "engine/tensor/ops_shards.hpp"

namespace lockstep::ops {

namespace {

using layout::PartialOp;

// The reduction of one number per row over the axes that shard the classes; `logits`: their layout.
Tensor over_classes(const Tensor& rows, const sharding::ShardedLayout& logits, PartialOp op) {
  sharding::ShardedLayout from{logits.mesh, logits.placements, {logits.sizes[0]}};
  for (layout::Placement& placement : from.placements)
    if (placement.is_shard(1)) placement = layout::partial(op);
  if (!layout::has_partial(from)) return rows;
  const LayoutPtr partial = make_layout(from);
  return local_tensor(lockstep::redistribute(make_sharded(rows, partial), layout::gradient_layout(partial)));
}

Tensor largest_of_rows(const Tensor& logits, DType wide) {
  if (logits.size(1) > 0) return raw::cast(raw::max(logits, 1), wide);
  return full({logits.size(0)}, -std::numeric_limits<double>::infinity(), wide, logits.device());
}

std::vector<layout::Chunk> held_classes(const sharding::ShardedLayout& logits) {
  std::vector<layout::Chunk> held = held_by_rank(logits)[1];
  if (defect_armed(Defect::sharded_vocabulary_offset)) [[unlikely]]
    for (layout::Chunk& range : held) range.begin -= range.begin > 0;
  return held;
}

std::int64_t num_rows_of_mean(const sharding::ShardedLayout& logits, const Tensor& local) {
  if (defect_armed(Defect::sharded_loss_mean_of_parts)) [[unlikely]]
    return std::max<std::int64_t>(1, local.size(0));
  return logits.sizes[0];
}

struct LossOfRows {
  Tensor mean, log_sums, positions;
};

// This rank's part of the mean over all rows: that of its rows.
LossOfRows loss_of_rows(const Tensor& logits, const Tensor& targets, const sharding::ShardedLayout& layout) {
  const DType wide = size_of(logits.dtype()) == 2 ? DType::float32 : logits.dtype();
  const Tensor positions = raw::positions_in("cross_entropy", targets, layout.sizes[1], held_classes(layout));
  const Tensor own_tops = largest_of_rows(logits, wide);
  const Tensor all_tops = over_classes(own_tops, layout, PartialOp::max);
  const bool keeps_own = defect_armed(Defect::sharded_loss_own_maximum);
  const Tensor& tops = keeps_own ? own_tops : all_tops;
  const raw::ClassSums own = raw::class_sums(logits, positions, tops);
  const Tensor sums = over_classes(own.sums, layout, PartialOp::sum);
  const Tensor picked = over_classes(own.picked, layout, PartialOp::sum);
  const Tensor logs = raw::log(sums), losses = raw::sub(logs, raw::sub(picked, tops));
  const double rows = static_cast<double>(num_rows_of_mean(layout, logits));
  return {raw::cast(raw::div(raw::sum(losses), rows), logits.dtype()), raw::add(logs, tops), positions};
}

// A seeded defect: the rule for whole classes on every rank.
sharding::Binary gathered(sharding::Binary rule) {
  for (layout::Placement& placement : rule.a.placements)
    if (placement.is_shard(1)) placement = layout::replicate();
  rule.a_grad = rule.a;
  return rule;
}

}  // namespace

Tensor cross_entropy_on_sharded(const Tensor& logits, const Tensor& targets) {
  require_unmixed("cross_entropy", {logits, targets});
  sharding::Binary rule = sharding::cross_entropy(layout_of(logits), layout_of(targets));
  if (defect_armed(Defect::sharded_loss_gathers_logits)) [[unlikely]]
    rule = gathered(rule);
  const Tensor local = local_for(logits, rule.a, rule.a_grad), classes = local_for(targets, rule.b, rule.b_grad);
  const LossOfRows loss = computed("cross_entropy", [&] { return loss_of_rows(local, classes, rule.a); });
  const Tensor mean =
      record("cross_entropy", loss.mean, {local}, {local, loss.log_sums, loss.positions},
             [rows = num_rows_of_mean(rule.a, local)](const Backward& at) -> Gradients {
               return {raw::class_losses_backward(at.grad(), at.saved(0), at.saved(1), at.saved(2), rows)};
             });
  return from_local(mean, make_layout(rule.result));
}

}  // namespace lockstep::ops
