// The full values of a flat parameter outside forward and backward: for summon_full_parameters, state dicts and
// checkpoints.
#include "engine/autograd/autograd.hpp"
#include "engine/core/checked.hpp"
#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"
#include "engine/mesh/sharded.hpp"
#include "engine/parallel/flat_parameter_shards.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::parallel {

Tensor FlatParameterShards::gather_flat(const Tensor& chunk) const {
  const NoGrad no_grad;
  const device::Device device = settings().device;
  Tensor mine = detach(chunk);
  if (!(mine.device() == device)) mine = raw::to_device(mine, device);
  if (!settings().mesh.is_sharded()) return raw::clone(mine);
  const device::PurposeScope purpose(device::Purpose::gathered);
  const Tensor all = empty({flat_.padded()}, mine.dtype(), device);
  comm::Call call;
  call.family = comm::Family::data_parallel;
  call.owner = settings().owner;
  comm::all_gather(settings().mesh.shard_group(), all, raw::contiguous(mine), call);
  return all;
}

namespace {

std::int64_t offset_of(const layout::FlatParameter& flat, std::size_t index) {
  if (defect_armed(Defect::flat_part_ignores_alignment) && index > 0) [[unlikely]]
    return flat.entries[index - 1].offset + flat.entries[index - 1].length;
  return flat.entries[index].offset;
}

}  // namespace

Tensor FlatParameterShards::part_of(const Tensor& flat, std::size_t index) const {
  const Dims& sizes = flat_.entries[index].sizes;
  const Tensor local = as_strided(flat, sizes, contiguous_strides(sizes), flat.offset() + offset_of(flat_, index));
  const LayoutPtr& inner = parameters_[index].inner_layout;
  return inner ? make_sharded(local, inner) : local;
}

Tensor FlatParameterShards::stretch_of_full(const Tensor& full, std::size_t index) const {
  const NoGrad no_grad;
  const Tensor all = view(raw::contiguous(local_tensor(detach(full))), {-1});
  const layout::Stretch at = stretch(index);
  return slice(all, 0, at.begin, at.begin + at.length);
}

Tensor FlatParameterShards::gradient_chunk() const {
  const NoGrad no_grad;
  if (!options_.original_parameters) {
    const Tensor gradient = grad(shard_);
    return gradient.defined() ? gradient : zeros({flat_.per_rank}, gradient_type(), home());
  }
  const device::PurposeScope purpose(device::Purpose::gradient);
  const Tensor chunk = zeros({flat_.per_rank}, gradient_type(), home());
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Tensor gradient = grad(parameters_[i].view);
    const layout::Stretch at = stretch(i);
    if (gradient.defined() && at.length > 0)
      raw::copy_(slice(chunk, 0, at.offset, at.offset + at.length),
                 view(raw::contiguous(local_tensor(gradient)), {-1}));
  }
  return chunk;
}

void FlatParameterShards::show_full(const std::vector<Tensor>& full) {
  if (shows_full_)
    throw Error("Cannot manually unshard parameters when already unsharding parameters",
                str("leave the summon_full_parameters that holds ", settings().owner, " first"));
  shows_full_ = true;
  holds_full_ = !full.empty() && full.front().defined();
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    for (const ParameterSlotRef& ref : parameters_[i].slots) {
      if (!full[i].defined()) continue;
      nn::ParameterSlot& slot = ref.get();
      slot.tensor = slot.sharded = full[i];
      slot.listed = true;
    }
  if (!options_.original_parameters && holds_full_) flat_slot_.get().listed = false;
}

void FlatParameterShards::hide_full() {
  for (const Parameter& parameter : parameters_) {
    const Tensor& shown = parameter.slots.front().get().tensor;
    if (!options_.original_parameters || !shown.defined()) continue;
    if (lockstep::requires_grad(shown) != parameter.requires_grad())  // frozen or thawed in the meantime
      set_requires_grad(parameter.view, lockstep::requires_grad(shown));
  }
  shows_full_ = holds_full_ = false;
  for (const Parameter& parameter : parameters_)
    for (const ParameterSlotRef& ref : parameter.slots) ref.get().listed = options_.original_parameters;
  if (!options_.original_parameters) flat_slot_.get().listed = true;
  put_views();
}

}  // namespace lockstep::parallel
