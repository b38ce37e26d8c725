#include "engine/parallel/waits.hpp"

#include <array>

#include "engine/core/text.hpp"

namespace lockstep::parallel {

namespace {

using enum WaitEdge;
using enum Defect;

constexpr std::array table = {
    WaitEdgeInfo{compute_for_bucket_all_reduce, "compute, at the end of a backward", "the all-reduce of each bucket",
                 "the means are added to the gradients on compute", replicate_wait_left_out},
    WaitEdgeInfo{compute_for_bucket_division, "compute, at the end of a backward",
                 "the division of each bucket, on a mesh of several axes", "the same", replicate_wait_left_out},
    WaitEdgeInfo{copy_in_for_optimizer, "copy-in, at the forward of the root",
                 "compute, or the post-optimizer event if one is set", "the optimizer writes the shards",
                 shard_gather_ignores_optimizer},
    WaitEdgeInfo{copy_in_for_shard_writes,
                 "copy-in, in `unshard()`, after a tensor was put in a slot of flat_shard, and in backward if the "
                 "shards have changed",
                 "compute", "a load or an optimizer step may have written the shards since the forward began",
                 shard_unshard_ignores_compute},
    WaitEdgeInfo{copy_in_for_kept_shards, "copy-in, in backward, with `reshard_after_forward: n`",
                 "the copy that kept the shards", "it reads the kept shards, which compute writes late in forward",
                 shard_gather_ignores_kept_parts},
    WaitEdgeInfo{all_gather_for_copy_in, "all-gather", "copy-in", "it reads the flat input",
                 shard_gather_ignores_copy_in},
    WaitEdgeInfo{compute_for_all_gather, "compute", "the all-gather", "copy-out reads the flat output",
                 shard_compute_ignores_gather},
    WaitEdgeInfo{compute_for_unused_all_gather, "compute, before it drops an unused all-gather", "the all-gather",
                 "the flat buffers are freed after it", shard_compute_ignores_gather},
    WaitEdgeInfo{compute_for_unused_copy_in, "compute, after a forward or backward that leaves an all-gather unused",
                 "copy-in, and the all-gather if its flat input is the shard itself (flat_shard)",
                 "it reads the shards, and the optimizer writes them", shard_optimizer_ignores_unused_gather},
    WaitEdgeInfo{copy_in_for_copy_out, "copy-in", "copy-out, which runs after the all-gather",
                 "the flat input is freed on copy-in", shard_input_freed_early},
    WaitEdgeInfo{all_gather_for_copy_out, "all-gather", "copy-out", "the flat output is freed on all-gather",
                 shard_output_freed_early},
    WaitEdgeInfo{all_gather_for_unsharded_use,
                 "all-gather, before the next but one all-gather of flat_shard, before one ahead of its turn, at the "
                 "end of a forward or backward, and when nothing holds the parameters of a dropped model any more",
                 "compute, up to the reshard of a flat parameter or the drop of its last owner",
                 "the memory of the unsharded parameters is freed on all-gather", flat_memory_freed_early},
    WaitEdgeInfo{reduce_scatter_for_gradients, "reduce-scatter", "compute",
                 "compute copies the gradients into the flat input", shard_reduction_ignores_compute},
    WaitEdgeInfo{compute_for_previous_reduce_scatter, "compute, before the next reduction",
                 "the previous reduce-scatter", "the flat input of that one is freed on compute",
                 shard_reduction_input_freed_early},
    WaitEdgeInfo{compute_for_earlier_reduction, "compute, before the next reduction",
                 "the reduction before the previous one", "the outputs of that one are freed on compute",
                 shard_optimizer_ignores_reduction},
    WaitEdgeInfo{all_reduce_for_reduce_scatter, "all-reduce, on a 2-d mesh", "reduce-scatter",
                 "it reads the output of the reduce-scatter", shard_all_reduce_ignores_reduce_scatter},
    WaitEdgeInfo{compute_for_reduction,
                 "compute, at the end of a last backward, and before a gradient from outside the group is added",
                 "the last operation of each reduction", "the optimizer reads the gradients, and compute adds to them",
                 shard_optimizer_ignores_reduction},
    WaitEdgeInfo{host_for_copy_in,
                 "the stream of the host, with offload, after a forward, at the end of a backward, in `unshard()` and "
                 "when an unused all-gather is dropped",
                 "copy-in", "it reads the shards, and the optimizer writes them there", shard_host_ignores_offload},
    WaitEdgeInfo{host_add_for_offload, "the stream of the host, with offload", "the copy of a gradient to the host",
                 "it adds the copy to the gradient of earlier backwards", shard_host_ignores_offload},
    WaitEdgeInfo{host_for_offload, "the stream of the host, with offload, at the end of a last backward",
                 "the copies of the gradients to the host", "the optimizer runs there", shard_host_ignores_offload},
};
static_assert(table.size() == static_cast<std::size_t>(host_for_offload) + 1, "every edge needs its row");

constexpr bool is_in_order() {
  for (std::size_t i = 0; i < table.size(); ++i)
    if (static_cast<std::size_t>(table[i].edge) != i) return false;
  return true;
}
static_assert(is_in_order(), "the rows have the order of the enumeration");

bool is_left_out(WaitEdge edge) { return defect_armed(table[static_cast<std::size_t>(edge)].left_out_by); }

}  // namespace

std::span<const WaitEdgeInfo> wait_edges() { return table; }

std::string wait_edges_table() {
  std::string text =
      "| waits | for | because | left out by the seeded defect |\n"
      "|---|---|---|---|\n";
  for (const WaitEdgeInfo& row : table)
    text += str("| ", row.waiting, " | ", row.awaited, " | ", row.reason, " | ",
                defect_table()[static_cast<std::size_t>(row.left_out_by) - 1].name, " |\n");
  return text;
}

void wait(WaitEdge edge, device::Stream& waiting, const device::Event& event) {
  if (is_left_out(edge)) [[unlikely]]
    return;
  waiting.wait(event);
}

void wait(WaitEdge edge, device::Stream& waiting, device::Stream& awaited) {
  if (is_left_out(edge)) [[unlikely]]
    return;
  waiting.wait(awaited.record());
}

void wait(WaitEdge edge, device::Stream& waiting, const comm::Work& work) {
  if (is_left_out(edge)) [[unlikely]]
    return;
  work.wait(waiting);
}

}  // namespace lockstep::parallel
