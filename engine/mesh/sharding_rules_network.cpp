// Rules of attention and of losses over classes.
#include "engine/core/error.hpp"
#include "engine/mesh/sharding_rules.hpp"

namespace lockstep::sharding {

using layout::Placement;

namespace {

Placement as_dim(Placement placement, int dim) {
  placement.dim = dim;
  return placement;
}

// Whether a mask that broadcasts to (..., queries, keys) has the elements for a shard of the scores.
bool mask_fits(const Placement& scores, int num_dims, const ShardedLayout& mask, std::size_t axis) {
  const Placement& own = mask.placements[axis];
  if (!scores.is_shard()) return own == scores;
  const int dim = scores.dim - (num_dims - mask.sizes.size());
  if (dim < 0 || mask.sizes[dim] == 1) return own.is_replicate();
  return own == as_dim(scores, dim);
}

[[noreturn]] void refuse_attention(const std::vector<ShardedLayout>& operands) {
  std::string text;
  for (const ShardedLayout& operand : operands) text += str(text.empty() ? "" : " with ", operand.text());
  throw Error(
      str("attention: ", text),
      "on each axis replicate q, k and v, or shard all of them along the same batch or head dim; shard the mask "
      "along that dim, too, unless it has size 1 there");
}

// The rule of one axis for x and a weight of conv2d; false for placements that do not match. The result begins with the
// placement of x.
bool convolve_axis(std::size_t axis, Linear& rule) {
  const Placement &x = rule.x.placements[axis], &weight = rule.weight.placements[axis];
  Placement& out = rule.result.placements[axis];
  if (x.is_replicate() && weight.is_replicate()) return true;
  if (x.is_shard(0) && weight.is_replicate()) {
    rule.weight_grad.placements[axis] = layout::partial();
  } else if (x.is_replicate() && weight.is_shard(0)) {
    out = weight;
    out.dim = 1;
    rule.x_grad.placements[axis] = layout::partial();
  } else if (x.is_shard(1) && weight == x) {
    out = layout::partial();
  } else {
    return false;
  }
  return true;
}

// The placement of a bias, or of one number per channel, whose channels are dim 1 of `out`.
Placement per_channel(const Placement& out) {
  Placement made = out;
  if (out.is_shard()) made = out.is_shard(1) ? made : layout::replicate();
  made.dim = 0;
  return made;
}

// Whether `rows` are the sizes of the logits without the dim of the classes.
bool are_rows_of(const Dims& rows, const Dims& logits, int classes) {
  bool fits = rows.size() + 1 == logits.size();
  for (int dim = 0; fits && dim < rows.size(); ++dim) fits = rows[dim] == logits[dim < classes ? dim : dim + 1];
  return fits;
}

}  // namespace

Linear conv2d(const ShardedLayout& x, const ShardedLayout& weight, const ShardedLayout* bias, const Dims& sizes) {
  const auto refuse = [&](const char* remedy) {
    throw Error(str("conv2d: ", x.text(), " with ", weight.text(), bias ? " and " + bias->text() : ""), remedy);
  };
  if (!(x.mesh == weight.mesh) || (bias && !(x.mesh == bias->mesh))) refuse("distribute all over the same mesh");
  const ShardedLayout own_x = reduced(x, Keeps::nothing), own_weight = reduced(weight, Keeps::nothing);
  const ShardedLayout own_bias = bias ? reduced(*bias, Keeps::nothing) : own_weight;
  Linear rule{own_x, own_weight, own_bias, {x.mesh, own_x.placements, sizes}, own_x, own_weight, own_bias};
  for (std::size_t axis = 0; axis < x.placements.size(); ++axis) {
    if (!convolve_axis(axis, rule))
      refuse("on each axis shard the batch or the output channels, or shard the input channels of both");
    if (!bias) continue;
    const Placement &out = rule.result.placements[axis], wanted = per_channel(out);
    const Placement given = own_bias.placements[axis];
    if (!given.is_replicate() && !(given == wanted)) refuse("replicate the bias, or shard it like the output channels");
    rule.bias.placements[axis] = wanted;
    rule.bias_grad.placements[axis] = out.is_shard(1)  ? wanted
                                      : out.is_shard() ? layout::partial()
                                                       : layout::replicate();
  }
  return rule;
}

BatchNorm batch_norm(const ShardedLayout& x, const std::vector<ShardedLayout>& read,
                     const std::vector<ShardedLayout>& written, bool training) {
  const auto refuse = [&x](const char* remedy) { throw Error(str("batch_norm: ", x.text()), remedy); };
  if (x.sizes.size() < 2) refuse("give (batch, channels, ...)");
  const ShardedLayout own = reduced(x, Keeps::nothing);
  BatchNorm rule{own, {x.mesh, {}, {x.sizes[1]}}, {x.mesh, {}, {x.sizes[1]}}};
  for (const Placement& placement : own.placements) {
    if (training && placement.is_shard() && !placement.is_shard(1))
      refuse("shard it along the channels only: training needs all rows of the batch for its statistics");
    rule.per_channel.placements.push_back(per_channel(placement));
    rule.per_channel_grad.placements.push_back(placement.is_shard() && !placement.is_shard(1) ? layout::partial()
                                                                                              : per_channel(placement));
  }
  for (const ShardedLayout& given : written)
    if (!(given == rule.per_channel))
      refuse("shard the running statistics where the channels are, else replicate them");
  for (const ShardedLayout& given : read) {
    bool fits = given.mesh == x.mesh && given.sizes == rule.per_channel.sizes;
    for (std::size_t axis = 0; fits && axis < own.placements.size(); ++axis)
      fits = !given.placements[axis].is_shard() || given.placements[axis] == rule.per_channel.placements[axis];
    if (!fits) refuse("give one number per channel, replicated, or sharded where the channels are");
  }
  return rule;
}

Many attention(const ShardedLayout& q, const ShardedLayout& k, const ShardedLayout& v, const ShardedLayout* mask) {
  std::vector<ShardedLayout> given = {q, k, v};
  if (mask) given.push_back(*mask);
  Many rule{{}, {}, q};
  const int n = q.sizes.size();
  for (const ShardedLayout& operand : given) {
    bool fits = operand.mesh == q.mesh && (rule.operands.size() == 3 || operand.sizes.size() == n) && n >= 2;
    for (int dim = 0; fits && rule.operands.size() < 3 && dim < n - 2; ++dim) fits = operand.sizes[dim] == q.sizes[dim];
    if (!fits) refuse_attention(given);
    rule.operands.push_back(reduced(operand, Keeps::nothing));
  }
  const ShardedLayout& like = rule.operands[0];
  for (std::size_t axis = 0; axis < like.placements.size(); ++axis) {
    const Placement& placement = like.placements[axis];
    const bool fits = rule.operands[1].placements[axis] == placement &&
                      rule.operands[2].placements[axis] == placement &&
                      (placement.is_replicate() || placement.dim < n - 2) &&
                      (!mask || mask_fits(placement, n, rule.operands[3], axis));
    if (!fits) refuse_attention(given);
  }
  rule.gradients = rule.operands;
  rule.result = like;
  rule.result.sizes[n - 1] = v.sizes[n - 1];
  return rule;
}

ClassLoss cross_entropy(const ShardedLayout& logits, const ShardedLayout& targets, const ShardedLayout* weight,
                        bool per_row) {
  const auto refuse = [&](const char* remedy) {
    throw Error(str("cross_entropy: logits ", logits.text(), ", targets ", targets.text(),
                    weight ? ", weight " + weight->text() : ""),
                remedy);
  };
  if (!(logits.mesh == targets.mesh) || (weight && !(logits.mesh == weight->mesh)))
    refuse("distribute all over the same mesh");
  const int last = logits.sizes.size() - 1;
  if (!are_rows_of(targets.sizes, logits.sizes, last))
    refuse(are_rows_of(targets.sizes, logits.sizes, 1)
               ? "the classes are the last dim of the logits: transpose dim 1 to the end"
               : "give logits (..., classes) and targets (...)");
  if (weight && !(weight->sizes == Dims{logits.sizes[last]})) refuse("give one weight per class");
  if (num_elements(logits.sizes) == 0) refuse("give at least one row and one class");
  ClassLoss rule{reduced(logits, Keeps::nothing), reduced(targets, Keeps::nothing), logits, {logits.mesh, {}, {}}};
  if (weight) rule.weight = reduced(*weight, Keeps::nothing);
  if (per_row) rule.result.sizes = targets.sizes;
  bool is_first = true;
  for (std::size_t axis = 0; axis < logits.placements.size(); ++axis) {
    const Placement &scores = rule.logits.placements[axis], &of_targets = rule.targets.placements[axis];
    const bool by_rows = scores.is_shard() && scores == of_targets;
    if (!by_rows && ((scores.is_shard() && scores.dim < last) || !of_targets.is_replicate()))
      refuse("on each axis shard both along the same rows, or replicate the targets and shard at most the classes");
    rule.result.placements.push_back(!by_rows ? layout::replicate() : per_row ? scores : layout::partial());
    if (!weight) continue;
    const Placement& own = rule.weight.placements[axis];
    const bool like_classes = scores == as_dim(own, last);
    if (own.is_shard() && !like_classes) refuse("replicate the weight, or shard it like the classes");
    if (!scores.is_shard(last)) continue;
    if (!is_first && rule.shards_weight != like_classes)
      refuse("replicate the weight, or shard it over all axes that shard the classes");
    rule.shards_weight = like_classes;
    is_first = false;
  }
  return rule;
}

}  // namespace lockstep::sharding
