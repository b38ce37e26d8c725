#include "engine/parallel/reduction_plan.hpp"

#include "engine/core/checked.hpp"

namespace lockstep::parallel {

ReductionPlan plan_reduction(const std::vector<layout::ShardedParameter>& cuts,
                             const std::vector<ParameterState>& states, const std::vector<Dims>& local_sizes) {
  ReductionPlan plan;
  const auto only_partial = [](const ParameterState& state) {
    return !state.has_full_gradient && state.has_partial_sum;
  };
  for (std::size_t i = 0; i < cuts.size(); ++i)
    if (states[i].takes_part && !only_partial(states[i])) plan.members.push_back(i);
  plan.num_scattered = plan.members.size();
  for (std::size_t i = 0; i < cuts.size(); ++i)
    if (states[i].takes_part && only_partial(states[i])) plan.members.push_back(i);

  std::vector<layout::ShardedParameter> of_members;
  for (const std::size_t i : plan.members) of_members.push_back(cuts[i]);
  const layout::FlatShards all = layout::make_flat_shards(of_members);
  plan.output_elements = all.per_rank;
  plan.scattered_elements = plan.num_scattered == plan.members.size() ? all.per_rank : all.offsets[plan.num_scattered];
  if (!plan.members.empty()) plan.input_elements = bounded_product(plan.scattered_elements, all.num_ranks);
  for (std::size_t k = 0; k < plan.members.size(); ++k) {
    const std::size_t i = plan.members[k];
    plan.pieces.push_back({i, all.offsets[k], local_sizes[i], layout::padded_shard_sizes(cuts[i])});
  }
  return plan;
}

}  // namespace lockstep::parallel
