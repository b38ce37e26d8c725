#include "engine/parallel/shard_parameter.hpp"

#include <utility>

#include "engine/autograd/autograd.hpp"
#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::parallel {

nn::ParameterSlot& ParameterSlotRef::get() const {
  const auto module = owner.lock();
  LOCKSTEP_CHECK(module != nullptr && slot < module->parameters.size(), "the module of a sharded parameter is gone");
  return module->parameters[slot];
}

ShardParameter::ShardParameter(std::string name, std::vector<ParameterSlotRef> slots, int dim, const ShardMesh& mesh,
                               bool offload, bool pinned)
    : name_(std::move(name)), slots_(std::move(slots)) {
  const Tensor whole = slots_.front().get().tensor;
  cut_ = {whole.sizes(), dim, mesh.num_shards()};
  std::vector<layout::Placement> placements(static_cast<std::size_t>(mesh.mesh.num_axes()), layout::replicate());
  placements[static_cast<std::size_t>(mesh.shard_axis)] = layout::shard(dim);
  layout_ = std::make_shared<const layout::ShardedLayout>(
      layout::ShardedLayout{mesh.mesh.shape(), std::move(placements), whole.sizes()});

  const NoGrad no_grad;
  const device::PurposeScope purpose(device::Purpose::parameter);
  layout::Chunk part = layout::chunk(cut_.sizes[dim], cut_.parts, mesh.shard_rank());
  if (defect_armed(Defect::shard_wrong_slice) && cut_.sizes[dim] % cut_.parts != 0 && part.begin > 0) [[unlikely]]
    --part.begin;
  const Tensor source = slice(detach(whole), dim, part.begin, part.begin + part.length);
  Tensor local;
  if (offload && !whole.is_meta()) {
    local = empty(source.sizes(), source.dtype(), {}, pinned);
    raw::copy_(local, source);
  } else {
    local = raw::clone(source);
  }
  local.storage()->owner = name_;
  sharded_ = make_sharded(local, layout_);
  sharded_.set_name(whole.name());
  if (lockstep::requires_grad(whole)) set_requires_grad(sharded_, true);
  put_in_slots(sharded_);
}

bool ShardParameter::requires_grad() const { return lockstep::requires_grad(sharded_); }

void ShardParameter::adopt_slots() {
  const Tensor& now = slots_.front().get().tensor;
  if (now.same_as(sharded_)) return;
  if (defect_armed(Defect::shard_optimizer_sees_whole) && now.same_as(full_)) [[unlikely]]
    return;
  if (!now.defined() || !now.is_sharded() || !(*now.impl().layout == *layout_))
    throw Error(str("fully_shard: `", name_, "` was replaced by ", now.defined() ? describe(now) : "nothing",
                    ", which is not sharded as ", layout_->text()),
                "put a tensor of the same sharding in its place, as a state dict of the sharded module has them");
  sharded_ = now;
  put_in_slots(sharded_);
}

void ShardParameter::put_in_slots(const Tensor& tensor) const {
  for (const ParameterSlotRef& ref : slots_) {
    nn::ParameterSlot& slot = ref.get();
    slot.tensor = tensor;
    slot.sharded = defect_armed(Defect::shard_optimizer_sees_whole) && full_.defined() ? full_ : sharded_;
  }
}

void ShardParameter::show_sharded() { put_in_slots(sharded_); }
void ShardParameter::show_full() { put_in_slots(full_); }
void ShardParameter::show(const Tensor& kept) { put_in_slots(kept); }

bool ShardParameter::is_stale() const {
  const Storage& parts = *sharded_.storage();
  return gathered_from_ != &parts || gathered_version_ != parts.version();
}

Tensor ShardParameter::attach_full(DType dtype, device::Device device) {
  const bool changed = is_stale();
  gathered_from_ = sharded_.storage().get();
  gathered_version_ = sharded_.storage()->version();
  if (!full_.defined() || full_.dtype() != dtype || !(full_.device() == device)) {
    auto impl = std::make_shared<TensorImpl>();
    impl->sizes = cut_.sizes;
    impl->strides = contiguous_strides(cut_.sizes);
    impl->dtype = dtype;
    impl->name = sharded_.name();
    const std::size_t bytes = checked_bytes(cut_.sizes, size_of(dtype), "unshard");
    impl->storage = std::make_shared<Storage>(device, bytes, nullptr);
    impl->storage->owner = name_;
    full_ = Tensor(std::move(impl));
  } else if (changed) {
    full_.bump_version();  // a graph that saved the old values must not go on with the new ones
  }
  if (lockstep::requires_grad(full_) != requires_grad()) set_requires_grad(full_, requires_grad());

  Storage& storage = *full_.storage();
  auto memory = device::allocate(device, storage.bytes(), device::Purpose::gathered);
  storage.attach(memory);
  storage.state = "gathered";
  // Filled through a storage of its own: that the memory is back is no change of the parameter.
  auto impl = std::make_shared<TensorImpl>();
  impl->sizes = full_.sizes();
  impl->strides = full_.strides();
  impl->dtype = dtype;
  impl->storage = std::make_shared<Storage>(device, storage.bytes(), std::move(memory));
  return Tensor(std::move(impl));
}

void ShardParameter::release_full(const char* why) {
  if (!full_.defined()) return;
  full_.storage()->release();
  full_.storage()->state = why;
}

}  // namespace lockstep::parallel
