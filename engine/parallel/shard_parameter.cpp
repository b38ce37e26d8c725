#include "engine/parallel/shard_parameter.hpp"

#include <utility>

#include "engine/autograd/autograd.hpp"
#include "engine/comm/attribution.hpp"
#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::parallel {

nn::ParameterSlot& ParameterSlotRef::get() const {
  const auto module = owner.lock();
  LOCKSTEP_CHECK(module != nullptr && slot < module->parameters.size(), "the module of a sharded parameter is gone");
  return module->parameters[slot];
}

namespace {

// The range of a rank's shard along the sharded dim.
layout::Chunk rows_of(const layout::ShardedParameter& cut, int rank) {
  const std::int64_t size = cut.sizes[cut.dim];
  layout::Chunk rows = layout::chunk(size, cut.num_shards, rank);
  if (defect_armed(Defect::shard_wrong_slice) && size % cut.num_shards != 0 && rows.begin > 0) [[unlikely]]
    --rows.begin;
  return rows;
}

}  // namespace

layout::ShardedLayout ShardMesh::layout_of(const std::string& name, const Tensor& parameter, int dim) const {
  if (!parameter.is_sharded()) return layout::data_parallel_layout(axes(), parameter.sizes(), dim);
  layout::ShardedLayout made = layout::compose(name, axes(), *parameter.layout(), dim, RankContext::current().rank());
  if (defect_armed(Defect::shard_layout_not_strided)) [[unlikely]]
    for (layout::Placement& placement : made.placements)
      if (placement.is_shard()) placement = layout::shard(placement.dim);
  if (defect_armed(Defect::shard_layout_axes_swapped)) [[unlikely]]
    std::swap(made.placements[static_cast<std::size_t>(shard_axis)], made.placements.back());
  return made;
}

FullGradient reduced_over_inner_axes(const FullGradient& gradient, const std::string& owner) {
  if (!gradient.layout || !layout::has_partial(*gradient.layout)) return gradient;
  if (defect_armed(Defect::shard_inner_partial_kept)) [[unlikely]]
    return gradient;
  const comm::AttributionScope scope({comm::Family::tensor_parallel, owner});
  const LayoutPtr wanted = layout::gradient_layout(gradient.layout);
  return {local_tensor(redistribute(make_sharded(gradient.local, gradient.layout), wanted)), wanted};
}

ShardParameter::ShardParameter(std::string name, std::vector<ParameterSlotRef> slots, int dim, const ShardMesh& mesh,
                               bool offload, bool pinned)
    : name_(std::move(name)), slots_(std::move(slots)) {
  const Tensor full = slots_.front().get().tensor;
  cut_ = {full.sizes(), dim, mesh.num_shards()};
  inner_layout_ = full.layout();
  layout_ = std::make_shared<const layout::ShardedLayout>(mesh.layout_of(name_, full, dim));

  const NoGrad no_grad;
  const device::PurposeScope purpose(device::Purpose::parameter);
  const layout::Chunk rows = rows_of(cut_, mesh.shard_rank());
  const Tensor source = slice(detach(full), dim, rows.begin, rows.begin + rows.length);
  Tensor local;
  if (offload && !full.is_meta()) {
    local = empty(source.sizes(), source.dtype(), {}, pinned);
    raw::copy_(local, source);
  } else {
    local = raw::clone(source);
  }
  local.storage()->owner = name_;
  sharded_ = make_sharded(local, layout_);
  sharded_.set_name(full.name());
  if (lockstep::requires_grad(full)) set_requires_grad(sharded_, true);
  put_in_slots(sharded_);
}

bool ShardParameter::requires_grad() const { return lockstep::requires_grad(sharded_); }

void ShardParameter::adopt_slots() {
  const Tensor& now = slots_.front().get().tensor;
  if (now.same_as(sharded_) || now.same_as(seen_by_optimizers())) return;
  if (!now.defined() || !now.is_sharded() || !(*now.layout() == *layout_))
    throw Error(str("fully_shard: `", name_, "` was replaced by ", now.defined() ? describe(now) : "nothing",
                    ", which is not sharded as ", layout_->text()),
                "assign a tensor of that sharding, such as one of a state dict of the sharded module");
  sharded_ = now;
  put_in_slots(sharded_);
}

void ShardParameter::put_in_slots(const Tensor& tensor) const {
  for (const ParameterSlotRef& ref : slots_) {
    nn::ParameterSlot& slot = ref.get();
    slot.tensor = tensor;
    slot.sharded = seen_by_optimizers();
  }
}

const Tensor& ShardParameter::seen_by_optimizers() const {
  if (defect_armed(Defect::shard_optimizer_sees_whole) && unsharded_.defined()) [[unlikely]]
    return unsharded_;
  return sharded_;
}

void ShardParameter::put_sharded() { put_in_slots(sharded_); }
void ShardParameter::put_unsharded() { put_in_slots(unsharded_); }
void ShardParameter::put(const Tensor& kept) { put_in_slots(kept); }

bool ShardParameter::keeps_inner_layout() const {
  return inner_layout_ && !defect_armed(Defect::shard_unsharded_without_layout);
}

bool ShardParameter::is_stale() const {
  const Storage& shard = *sharded_.storage();
  return gathered_from_ != &shard || gathered_version_ != shard.version();
}

Tensor ShardParameter::allocate_unsharded(DType dtype, device::Device device) {
  const bool changed = is_stale();
  gathered_from_ = sharded_.storage().get();
  gathered_version_ = sharded_.storage()->version();
  if (!unsharded_.defined() || unsharded_.dtype() != dtype || !(unsharded_.device() == device)) {
    auto impl = std::make_shared<TensorImpl>();
    impl->sizes = cut_.sizes;
    impl->strides = contiguous_strides(cut_.sizes);
    impl->dtype = dtype;
    const std::size_t bytes = checked_bytes(cut_.sizes, size_of(dtype), "unshard");
    impl->storage = std::make_shared<Storage>(device, bytes, nullptr);
    impl->storage->owner = name_;
    const Tensor local(std::move(impl));
    unsharded_ = keeps_inner_layout() ? make_sharded(local, inner_layout_) : local;
    unsharded_.set_name(sharded_.name());
  } else if (changed) {
    unsharded_.bump_version();  // a backward through a graph that saved the old values is an error
  }
  if (lockstep::requires_grad(unsharded_) != requires_grad()) set_requires_grad(unsharded_, requires_grad());

  Storage& storage = *unsharded_.storage();
  auto memory = device::allocate(device, storage.bytes(), device::Purpose::gathered);
  storage.attach(memory);
  storage.state = "gathered";
  // Copy-out writes through a second storage, so that the version of the parameter stays the same.
  auto impl = std::make_shared<TensorImpl>();
  impl->sizes = unsharded_.sizes();
  impl->strides = unsharded_.strides();
  impl->dtype = dtype;
  impl->storage = std::make_shared<Storage>(device, storage.bytes(), std::move(memory));
  return Tensor(std::move(impl));
}

void ShardParameter::free_unsharded(const char* why) {
  if (!unsharded_.defined()) return;
  unsharded_.storage()->release();
  unsharded_.storage()->state = why;
}

}  // namespace lockstep::parallel
