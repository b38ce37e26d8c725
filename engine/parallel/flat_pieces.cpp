#include "engine/parallel/flat_pieces.hpp"

#include <algorithm>
#include <memory>

#include "engine/autograd/autograd.hpp"
#include "engine/core/checked.hpp"
#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"
#include "engine/mesh/sharded.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::parallel {

namespace {

// The layout of the local tensor of a part over the mesh of the unit alone.
LayoutPtr layout_among_shards(const FlatParameterShards& unit, const Dims& sizes) {
  return std::make_shared<const layout::ShardedLayout>(
      layout::data_parallel_layout(unit.settings().mesh.axes(), sizes, 0));
}

}  // namespace

Dims full_sizes(const FlatParameterShards& unit, std::size_t index) {
  const LayoutPtr& inner = unit.parameter(index).inner_layout;
  return inner ? inner->sizes : unit.flat().entries[index].sizes;
}

LayoutPtr piece_layout(const FlatParameterShards& unit, std::size_t index) {
  const UnshardedParameter& parameter = unit.parameter(index);
  return std::make_shared<const layout::ShardedLayout>(
      unit.settings().mesh.layout_of(str("`", parameter.name, "` of ", unit.settings().owner),
                                     unit.flat().entries[index].sizes, parameter.inner_layout, 0));
}

LayoutPtr chunk_layout(const FlatParameterShards& unit) { return layout_among_shards(unit, {unit.flat().total}); }

std::int64_t local_length(const FlatParameterShards& unit) {
  const layout::FlatParameter& flat = unit.flat();
  const std::int64_t begin = bounded_product(flat.per_rank, unit.settings().mesh.shard_rank());
  return std::clamp<std::int64_t>(flat.total - begin, 0, flat.per_rank);
}

Tensor full_of(const Tensor& part) { return part.is_sharded() ? raw::clone(full_tensor(part)) : raw::clone(part); }

Tensor piece_of(const FlatParameterShards& unit, std::size_t index, const Tensor& part) {
  const Tensor local = local_tensor(part);
  Tensor mine = local_shard_of(local, *layout_among_shards(unit, local.sizes()));
  if (defect_armed(Defect::flat_piece_of_first_rank)) [[unlikely]]
    mine = slice(local, 0, 0, mine.size(0));
  return make_sharded(raw::clone(mine), piece_layout(unit, index));
}

Tensor full_of_piece(const FlatParameterShards& unit, std::size_t index, const Tensor& piece) {
  const Tensor mine = raw::to_device(local_tensor(piece), unit.settings().device);
  return full_tensor(make_sharded(mine, layout_among_shards(unit, unit.flat().entries[index].sizes)));
}

Tensor local_of_full(const FlatParameterShards& unit, std::size_t index, const Tensor& full) {
  const LayoutPtr& inner = unit.parameter(index).inner_layout;
  return inner ? local_shard_of(full, *inner) : full;
}

void write_stretch(const FlatParameterShards& unit, std::size_t index, const Tensor& chunk, const Tensor& local) {
  const layout::Stretch at = unit.stretch(index);
  if (defect_armed(Defect::flat_load_leaves_out_straddling) && at.begin > 0) [[unlikely]]
    return;
  // Also where the stretch is empty: all ranks must see that the chunk was written.
  raw::copy_(slice(chunk, 0, at.offset, at.offset + at.length), unit.stretch_of_full(local, index));
}

Tensor on_host(const Tensor& tensor) {
  const Tensor local = local_tensor(tensor);
  return local.device() == device::Device{} ? tensor : sharded_like(raw::to_device(local, device::Device{}), tensor);
}

bool is_flat_slot(const std::vector<FlatUnitShards>& units, const nn::StateSlot& slot) {
  if (slot.is_buffer) return false;
  return std::any_of(units.begin(), units.end(), [&slot](const FlatUnitShards& unit) {
    return !unit.shards->has_original_parameters() && slot.tensor().same_as(unit.shards->shard());
  });
}

}  // namespace lockstep::parallel
