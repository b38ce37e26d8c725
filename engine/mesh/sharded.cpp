#include "engine/mesh/sharded.hpp"

#include <utility>

#include "engine/core/checked.hpp"
#include "engine/core/error.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/mesh/redistribute.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep {

namespace {

void require_sharded(const char* operation, const Tensor& tensor) {
  if (!tensor.is_sharded())
    throw Error(str(operation, ": ", describe(tensor), " is a plain tensor"), "distribute it over a mesh first");
}

}  // namespace

Tensor make_sharded(const Tensor& local, LayoutPtr layout) {
  const Dims wanted = layout::local_sizes(*layout, RankContext::current().rank());
  if (local.sizes() != wanted)
    throw Error(str("make_sharded: a local shard of sizes ", to_text(local.sizes()), " for a tensor ", layout->text()),
                str("give the local shard of this rank, of sizes ", to_text(wanted)));
  return Tensor(std::shared_ptr<TensorImpl>(new TensorImpl(local.impl(), std::move(layout))));
}

Tensor make_sharded(const Tensor& local, layout::ShardedLayout layout) {
  return make_sharded(local, std::make_shared<const layout::ShardedLayout>(std::move(layout)));
}

Tensor local_shard_of(const Tensor& full, const layout::ShardedLayout& layout) {
  if (!(full.sizes() == layout.sizes))
    throw Error(str("the local shard of ", describe(full), " under ", layout.text()),
                "give a tensor of the global sizes");
  if (layout::has_partial(layout))
    throw Error(str("the local shard of a full tensor under ", layout.text(), ": a partial tensor has no shards"),
                "redistribute it first");
  Tensor shard = full;
  for (int dim = 0; dim < full.num_dims(); ++dim)
    shard = slice_ranges(shard, dim, layout::global_ranges(layout, RankContext::current().rank(), dim));
  return shard;
}

Tensor distribute(const Tensor& full, const DeviceMesh& mesh, const Placements& placements) {
  if (full.is_sharded())
    throw Error(str("distribute: ", describe_sharded(full), " is sharded already"),
                "redistribute it, or distribute its full_tensor()");
  const auto replicated = std::make_shared<const layout::ShardedLayout>(
      layout::ShardedLayout{mesh.shape(), Placements(static_cast<std::size_t>(mesh.num_axes())), full.sizes()});
  const Tensor made = redistribute(make_sharded(full, replicated), placements);
  // The result owns its memory and needs no more than that of the shard.
  return made.storage() == full.storage() ? sharded_like(raw::clone(local_tensor(made)), made) : made;
}

layout::ShardedLayout layout_of_local(const Tensor& local, const DeviceMesh& mesh, const Placements& placements,
                                      const Dims* sizes) {
  layout::ShardedLayout made{mesh.shape(), placements, sizes ? *sizes : local.sizes()};
  layout::check(made);
  if (!sizes)
    for (const layout::AxisSharding& sharding : layout::axis_shardings(made))
      made.sizes[sharding.dim] =
          checked_multiply(made.sizes[sharding.dim], mesh.shape().size(sharding.axis), "from_local");
  return made;
}

Tensor redistribute(const Tensor& tensor, const LayoutPtr& to) {
  require_sharded("redistribute", tensor);
  const LayoutPtr& from = tensor.layout();
  if (*from == *to) return tensor;
  return make_sharded(run_redistribute(local_tensor(tensor), *from, *to), to);
}

Tensor redistribute(const Tensor& tensor, const Placements& placements) {
  require_sharded("redistribute", tensor);
  return redistribute(
      tensor, std::make_shared<const layout::ShardedLayout>(layout::with_placements(*tensor.layout(), placements)));
}

Tensor full_tensor(const Tensor& tensor) {
  if (!tensor.is_sharded()) return tensor;
  return local_tensor(redistribute(tensor, Placements(tensor.layout()->placements.size())));
}

const Dims& global_sizes(const Tensor& tensor) { return tensor.is_sharded() ? tensor.layout()->sizes : tensor.sizes(); }

std::string describe_sharded(const Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_sharded()) return describe(tensor);
  return str(name_of(tensor.dtype()), " ", tensor.layout()->text(), ", on ", device::to_text(tensor.device()));
}

}  // namespace lockstep
