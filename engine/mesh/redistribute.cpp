// Runs redistribution steps with collectives over padded shards of equal size. On meta only shapes change and nothing
// is sent.
#include "engine/mesh/redistribute.hpp"

#include <algorithm>
#include <utility>

#include "engine/comm/attribution.hpp"
#include "engine/comm/process_group.hpp"
#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/mesh/device_mesh.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep {

using layout::AxisSharding;
using layout::Chunk;
using layout::PartialOp;
using layout::RedistributeOp;
using layout::RedistributeStep;

Tensor slice_ranges(const Tensor& tensor, int dim, const std::vector<Chunk>& ranges) {
  if (ranges.empty()) return slice(tensor, dim, 0, 0);
  if (ranges.size() == 1) return slice(tensor, dim, ranges[0].begin, ranges[0].begin + ranges[0].length);
  std::vector<Tensor> slices;
  slices.reserve(ranges.size());
  for (const Chunk& range : ranges) slices.push_back(slice(tensor, dim, range.begin, range.begin + range.length));
  return raw::cat(slices, dim);
}

namespace {

comm::ReduceOp reduce_op(PartialOp op) {
  switch (op) {
    case PartialOp::sum:
      return comm::ReduceOp::sum;
    case PartialOp::mean:
      return comm::ReduceOp::mean;
    case PartialOp::max:
      return comm::ReduceOp::max;
    case PartialOp::min:
      return comm::ReduceOp::min;
    case PartialOp::product:
      return comm::ReduceOp::product;
  }
  return comm::ReduceOp::sum;
}

Dims with_size(Dims sizes, int dim, std::int64_t size) {
  sizes[dim] = size;
  return sizes;
}

// A communication buffer (ranks, sizes...): one shard per rank of a group.
Tensor buffer(int ranks, const Dims& sizes, const Tensor& like, bool cleared) {
  const device::PurposeScope purpose(device::Purpose::communication);
  Dims all = sizes;
  all.insert(0, ranks);
  return cleared ? zeros(all, like.dtype(), like.device()) : empty(all, like.dtype(), like.device());
}

// `tensor` in contiguous memory, padded with zeros at the end of a dim.
Tensor padded(const Tensor& tensor, int dim, std::int64_t length) {
  if (tensor.sizes()[dim] == length) return raw::contiguous(tensor);
  const device::PurposeScope purpose(device::Purpose::communication);
  const Tensor room = zeros(with_size(tensor.sizes(), dim, length), tensor.dtype(), tensor.device());
  raw::copy_(slice(room, dim, 0, tensor.sizes()[dim]), tensor);
  return room;
}

// The ranges of a gathered dim of `length` elements that shard `index` of `num_shards` fills. `padded_length`: of one
// shard in the buffer.
std::vector<Chunk> ranges_to_fill(std::int64_t length, int num_shards, int index, int num_splits,
                                  std::int64_t padded_length) {
  if (defect_armed(Defect::sharded_pieces_in_rank_order)) [[unlikely]]
    num_splits = 1;
  if (defect_armed(Defect::sharded_padding_leaked)) [[unlikely]] {
    const std::int64_t begin = std::min(length, index * padded_length);
    return {{begin, std::min(length - begin, padded_length)}};
  }
  return layout::shard_ranges(length, num_shards, index, num_splits);
}

// Copies a padded shard to its place in the gathered tensor.
void place(const Tensor& gathered, const AxisSharding& sharding, int num_shards, int index, const Tensor& shard) {
  const int dim = sharding.dim;
  std::int64_t begin = 0;
  for (const Chunk& range :
       ranges_to_fill(gathered.sizes()[dim], num_shards, index, sharding.num_splits, shard.sizes()[dim])) {
    raw::copy_(slice(gathered, dim, range.begin, range.begin + range.length),
               slice(shard, dim, begin, begin + range.length));
    begin += range.length;
  }
}

void gather_shards(comm::ProcessGroup& group, const Tensor& gathered, const Tensor& mine) {
  if (mine.is_meta()) return;
  comm::all_gather(group, gathered, mine, comm::attributed_call());
  if (defect_armed(Defect::sharded_gathers_twice)) [[unlikely]]
    comm::all_gather(group, gathered, mine, comm::attributed_call());
}

// Holds the local shard and the shardings that are applied to it; each step changes both.
class Executor {
 public:
  Executor(Tensor local, const layout::ShardedLayout& from)
      : local_(std::move(local)), sizes_(from.sizes), mesh_(from.mesh), shardings_(layout::axis_shardings(from)) {}

