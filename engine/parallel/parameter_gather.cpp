// The flat buffers of an all-gather of parameters that are sharded one by one.
#include "engine/autograd/autograd.hpp"
#include "engine/core/checked.hpp"
#include "engine/core/defects.hpp"
#include "engine/parallel/parameter_shards.hpp"
#include "engine/parallel/shard_copies.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::parallel {

layout::FlatShards PerParameterShards::gather_plan(int num_ranks) const {
  return layout::make_flat_shards(cuts_, settings().mesh.num_shards() / num_ranks);
}

Tensor PerParameterShards::gather_input(const KeptShards* kept) {
  for (ShardParameter& parameter : parameters_) parameter.note_gathered();
  if (!kept && has_extensions()) return pack_extended();
  const layout::FlatShards flat = gather_plan(kept ? kept->ranks : settings().mesh.num_shards());
  const Tensor input = empty({flat.per_rank}, compute_type(), settings().device);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!kept) {
      copy_shard(input, flat, i);
      continue;
    }
    const Tensor& piece = kept->pieces[i];
    raw::copy_(slice(input, 0, flat.offsets[i], flat.offsets[i] + piece.num_elements()), piece);
  }
  return input;
}

void PerParameterShards::copy_shard(const Tensor& input, const layout::FlatShards& flat, std::size_t index) const {
  const Tensor shard = local_tensor(parameters_[index].sharded());
  if (shard.num_elements() == 0) return;
  const Dims padded = layout::padded_shard_sizes(cuts_[index]);
  const Tensor to = as_strided(input, shard.sizes(), contiguous_strides(padded), input_offset(flat, index));
  if (!offloads()) {
    raw::copy_(to, shard);
  } else if (to.dtype() == shard.dtype() && to.is_contiguous() && shard.is_contiguous()) {
    device::copy_bytes(device::current_stream(settings().device), write(to), read(shard));
  } else {
    const Tensor on_device = empty(shard.sizes(), shard.dtype(), settings().device);
    device::copy_bytes(device::current_stream(settings().device), write(on_device), read(raw::contiguous(shard)));
    raw::copy_(to, on_device);
  }
}

// Where the shard of a parameter begins. A shard without rows takes the room of a padded shard, too.
std::int64_t PerParameterShards::input_offset(const layout::FlatShards& flat, std::size_t index) const {
  std::int64_t offset = flat.offsets[index];
  if (defect_armed(Defect::shard_empty_part_offset)) [[unlikely]]
    for (std::size_t i = 0; i < index; ++i)
      if (local_tensor(parameters_[i].sharded()).num_elements() == 0) offset -= layout::padded_shard_elements(cuts_[i]);
  return offset;
}

Tensor PerParameterShards::gather_output(const Tensor& input, int num_ranks) {
  const device::PurposeScope purpose(device::Purpose::communication, &settings().owner);
  return empty({checked_multiply(input.size(0), num_ranks, "all_gather of a group")}, input.dtype(), settings().device);
}

bool PerParameterShards::install_unsharded(const Tensor& gathered, int num_ranks) {
  const layout::FlatShards flat = gather_plan(num_ranks);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    ShardParameter& parameter = parameters_[i];
    const Tensor memory = parameter.allocate_unsharded(compute_type(), settings().device);
    if (sent_.empty())
      copy_out(memory, gathered, cuts_[i], flat, i);
    else
      unpack_extended(i, gathered, memory);
    parameter.put_unsharded();
  }
  return false;
}

// A parameter that was tied after it was sharded may have been frozen or thawed under its other name.
void PerParameterShards::show_unsharded() {
  for (const ShardParameter& parameter : parameters_)
    if (requires_grad(parameter.leaf) != parameter.requires_grad())
      set_requires_grad(parameter.leaf, parameter.requires_grad());
}

std::optional<UsedMemory> PerParameterShards::install_shards() {
  for (ShardParameter& parameter : parameters_) {
    parameter.free_unsharded("sharded");
    parameter.put_sharded();
  }
  return std::nullopt;
}

}  // namespace lockstep::parallel
