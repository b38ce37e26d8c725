// Each step moves equal parts, padded to the largest, in buffers that lie one part after the other. On meta there are
// only shapes, and nothing is sent.
#include "engine/mesh/redistribute.hpp"

#include <algorithm>
#include <utility>

#include "engine/comm/process_group.hpp"
#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/mesh/device_mesh.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep {

using layout::Chunk;
using layout::Cut;
using layout::PartialOp;
using layout::RedistributeOp;
using layout::RedistributeStep;

Tensor take_ranges(const Tensor& tensor, int dim, const std::vector<Chunk>& ranges) {
  if (ranges.empty()) return slice(tensor, dim, 0, 0);
  if (ranges.size() == 1) return slice(tensor, dim, ranges[0].begin, ranges[0].begin + ranges[0].length);
  std::vector<Tensor> pieces;
  pieces.reserve(ranges.size());
  for (const Chunk& range : ranges) pieces.push_back(slice(tensor, dim, range.begin, range.begin + range.length));
  return raw::cat(pieces, dim);
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

// Room for one part of these sizes from or for each rank of a group, as (ranks, sizes...).
Tensor buffer(int ranks, const Dims& sizes, const Tensor& like, bool cleared) {
  const device::PurposeScope purpose(device::Purpose::communication);
  Dims all = sizes;
  all.insert(0, ranks);
  return cleared ? zeros(all, like.dtype(), like.device()) : empty(all, like.dtype(), like.device());
}

class Executor {
 public:
  Executor(Tensor local, const layout::ShardedLayout& from)
      : local_(std::move(local)), sizes_(from.sizes), mesh_(from.mesh), cuts_(layout::cuts(from)) {}

  void run(const RedistributeStep& step) {
    switch (step.op) {
      case RedistributeOp::all_gather:
        return gather(step.undone);
      case RedistributeOp::all_to_all:
        return exchange(step.undone, step.made);
      case RedistributeOp::slice:
        local_ = take_ranges(local_, step.made.dim, ranges(step.made, own(step.made.axis), local_));
        cuts_.push_back(step.made);
        return;
      case RedistributeOp::all_reduce:
        return reduce(step);
      case RedistributeOp::reduce_scatter:
        return reduce_and_cut(step);
      case RedistributeOp::to_partial:
        return to_partial(step);
    }
  }
  const Tensor& local() const { return local_; }

 private:
  int parts(int axis) const { return mesh_.shape().size(axis); }
  int own(int axis) const { return mesh_.coordinates()[static_cast<std::size_t>(axis)]; }
  comm::Call call() const {
    comm::Call made;
    made.family = comm::Family::tensor_parallel;
    return made;
  }

  // Where the part of an index lies within a dim of `whole` that is cut so.
  std::vector<Chunk> ranges(const Cut& cut, int index, const Tensor& whole) const {
    return layout::cut_ranges(whole.sizes()[cut.dim], parts(cut.axis), index, cut.pieces);
  }
  // The length of a dim before its last cut, on this rank and on all that differ in that cut's axis alone.
  std::int64_t uncut_length(const Cut& last) const {
    std::int64_t length = sizes_[last.dim];
    for (const Cut& cut : cuts_)
      if (cut.dim == last.dim && !(cut == last))
        length = layout::total_length(layout::cut_ranges(length, parts(cut.axis), own(cut.axis), cut.pieces));
    return length;
  }
  void forget(const Cut& cut) { cuts_.erase(std::find(cuts_.begin(), cuts_.end(), cut)); }
  // The largest part, which index 0 has.
  std::int64_t largest(std::int64_t length, const Cut& cut) const {
    return layout::total_length(layout::cut_ranges(length, parts(cut.axis), 0, cut.pieces));
  }
  std::int64_t part_length(std::int64_t length, const Cut& cut, int index) const {
    return layout::total_length(layout::cut_ranges(length, parts(cut.axis), index, cut.pieces));
  }

  // The tensor in contiguous memory, padded at the end of a dim.
  static Tensor padded(const Tensor& tensor, int dim, std::int64_t length) {
    if (tensor.sizes()[dim] == length) return raw::contiguous(tensor);
    const device::PurposeScope purpose(device::Purpose::communication);
    const Tensor room = zeros(with_size(tensor.sizes(), dim, length), tensor.dtype(), tensor.device());
    raw::copy_(slice(room, dim, 0, tensor.sizes()[dim]), tensor);
    return room;
  }

  // Puts a part, of which the first elements of the dim count, where it belongs in `whole`.
  void place(const Tensor& whole, const Cut& cut, int index, const Tensor& part) const {
    std::int64_t begin = 0;
    Cut joined = cut;
    if (defect_armed(Defect::sharded_pieces_in_rank_order)) [[unlikely]]
      joined.pieces = 1;
    for (const Chunk& range : ranges(joined, index, whole)) {
      raw::copy_(slice(whole, cut.dim, range.begin, range.begin + range.length),
                 slice(part, cut.dim, begin, begin + range.length));
      begin += range.length;
    }
  }

  // A seeded defect: the parts as they lie in the buffer, as much as there is room for.
  static void join_padded(const Tensor& whole, const Cut& cut, const Tensor& all, std::int64_t part) {
    for (std::int64_t begin = 0, index = 0; begin < whole.sizes()[cut.dim]; begin += part, ++index) {
      const Tensor room = slice(whole, cut.dim, begin, begin + part);
      raw::copy_(room, slice(select(all, 0, index), cut.dim, 0, room.sizes()[cut.dim]));
    }
  }

  void gather(const Cut& cut) {
    const std::int64_t length = uncut_length(cut), part = largest(length, cut);
    const int n = parts(cut.axis);
    const Dims sizes = with_size(local_.sizes(), cut.dim, length);
    const Tensor mine = padded(local_, cut.dim, part);
    if (defect_armed(Defect::sharded_gathers_twice) && !local_.is_meta()) [[unlikely]]
      comm::all_gather(mesh_.group(cut.axis), buffer(n, mine.sizes(), local_, false), mine, call());
    if (cut.dim == 0 && cut.pieces == 1 && part * n == length) {  // they come to lie as they belong
      const Tensor whole = empty(sizes, local_.dtype(), local_.device());
      if (!local_.is_meta()) comm::all_gather(mesh_.group(cut.axis), whole, mine, call());
      local_ = whole;
    } else {
      const Tensor all = buffer(n, mine.sizes(), local_, false);
      if (!local_.is_meta()) comm::all_gather(mesh_.group(cut.axis), all, mine, call());
      const Tensor whole = empty(sizes, local_.dtype(), local_.device());
      for (int index = 0; index < n; ++index) place(whole, cut, index, select(all, 0, index));
      if (defect_armed(Defect::sharded_padding_leaked)) [[unlikely]]
        join_padded(whole, cut, all, part);
      local_ = whole;
    }
    forget(cut);
  }

  // The parts of all ranks, padded, one after the other.
  Tensor dealt(const Cut& cut, std::int64_t part) const {
    const int n = parts(cut.axis);
    if (cut.dim == 0 && cut.pieces == 1 && part * n == local_.sizes()[0]) return raw::contiguous(local_);
    const bool padding = part * n != local_.sizes()[cut.dim];
    const Tensor all = buffer(n, with_size(local_.sizes(), cut.dim, part), local_, padding);
    for (int index = 0; index < n; ++index) {
      const Tensor piece = take_ranges(local_, cut.dim, ranges(cut, index, local_));
      raw::copy_(slice(select(all, 0, index), cut.dim, 0, piece.sizes()[cut.dim]), piece);
    }
    return all;
  }

  void reduce(const RedistributeStep& step) {
    const Tensor whole = raw::clone(local_);
    if (!local_.is_meta()) comm::all_reduce(mesh_.group(step.axis), whole, reduce_op(step.reduce), call());
    local_ = whole;
  }

  void reduce_and_cut(const RedistributeStep& step) {
    const Cut& cut = step.made;
    const std::int64_t part = largest(local_.sizes()[cut.dim], cut);
    const std::int64_t mine = part_length(local_.sizes()[cut.dim], cut, own(cut.axis));
    const Tensor out = empty(with_size(local_.sizes(), cut.dim, part), local_.dtype(), local_.device());
    const Tensor all = dealt(cut, part);
    if (!local_.is_meta()) comm::reduce_scatter(mesh_.group(cut.axis), out, all, reduce_op(step.reduce), call());
    local_ = mine == part ? out : raw::clone(slice(out, cut.dim, 0, mine));
    cuts_.push_back(cut);
  }

  // Sends part r of the dim that is to be cut to rank r, and gets from each rank its part of the dim that was cut.
  void exchange(const Cut& undone, const Cut& made) {
    const int n = parts(undone.axis);
    const std::int64_t old_length = uncut_length(undone), old_part = largest(old_length, undone);
    const std::int64_t new_part = largest(local_.sizes()[made.dim], made);
    const std::int64_t mine = part_length(local_.sizes()[made.dim], made, own(made.axis));
    const Dims each = with_size(with_size(local_.sizes(), undone.dim, old_part), made.dim, new_part);
    const bool padding = local_.sizes()[undone.dim] != old_part || new_part * n != local_.sizes()[made.dim];
    const Tensor sent = buffer(n, each, local_, padding), got = buffer(n, each, local_, false);
    for (int index = 0; index < n; ++index) {
      const Tensor piece = take_ranges(local_, made.dim, ranges(made, index, local_));
      raw::copy_(slice(slice(select(sent, 0, index), undone.dim, 0, piece.sizes()[undone.dim]), made.dim, 0,
                       piece.sizes()[made.dim]),
                 piece);
    }
    if (!local_.is_meta()) comm::all_to_all(mesh_.group(undone.axis), got, sent, call());
    const Tensor whole = empty(with_size(with_size(local_.sizes(), undone.dim, old_length), made.dim, mine),
                               local_.dtype(), local_.device());
    for (int index = 0; index < n; ++index)
      place(whole, undone, index, slice(select(got, 0, index), made.dim, 0, mine));
    local_ = whole;
    forget(undone);
    cuts_.push_back(made);
  }

  // Shares of all ranks that reduce to the value. Integers cannot be divided: the first rank keeps them.
  void to_partial(const RedistributeStep& step) {
    if (step.reduce != PartialOp::sum && step.reduce != PartialOp::product) return;
    if (step.reduce == PartialOp::sum && is_floating(local_.dtype()))
      local_ = raw::div(local_, static_cast<double>(parts(step.axis)));
    else if (own(step.axis) != 0)
      local_ = full(local_.sizes(), step.reduce == PartialOp::sum ? 0.0 : 1.0, local_.dtype(), local_.device());
  }

  Tensor local_;
  Dims sizes_;  // of the whole
  DeviceMesh mesh_;
  std::vector<Cut> cuts_;  // those that `local_` has, in order
};

}  // namespace

Tensor run_redistribute(const Tensor& local, const layout::ShardedLayout& from, const layout::ShardedLayout& to) {
  const std::vector<RedistributeStep> steps = layout::plan_redistribute(from, to);
  Executor executor(local, from);
  for (const RedistributeStep& step : steps) executor.run(step);
  const Tensor result = executor.local();
  // A part of something larger is copied, so that what it came from can be freed.
  const bool is_part = result.storage() == local.storage() && !(result.sizes() == local.sizes());
  return is_part ? raw::clone(result) : raw::contiguous(result);
}

}  // namespace lockstep