  void run(const RedistributeStep& step) {
    switch (step.op) {
      case RedistributeOp::all_gather:
        return gather(step.removed);
      case RedistributeOp::all_to_all:
        return exchange(step.removed, step.added);
      case RedistributeOp::slice:
        return slice_own_shard(step.added);
      case RedistributeOp::all_reduce:
        return reduce(step);
      case RedistributeOp::reduce_scatter:
        return reduce_and_shard(step);
      case RedistributeOp::to_partial:
        return to_partial(step);
    }
  }
  const Tensor& local() const { return local_; }

 private:
  int num_shards(int axis) const { return mesh_.shape().size(axis); }
  int own_index(int axis) const { return mesh_.coordinates()[static_cast<std::size_t>(axis)]; }

  // The ranges of shard `index` in a dim of `length` elements.
  std::vector<Chunk> ranges(const AxisSharding& sharding, int index, std::int64_t length) const {
    return layout::shard_ranges(length, num_shards(sharding.axis), index, sharding.num_splits);
  }
  std::int64_t shard_length(const AxisSharding& sharding, int index, std::int64_t length) const {
    return layout::total_length(ranges(sharding, index, length));
  }
  // The length of the largest shard, which is that of index 0.
  std::int64_t padded_length(const AxisSharding& sharding, std::int64_t length) const {
    return shard_length(sharding, 0, length);
  }
  // The length of the dim without its last sharding. It is equal on all ranks along the axis of that sharding.
  std::int64_t length_without(const AxisSharding& last) const {
    std::int64_t length = sizes_[last.dim];
    for (const AxisSharding& sharding : shardings_)
      if (sharding.dim == last.dim && !(sharding == last))
        length = shard_length(sharding, own_index(sharding.axis), length);
    return length;
  }
  void remove(const AxisSharding& sharding) {
    shardings_.erase(std::find(shardings_.begin(), shardings_.end(), sharding));
  }
  // Whether the shards of all ranks, in rank order and without padding, are the tensor of `length` rows.
  bool shards_are_consecutive_rows(const AxisSharding& sharding, std::int64_t padded, std::int64_t length) const {
    return sharding.dim == 0 && sharding.num_splits == 1 && padded * num_shards(sharding.axis) == length;
  }

  void slice_own_shard(const AxisSharding& sharding) {
    local_ =
        slice_ranges(local_, sharding.dim, ranges(sharding, own_index(sharding.axis), local_.sizes()[sharding.dim]));
    shardings_.push_back(sharding);
  }

  void gather(const AxisSharding& sharding) {
    const int n = num_shards(sharding.axis);
    const std::int64_t length = length_without(sharding), each = padded_length(sharding, length);
    const Dims sizes = with_size(local_.sizes(), sharding.dim, length);
    const Tensor mine = padded(local_, sharding.dim, each);
    if (shards_are_consecutive_rows(sharding, each, length)) {
      const Tensor gathered = empty(sizes, mine.dtype(), mine.device());
      gather_shards(mesh_.group(sharding.axis), gathered, mine);
      local_ = gathered;
    } else {
      const Tensor shards = buffer(n, mine.sizes(), mine, false);
      gather_shards(mesh_.group(sharding.axis), shards, mine);
      const Tensor gathered = empty(sizes, mine.dtype(), mine.device());
      for (int index = 0; index < n; ++index) place(gathered, sharding, n, index, select(shards, 0, index));
      local_ = gathered;
    }
    remove(sharding);
  }

  // The local tensor as one padded shard per rank, in rank order: the input of a reduce_scatter.
  Tensor split_into_shards(const AxisSharding& sharding, std::int64_t padded) const {
    const int n = num_shards(sharding.axis);
    const std::int64_t length = local_.sizes()[sharding.dim];
    if (shards_are_consecutive_rows(sharding, padded, length)) return raw::contiguous(local_);
    const Tensor shards = buffer(n, with_size(local_.sizes(), sharding.dim, padded), local_, padded * n != length);
    for (int index = 0; index < n; ++index) {
      const Tensor shard = slice_ranges(local_, sharding.dim, ranges(sharding, index, length));
      raw::copy_(slice(select(shards, 0, index), sharding.dim, 0, shard.sizes()[sharding.dim]), shard);
    }
    return shards;
  }

