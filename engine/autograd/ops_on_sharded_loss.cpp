// Cross-entropy of logits whose classes are sharded (vocabulary-parallel). The logits stay sharded: ranks exchange
// three numbers per row, each with one all-reduce per axis that shards the classes. Backward needs none.
//
//   top     the largest logit of the row               all-reduce (max)
//   sum     of e^(logit - top) over the classes        all-reduce (sum)
//   picked  the logit of the target, 0 elsewhere       all-reduce (sum)
//   loss  = log(sum) - (picked - top)
//
// Each rank reads the weight of a target itself if the weights are replicated. If they are sharded like the classes,
// the third all-reduce carries them beside the logits of the targets. A mean divides by the sum of the weights of all
// rows; where rows are sharded, that sum is one more all-reduce of one number per axis.
#include <algorithm>
#include <limits>

#include "engine/autograd/computed.hpp"
#include "engine/autograd/ops.hpp"
#include "engine/autograd/ops_on_sharded_internal.hpp"
#include "engine/autograd/ops_sharded.hpp"
#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"
#include "engine/tensor/ops.hpp"
#include "engine/tensor/ops_network.hpp"
#include "engine/tensor/ops_shards.hpp"

namespace lockstep::ops {

namespace {

using layout::PartialOp;

struct Rows {
  const sharding::ClassLoss& rule;
  const LossOptions& options;  // of this rank: the local weight
  int last = rule.logits.sizes.size() - 1;

