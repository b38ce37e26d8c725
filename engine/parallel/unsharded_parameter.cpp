#include "engine/parallel/unsharded_parameter.hpp"

#include "engine/comm/attribution.hpp"
#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"
#include "engine/mesh/sharded.hpp"
#include "engine/tensor/storage_state.hpp"

namespace lockstep::parallel {

nn::ParameterSlot& ParameterSlotRef::get() const {
  const auto module = owner.lock();
  LOCKSTEP_CHECK(module != nullptr && slot < module->parameters.size(), "the module of a sharded parameter is gone");
  return module->parameters[slot];
}

void mark_replaced(const Tensor& old, DType dtype) {
  Storage& storage = *old.storage();
  storage.bump_version();
  storage.state = str(state_cast_to, name_of(dtype));
}

FullGradient reduced_over_inner_axes(const FullGradient& gradient, const std::string& owner) {
  if (!gradient.layout || !layout::has_partial(*gradient.layout)) return gradient;
  if (defect_armed(Defect::shard_inner_partial_kept)) [[unlikely]]
    return gradient;
  const comm::AttributionScope scope({comm::Family::tensor_parallel, owner});
  const LayoutPtr wanted = layout::gradient_layout(gradient.layout);
  return {local_tensor(redistribute(make_sharded(gradient.local, gradient.layout), wanted)), wanted};
}

}  // namespace lockstep::parallel