  void reduce(const RedistributeStep& step) {
    const Tensor reduced = raw::clone(local_);
    if (!local_.is_meta())
      comm::all_reduce(mesh_.group(step.axis), reduced, reduce_op(step.reduce), comm::attributed_call());
    local_ = reduced;
  }

  void reduce_and_shard(const RedistributeStep& step) {
    const AxisSharding& sharding = step.added;
    const std::int64_t length = local_.sizes()[sharding.dim], each = padded_length(sharding, length);
    const std::int64_t mine = shard_length(sharding, own_index(sharding.axis), length);
    const Tensor out = empty(with_size(local_.sizes(), sharding.dim, each), local_.dtype(), local_.device());
    const Tensor shards = split_into_shards(sharding, each);
    if (!local_.is_meta())
      comm::reduce_scatter(mesh_.group(sharding.axis), out, shards, reduce_op(step.reduce), comm::attributed_call());
    local_ = mine == each ? out : raw::clone(slice(out, sharding.dim, 0, mine));
    shardings_.push_back(sharding);
  }

  // Sends shard r of the dim that becomes sharded to rank r; receives from each rank its shard of the dim that is
  // gathered.
  void exchange(const AxisSharding& removed, const AxisSharding& added) {
    const int n = num_shards(removed.axis);
    const std::int64_t gathered_length = length_without(removed),
                       gathered_each = padded_length(removed, gathered_length);
    const std::int64_t length = local_.sizes()[added.dim], each = padded_length(added, length);
    const std::int64_t mine = shard_length(added, own_index(added.axis), length);
    const Dims block = with_size(with_size(local_.sizes(), removed.dim, gathered_each), added.dim, each);
    const bool has_padding = local_.sizes()[removed.dim] != gathered_each || each * n != length;
    const Tensor sent = buffer(n, block, local_, has_padding), received = buffer(n, block, local_, false);
    for (int index = 0; index < n; ++index) {
      const Tensor shard = slice_ranges(local_, added.dim, ranges(added, index, length));
      raw::copy_(slice(slice(select(sent, 0, index), removed.dim, 0, shard.sizes()[removed.dim]), added.dim, 0,
                       shard.sizes()[added.dim]),
                 shard);
    }
    if (!local_.is_meta()) comm::all_to_all(mesh_.group(removed.axis), received, sent, comm::attributed_call());
    const Tensor result = empty(with_size(with_size(local_.sizes(), removed.dim, gathered_length), added.dim, mine),
                                local_.dtype(), local_.device());
    for (int index = 0; index < n; ++index)
      place(result, removed, n, index, slice(select(received, 0, index), added.dim, 0, mine));
    local_ = result;
    remove(removed);
    shardings_.push_back(added);
  }

  // Gives each rank a contribution such that the reduction over the ranks is the value. An integer sum cannot be
  // divided: the first rank keeps the value and the others hold zeros.
  void to_partial(const RedistributeStep& step) {
    if (step.reduce != PartialOp::sum && step.reduce != PartialOp::product) return;
    if (defect_armed(Defect::tensor_bias_on_every_rank)) [[unlikely]]
      return;
    if (step.reduce == PartialOp::sum && is_floating(local_.dtype()))
      local_ = raw::div(local_, static_cast<double>(num_shards(step.axis)));
    else if (own_index(step.axis) != 0)
      local_ = full(local_.sizes(), step.reduce == PartialOp::sum ? 0.0 : 1.0, local_.dtype(), local_.device());
  }

  Tensor local_;
  Dims sizes_;  // of the full tensor
  DeviceMesh mesh_;
  std::vector<AxisSharding> shardings_;  // of `local_`, in the order in which they are applied
};

}  // namespace

Tensor run_redistribute(const Tensor& local, const layout::ShardedLayout& from, const layout::ShardedLayout& to) {
  const std::vector<RedistributeStep> steps = layout::redistribute_steps(from, to);
  Executor executor(local, from);
  for (const RedistributeStep& step : steps) executor.run(step);
  const Tensor result = executor.local();
  // The result has its own memory on every rank, also where a slice is the whole tensor.
  return result.storage() == local.storage() ? raw::clone(result) : raw::contiguous(result);
}

}  // namespace lockstep