  std::int64_t num_classes() const { return rule.logits.sizes[last]; }
  bool are_weighted() const { return options.weight.defined() || options.ignore_index; }
  bool have_total() const { return are_weighted() && options.reduction == Reduction::mean; }
};

// The reduction of `count` numbers per row, in that many tensors of the rows' sizes along dim 0, over the axes that
// shard the classes.
Tensor over_classes(const Rows& rows, const Tensor& numbers, std::int64_t count, PartialOp op) {
  sharding::ShardedLayout from{rows.rule.logits.mesh, rows.rule.logits.placements, {count}};
  for (int dim = 0; dim < rows.last; ++dim) from.sizes.push_back(rows.rule.logits.sizes[dim]);
  for (layout::Placement& placement : from.placements)
    if (placement.is_shard(rows.last))
      placement = layout::partial(op);
    else if (placement.is_shard())
      ++placement.dim;
  if (!layout::has_partial(from)) return numbers;
  const LayoutPtr partial = make_layout(from);
  return local_tensor(lockstep::redistribute(make_sharded(numbers, partial), layout::gradient_layout(partial)));
}
Tensor over_classes(const Rows& rows, const Tensor& numbers, PartialOp op) {
  return lockstep::select(over_classes(rows, lockstep::unsqueeze(numbers, 0), 1, op), 0, 0);
}

// The sum of one number of each rank over the axes that shard rows.
Tensor over_rows(const Rows& rows, const Tensor& number) {
  if (defect_armed(Defect::sharded_loss_mean_of_parts)) [[unlikely]]
    return number;
  sharding::ShardedLayout from{rows.rule.logits.mesh, rows.rule.logits.placements, {}};
  for (layout::Placement& placement : from.placements)
    placement = placement.is_shard() && placement.dim < rows.last ? layout::partial() : layout::replicate();
  if (!layout::has_partial(from)) return number;
  const LayoutPtr partial = make_layout(from);
  return local_tensor(lockstep::redistribute(make_sharded(number, partial), layout::gradient_layout(partial)));
}

Tensor largest_of_rows(const Tensor& logits, const Dims& rows, DType wide) {
  if (logits.size(-1) > 0) return raw::cast(raw::max(logits, logits.num_dims() - 1), wide);
  return full(rows, -std::numeric_limits<double>::infinity(), wide, logits.device());
}

std::vector<layout::Chunk> held_classes(const Rows& rows) {
  std::vector<layout::Chunk> held = held_by_rank(rows.rule.logits)[static_cast<std::size_t>(rows.last)];
  if (defect_armed(Defect::sharded_vocabulary_offset)) [[unlikely]]
    for (layout::Chunk& range : held) range.begin -= range.begin > 0;
  return held;
}

// The divisor of a mean without weights.
double divisor_of(const Rows& rows, const Tensor& targets) {
  if (rows.options.reduction != Reduction::mean) return 1.0;
  if (defect_armed(Defect::sharded_loss_mean_of_parts)) [[unlikely]]
    return static_cast<double>(std::max<std::int64_t>(1, targets.num_elements()));
  return static_cast<double>(num_elements(rows.rule.targets.sizes));
}

// The targets as numbers of the classes to which the local weights belong.
Tensor weighed_targets(const Rows& rows, const Tensor& targets, const Tensor& positions) {
  const bool weighs_own = rows.rule.shards_weight || defect_armed(Defect::sharded_loss_weight_offset);
  if (weighs_own) return positions;
  return raw::positions_in("cross_entropy", targets, rows.num_classes(), {{0, rows.num_classes()}},
                           rows.options.ignore_index);
}

// The logits and the weights of the targets. The weights are undefined if each row counts once.
struct Picked {
  Tensor logits, weights;
};
Picked exchanged(const Rows& rows, const Tensor& own_logits, const Tensor& own_weights) {
  if (!own_weights.defined() || !rows.rule.shards_weight)
    return {over_classes(rows, own_logits, PartialOp::sum), own_weights};
  const Tensor both = raw::cat({lockstep::unsqueeze(own_logits, 0), lockstep::unsqueeze(own_weights, 0)}, 0);
  const Tensor all = over_classes(rows, both, 2, PartialOp::sum);
  return {lockstep::select(all, 0, 0), lockstep::select(all, 0, 1)};
}

Tensor reduced(const Rows& rows, const Tensor& losses, const Tensor& total, double divisor) {
  if (rows.options.reduction == Reduction::none) return losses;
  const Tensor sum = raw::sum(losses);
  return total.defined() ? raw::div(sum, total) : raw::div(sum, divisor);
}

// This rank's part of the loss: that of its rows.
raw::CrossEntropyResult loss_of_rows(const Rows& rows, const Tensor& logits, const Tensor& targets) {
  const DType wide = size_of(logits.dtype()) == 2 ? DType::float32 : logits.dtype();
  raw::CrossEntropyResult loss;
  loss.targets =
      raw::positions_in("cross_entropy", targets, rows.num_classes(), held_classes(rows), rows.options.ignore_index);
  Tensor own_weights;
  if (rows.are_weighted())
    own_weights = raw::class_weights(weighed_targets(rows, targets, loss.targets), rows.options.weight, wide);
  const Tensor own_tops = largest_of_rows(logits, targets.sizes(), wide);
  const Tensor all_tops = over_classes(rows, own_tops, PartialOp::max);
  const bool keeps_own = defect_armed(Defect::sharded_loss_own_maximum);
  const Tensor& tops = keeps_own ? own_tops : all_tops;
  const raw::ClassSums own = raw::class_sums(logits, loss.targets, tops);
  const Tensor sums = over_classes(rows, own.sums, PartialOp::sum);
  const Picked picked = exchanged(rows, own.picked, own_weights);
  const Tensor logs = raw::log(sums), losses = raw::sub(logs, raw::sub(picked.logits, tops));
  loss.weights = picked.weights;
  if (rows.are_weighted()) raw::weigh_class_losses_(losses, loss.weights, loss.targets, raw::ignored_row);
  if (rows.have_total()) loss.total = over_rows(rows, raw::total_of_weights(loss.weights));
  loss.result = raw::cast(reduced(rows, losses, loss.total, divisor_of(rows, targets)), logits.dtype());
  loss.log_sums = raw::add(logs, tops);
  return loss;
}

// A seeded defect: the rule for whole classes on every rank.
sharding::ClassLoss gathered(sharding::ClassLoss rule) {
  const int last = rule.logits.sizes.size() - 1;
  for (layout::Placement& placement : rule.logits.placements)
    if (placement.is_shard(last)) placement = layout::replicate();
  for (layout::Placement& placement : rule.weight.placements) placement = layout::replicate();
  rule.shards_weight = false;
  return rule;
}

sharding::ClassLoss rule_for(const Tensor& logits, const Tensor& targets, const LossOptions& options) {
  const Tensor& weight = options.weight;
  sharding::ClassLoss rule =
      sharding::cross_entropy(layout_of(logits), layout_of(targets), weight.defined() ? weight.layout().get() : nullptr,
                              options.reduction == Reduction::none);
  if (weight.defined() && weight.dtype() != logits.dtype())
    throw Error(str("cross_entropy: logits ", describe_sharded(logits), ", weight ", describe_sharded(weight)),
                "give weights of the type of the logits");
  if (defect_armed(Defect::sharded_loss_gathers_logits)) [[unlikely]]
    return gathered(std::move(rule));
  return rule;
}

}  // namespace

Tensor cross_entropy_on_sharded(const Tensor& logits, const Tensor& targets, const LossOptions& options) {
  require_unmixed("cross_entropy", given(logits, &targets, options.weight.defined() ? &options.weight : nullptr));
  const sharding::ClassLoss rule = rule_for(logits, targets, options);
  const Tensor local = local_for(logits, rule.logits, rule.logits);
  const Tensor at = local_for(targets, rule.targets, rule.targets);
  LossOptions own = options;
  if (own.weight.defined()) own.weight = local_for(options.weight, rule.weight, rule.weight);
  const Rows rows{rule, own};
  const raw::CrossEntropyResult loss = computed("cross_entropy", [&] { return loss_of_rows(rows, local, at); });
  const Tensor result =
      record("cross_entropy", loss.result, {local}, {local, loss.log_sums, loss.targets, loss.weights, loss.total},
             [divisor = divisor_of(rows, at)](const Backward& of) -> Gradients {
               return {raw::cross_entropy_backward(of.grad(), of.saved(0),
                                                   {{}, of.saved(1), of.saved(2), of.saved(3), of.saved(4)}, divisor,
                                                   raw::ignored_row)};
             });
  return from_local(result, make_layout(rule.result));
}

}  // namespace lockstep::ops
