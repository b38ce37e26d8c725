// The gradients of a flat parameter: they enter the flat input in the layout of the parameter, padding as zeros.
#include "engine/autograd/autograd.hpp"
#include "engine/autograd/grad_of_peers.hpp"
#include "engine/core/defects.hpp"
#include "engine/parallel/flat_parameter_shards.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::parallel {

DType FlatParameterShards::accumulation_type() const {
  return defect_armed(Defect::flat_accumulates_in_original_type) ? original_type() : compute_type();
}

DType FlatParameterShards::gradient_type() const {
  if (defect_armed(Defect::flat_low_precision_gradient_kept)) [[unlikely]]
    return compute_type();
  return options_.keep_low_precision_gradients ? compute_type() : original_type();
}

// Sums divide before and after, whatever their type.
Division FlatParameterShards::division(const ShardedMean& mean) const {
  Division division =
      flat_division(defect_armed(Defect::flat_divides_by_shard_axis) ? mean.num_shards : mean.num_ranks);
  if (defect_armed(Defect::flat_predivision_left_out)) [[unlikely]]
    division.before = 1.0;
  return division;
}

// The unit is reduced as a whole, when no parameter of it waits for more gradients.
ReductionPlan FlatParameterShards::plan_reduction(const std::vector<bool>& complete, bool) const {
  ReductionPlan plan;
  bool has_gradient = false;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!parameters_[i].requires_grad()) continue;
    if (!complete[i]) return {};
    has_gradient = has_gradient || parameters_[i].accumulated.defined();
    plan.members.push_back(i);
  }
  if (!has_gradient) return {};
  plan.num_scattered = plan.members.size();
  plan.input_elements = flat_.padded();
  plan.scattered_elements = plan.output_elements = flat_.per_rank;
  if (!options_.original_parameters) {
    plan.pieces.push_back({0, 0, {flat_.per_rank}, {flat_.per_rank}});
    return plan;
  }
  for (const std::size_t i : plan.members) {
    const layout::Stretch at = stretch(i);
    const Dims sizes = local_tensor(parameters_[i].view).sizes();
    if (at.length > 0 || defect_armed(Defect::flat_empty_view_has_gradient))
      plan.pieces.push_back({i, at.offset, sizes, sizes});
  }
  return plan;
}

void FlatParameterShards::fill_reduction_input(const ReductionPlan& plan, const Tensor& input) {
  for (const std::size_t i : plan.members)
    if (trained(i).num_elements() == 0) note_grad_of_peers(trained(i));
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const layout::FlatEntry& entry = flat_.entries[i];
    FullGradient& gradient = parameters_[i].accumulated;
    const Tensor to = as_strided(input, entry.sizes, contiguous_strides(entry.sizes), input.offset() + entry.offset);
    if (gradient.defined())
      raw::copy_(to, gradient.local);
    else if (!defect_armed(Defect::flat_missing_gradient_not_zeroed))
      raw::zero_(to);
    if (!defect_armed(Defect::flat_gradient_counts_again)) gradient = FullGradient();
  }
  if (defect_armed(Defect::flat_padding_not_zeroed)) [[unlikely]]
    return;
  for (const layout::FlatGap& gap : layout::gaps_of(flat_))
    raw::zero_(slice(input, 0, gap.begin, gap.begin + gap.length));
}

}  // namespace lockstep::parallel
