// Slots and gradients of parameters that are sharded one by one.
#include "engine/parallel/parameter_shards.hpp"

#include <algorithm>
#include <utility>

#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"
#include "engine/parallel/shard_copies.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::parallel {

PerParameterShards::PerParameterShards(GroupSettings settings, std::vector<ShardParameter> parameters)
    : GroupShards(std::move(settings)), parameters_(std::move(parameters)) {
  for (const ShardParameter& parameter : parameters_) cuts_.push_back(parameter.cut());
}

DType PerParameterShards::accumulation_type() const {
  if (defect_armed(Defect::shard_accumulates_in_compute_type)) [[unlikely]]
    return compute_type();
  return reduce_type();
}

void PerParameterShards::adopt_slots() {
  const std::string& owner = settings().owner;
  for (ShardParameter& parameter : parameters_) parameter.adopt_slots();
  const device::Device at = offloads() ? device::Device{} : settings().device;
  for (const ShardParameter& parameter : parameters_) {
    if (parameter.sharded().dtype() != original_type())
      throw Error(str("FSDP expects uniform original parameter dtype: the parameters of ", owner, " have the types ",
                      name_of(original_type()), " (", parameters_.front().name, ") and ",
                      name_of(parameter.sharded().dtype()), " (", parameter.name, ")"),
                  "a group has one type: cast them, or shard the modules apart");
    if (!(parameter.sharded().device() == at))
      throw Error(str(offloads() ? "FSDP parameters should be materialized on CPU when enabling CPU offloading: `"
                                 : "fully_shard: `",
                      parameter.name, "` of ", owner, " is on ", device::to_text(parameter.sharded().device()),
                      ", the group keeps its shards on ", device::to_text(at)),
                  offloads() ? "with offload, parameters and loaded values stay on the cpu"
                             : "move the module there before the first forward");
  }
}

bool PerParameterShards::shards_changed() const {
  return std::any_of(parameters_.begin(), parameters_.end(),
                     [](const ShardParameter& parameter) { return parameter.is_stale(); });
}

// ---- reduction ----
namespace {

ParameterState state_of(const ShardParameter& parameter, bool complete, bool all_reduces) {
  ParameterState state;
  state.has_full_gradient = parameter.accumulated.defined();
  state.has_partial_sum = parameter.partial_sum.defined();
  state.takes_part = complete && (state.has_full_gradient || (all_reduces && state.has_partial_sum));
  if (defect_armed(Defect::shard_frozen_reduced) && !parameter.requires_grad()) [[unlikely]]
    state.takes_part = complete;
  return state;
}

// The gradient that a parameter adds to the reduction: once, however many slots the parameter has.
Tensor contribution(const ShardParameter& parameter) {
  if (defect_armed(Defect::shard_shared_reduced_twice) && parameter.slots.size() > 1) [[unlikely]]
    return raw::mul(parameter.accumulated.local, 2.0);
  return parameter.accumulated.local;
}

}  // namespace

ReductionPlan PerParameterShards::plan_reduction(const std::vector<bool>& complete, bool all_reduces) const {
  std::vector<ParameterState> states;
  std::vector<Dims> local_sizes;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    states.push_back(state_of(parameters_[i], complete[i], all_reduces));
    local_sizes.push_back(local_tensor(parameters_[i].sharded()).sizes());
  }
  return parallel::plan_reduction(cuts_, states, local_sizes);
}

void PerParameterShards::fill_reduction_input(const ReductionPlan& plan, const Tensor& input) {
  std::vector<layout::ShardedParameter> cuts;
  for (std::size_t k = 0; k < plan.num_scattered; ++k) cuts.push_back(cuts_[plan.members[k]]);
  const layout::FlatShards flat = layout::make_flat_shards(cuts);
  for (std::size_t k = 0; k < plan.num_scattered; ++k) {
    ShardParameter& parameter = parameters_[plan.members[k]];
    if (!parameter.accumulated.defined()) {
      const std::int64_t elements = layout::padded_shard_elements(cuts[k]);
      raw::zero_(as_strided(input, {flat.num_ranks, elements}, {flat.per_rank, 1}, flat.offsets[k]));
      continue;
    }
    copy_in(input, contribution(parameter), cuts[k], flat, k);
    zero_padding(input, cuts[k], flat, k);
    parameter.accumulated = FullGradient();
  }
}

}  // namespace lockstep::parallel
