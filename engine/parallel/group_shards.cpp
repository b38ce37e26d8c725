#include "engine/parallel/group_shards.hpp"

#include "engine/core/defects.hpp"

namespace lockstep::parallel {

bool offloads(const GroupSettings& settings) {
  return settings.offload != Offload::none && !device::is_host(settings.device);
}

Tensor empty_offloaded(const GroupSettings& settings, const Dims& sizes, DType dtype) {
  if (settings.offload == Offload::cpu_pinned) return empty_pinned(sizes, dtype, settings.device);
  return empty(sizes, dtype, device::host_device);
}

DType GroupShards::compute_type() const {
  if (defect_armed(Defect::shard_cast_left_out)) [[unlikely]]
    return original_type();
  return settings_.mixed_precision.param.value_or(original_type());
}

DType GroupShards::reduce_type() const {
  if (defect_armed(Defect::shard_reduce_type_ignored)) [[unlikely]]
    return compute_type();
  return settings_.mixed_precision.reduce.value_or(compute_type());
}

const UnshardedParameter& GroupShards::parameter(std::size_t index) const {
  return const_cast<GroupShards*>(this)->parameter(index);
}

}  // namespace lockstep::parallel
