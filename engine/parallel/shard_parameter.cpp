#include "engine/parallel/shard_parameter.hpp"

#include <algorithm>
#include <utility>

#include "engine/autograd/autograd.hpp"
#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::parallel {

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

ShardParameter::ShardParameter(std::string name_below, std::vector<ParameterSlotRef> of, int dim,
                               const GroupSettings& settings)
    : UnshardedParameter(std::move(name_below), std::move(of)) {
  const ShardMesh& mesh = settings.mesh;
  const Tensor full = slots.front().get().tensor;
  cut_ = {full.sizes(), dim, mesh.num_shards()};
  inner_layout = full.layout();
  layout_ = std::make_shared<const layout::ShardedLayout>(mesh.layout_of(name, full, dim));

  const NoGrad no_grad;
  const device::PurposeScope purpose(device::Purpose::parameter, &name);
  const layout::Chunk rows = rows_of(cut_, mesh.shard_rank());
  const Tensor source = slice(detach(full), dim, rows.begin, rows.begin + rows.length);
  Tensor local;
  if (offloads(settings) && !full.is_meta()) {
    local = empty_offloaded(settings, source.sizes(), source.dtype());
    raw::copy_(local, source);
  } else {
    local = raw::clone(source);
  }
  local.storage()->owner = name;
  sharded_ = make_sharded(local, layout_);
  sharded_.set_name(full.name());
  if (lockstep::requires_grad(full)) set_requires_grad(sharded_, true);
  put_in_slots(sharded_);
}

bool ShardParameter::requires_grad() const { return lockstep::requires_grad(sharded_); }

void ShardParameter::adopt_slots() {
  const auto num_replaced = std::count_if(slots.begin(), slots.end(), [this](const ParameterSlotRef& ref) {
    const Tensor& tensor = ref.get().tensor;
    return !tensor.same_as(sharded_) && !tensor.same_as(seen_by_optimizers());
  });
  if (num_replaced == 0) return;
  if (num_replaced < std::ssize(slots)) {
    put_in_slots(sharded_);
    throw Error(str("fully_shard: `", name, "` is one parameter in ", slots.size(), " slots, and was replaced in ",
                    num_replaced, " of them"),
                "assign a tensor to each of its slots");
  }
  const Tensor& now = slots.front().get().tensor;
  if (!now.defined() || !now.is_sharded() || !(*now.layout() == *layout_))
    throw Error(str("fully_shard: `", name, "` was replaced by ", now.defined() ? describe_sharded(now) : "nothing",
                    ", which is not sharded as ", layout_->text()),
                "assign a tensor of that sharding, such as one of a state dict of the sharded module");
  sharded_ = now;
  put_in_slots(sharded_);
}

void ShardParameter::put_in_slots(const Tensor& tensor) const {
  for (const ParameterSlotRef& ref : slots) {
    nn::ParameterSlot& slot = ref.get();
    slot.tensor = tensor;
    slot.sharded = seen_by_optimizers();
  }
}

const Tensor& ShardParameter::seen_by_optimizers() const {
  if (defect_armed(Defect::shard_optimizer_sees_whole) && leaf.defined()) [[unlikely]]
    return leaf;
  return sharded_;
}

void ShardParameter::put_sharded() { put_in_slots(sharded_); }
void ShardParameter::put_unsharded() { put_in_slots(leaf); }
void ShardParameter::put(const Tensor& kept) { put_in_slots(kept); }

bool ShardParameter::keeps_inner_layout() const {
  return inner_layout && !defect_armed(Defect::shard_unsharded_without_layout);
}

void ShardParameter::note_gathered() { gathered_ = version_of(sharded_); }
bool ShardParameter::is_stale() const { return gathered_ != version_of(sharded_); }

Tensor ShardParameter::allocate_unsharded(DType dtype, device::Device device) {
  const bool changed = std::exchange(unsharded_, gathered_) != gathered_;
  if (!leaf.defined() || leaf.dtype() != dtype || !(leaf.device() == device)) {
    if (leaf.defined()) mark_replaced(leaf, dtype);
    auto impl = std::make_shared<TensorImpl>();
    impl->sizes = cut_.sizes;
    impl->strides = contiguous_strides(cut_.sizes);
    impl->dtype = dtype;
    const std::size_t bytes = checked_bytes(cut_.sizes, size_of(dtype), "unshard");
    impl->storage = std::make_shared<Storage>(device, bytes, nullptr);
    impl->storage->owner = name;
    const Tensor local(std::move(impl));
    leaf = keeps_inner_layout() ? make_sharded(local, inner_layout) : local;
    leaf.set_name(sharded_.name());
    is_new_leaf = true;
  } else if (changed) {
    leaf.bump_version();  // a backward through a graph that saved the old values is an error
  }
  if (lockstep::requires_grad(leaf) != requires_grad()) set_requires_grad(leaf, requires_grad());

  Storage& storage = *leaf.storage();
  const device::PurposeScope purpose(device::Purpose::gathered, &name);
  auto memory = device::allocate(device, storage.bytes());
  storage.attach(memory);
  storage.state = "gathered";
  // Copy-out writes through a second storage, so that the version of the parameter stays the same.
  auto impl = std::make_shared<TensorImpl>();
  impl->sizes = leaf.sizes();
  impl->strides = leaf.strides();
  impl->dtype = dtype;
  impl->storage = std::make_shared<Storage>(device, storage.bytes(), std::move(memory));
  return Tensor(std::move(impl));
}

void ShardParameter::free_unsharded(const char* why) {
  if (!leaf.defined()) return;
  leaf.storage()->release();
  leaf.storage()->state = why;
}

}  // namespace lockstep::parallel
