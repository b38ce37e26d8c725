// Shards that a group keeps after forward, with `reshard_after_forward: n`: every n consecutive ranks of the shard axis
// hold all of them, so that the all-gather in backward runs among these n ranks.
#include <utility>

#include "engine/autograd/autograd.hpp"
#include "engine/core/checked.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/parallel/parameter_shards.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::parallel {

// Each of `ranks` consecutive ranks keeps num_shards / ranks padded shards per parameter, in the order of the flat
// buffer, so that the all-gather among them gives the same flat output. The tensors in the slots have no padding.
KeptShards PerParameterShards::install_kept(int ranks) {
  const NoGrad no_grad;
  const device::PurposeScope purpose(device::Purpose::gathered);
  const comm::ProcessGroup& group = settings().mesh.shard_group();
  const int shards_per_rank = settings().mesh.num_shards() / ranks;
  const int rank = group.rank() % ranks;
  KeptShards kept;
  kept.ranks = ranks;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    ShardParameter& parameter = parameters_[i];
    const layout::ShardedParameter& cut = cuts_[i];
    const Tensor piece = copy_kept_piece(i, rank, shards_per_rank);
    kept.pieces.push_back(piece);

    const layout::Chunk rows = layout::chunk(cut.sizes[cut.dim], ranks, rank);
    const Tensor unpadded = slice(detach(parameter.leaf), cut.dim, rows.begin, rows.begin + rows.length);
    const bool is_piece = cut.dim == 0 && cut.sizes[0] % cut.num_shards == 0;  // no padding, and contiguous rows
    const Tensor local = is_piece ? view(piece, unpadded.sizes()) : raw::clone(unpadded);
    const Tensor shown =
        make_sharded(local, layout::kept_layout(settings().mesh.axes(), parameter.inner_layout.get(), cut.sizes,
                                                cut.dim, ranks, RankContext::current().rank()));
    shown.set_name(parameter.sharded().name());
    if (parameter.requires_grad()) set_requires_grad(shown, true);
    parameter.free_unsharded("sharded over fewer ranks after forward");
    parameter.put(shown);
    kept.shown.push_back(shown);
  }
  kept.written = device::current_stream(settings().device).record();
  return kept;
}

// The padded shards of one parameter that this rank keeps, in the layout of an all-gather of this parameter alone.
Tensor PerParameterShards::copy_kept_piece(std::size_t index, int rank, int shards_per_rank) const {
  const layout::ShardedParameter& cut = cuts_[index];
  const std::int64_t elements = layout::padded_shard_elements(cut);
  const Dims sizes = layout::padded_shard_sizes(cut);
  const Tensor piece =
      empty({checked_multiply(elements, shards_per_rank, "shards kept of a group")}, compute_type(), settings().device);
  const Tensor full = detach(parameters_[index].leaf);
  for (int number = 0; number < shards_per_rank; ++number) {
    const layout::Chunk rows = layout::chunk(cut.sizes[cut.dim], cut.num_shards, rank * shards_per_rank + number);
    const Tensor to = as_strided(piece, sizes, contiguous_strides(sizes), bounded_product(elements, number));
    if (rows.length < sizes[cut.dim] && elements > 0) raw::zero_(slice(to, cut.dim, rows.length, sizes[cut.dim]));
    if (rows.length > 0)
      raw::copy_(slice(to, cut.dim, 0, rows.length), slice(full, cut.dim, rows.begin, rows.begin + rows.length));
  }
  return piece;
}

}  // namespace lockstep::parallel
