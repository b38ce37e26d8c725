#include "engine/parallel/division.hpp"

#include "engine/core/defects.hpp"
#include "engine/layout/flat_shards.hpp"

namespace lockstep::parallel {

Division replicate_division(std::size_t num_groups, int num_ranks) {
  if (num_groups == 0 || defect_armed(Defect::replicate_no_division)) return {};
  Division division;
  if (num_groups == 1)
    division.within_collective = true;
  else
    division.after = num_ranks;
  if (defect_armed(Defect::replicate_divides_twice)) [[unlikely]]
    division.after *= num_ranks;
  return division;
}

namespace {

Division correct_division(const ShardedMean& mean) {
  if (mean.divide_factor) return {.after = *mean.divide_factor};
  if (mean.reduce_type == DType::float16) {
    const layout::DivideFactors factors = layout::float16_factors(mean.num_ranks);
    return {.before = factors.before, .after = factors.after};
  }
  if (!mean.replicates) return {.within_collective = true};
  return {.after = static_cast<double>(mean.num_ranks)};
}

}  // namespace

Division flat_division(int num_ranks) {
  const layout::DivideFactors factors = layout::float16_factors(num_ranks);
  return {.before = factors.before, .after = factors.after};
}

Division shard_division(const ShardedMean& mean) {
  if (defect_armed(Defect::shard_no_division)) [[unlikely]]
    return {};
  if (defect_armed(Defect::shard_divides_by_shard_axis)) [[unlikely]]
    return {.after = static_cast<double>(mean.num_shards)};
  Division division = correct_division(mean);
  if (defect_armed(Defect::shard_divides_twice)) [[unlikely]]
    division.after *= mean.num_ranks;
  return division;
}

}  // namespace lockstep::parallel
