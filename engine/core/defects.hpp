// Seeded defects: named points in the engine and the comparer that do the wrong thing on purpose, so that it can be
// shown that each kind of mistake is seen. Off, a point costs one predictable branch.
//
//   if (defect_armed(Defect::replicate_no_division)) [[unlikely]] { ... } else { ... }
//
// One defect can be armed a process (before ranks start); it holds for all ranks of it.
#pragma once

#include <string_view>

namespace lockstep {

// New entries also get a row in defects.cpp; the table's length is checked at compile time.
enum class Defect {
  none,
  replicate_no_division,                    // the mean forgets to divide
  replicate_divides_twice,                  // the mean divides by the world size twice
  replicate_reduces_early,                  // a bucket is reduced before its last gradient is in it
  replicate_bucket_not_sent,                // the last bucket is never reduced
  replicate_wait_left_out,                  // the compute stream does not wait for the reduction
  sum_leaves_out_rank,                      // the last rank's part is missing from a sum
  compare_always_equal,                     // a comparison holds whatever it sees
  compare_ignores_last,                     // a comparison does not look at the last element
  checkpoint_random_state_not_restored,     // a recomputation draws other random numbers
  checkpoint_keeps_activations,             // a checkpointed region keeps what it should recompute
  checkpoint_recomputes_twice,              // a region is recomputed once more than needed
  shard_no_division,                        // gradients of a sharded group are summed and not divided
  shard_divides_twice,                      // gradients of a sharded group are divided twice
  shard_divides_by_shard_axis,              // on a 2-d mesh gradients are divided by the size of the shard axis alone
  shard_all_reduce_left_out,                // on a 2-d mesh the sum over the replicate axis is left out
  shard_partial_sum_late,                   // partial sums of earlier microbatches are added after the all_reduce
  shard_reshard_forgotten,                  // a group stays whole after its forward
  shard_reshard_too_often,                  // a group that is to stay whole after its forward is resharded
  shard_root_resharded,                     // the root is resharded after its forward
  shard_wrong_slice,                        // the part of a rank begins a row early where the rows do not divide
  shard_padding_leaked,                     // a part that is padded gives its padding instead of its rows
  shard_gradient_overwritten,               // a second microbatch takes the place of the gradient of the first
  shard_sync_flag_ignored,                  // gradients are reduced in every microbatch, whatever the flag says
  shard_prefetch_wrong_group,               // backward prefetches the group after this one instead of the one before
  shard_shared_reduced_twice,               // the gradient of a shared parameter counts once a slot
  shard_frozen_reduced,                     // frozen parameters take part in the reduction
  shard_cast_left_out,                      // parts are gathered in their own type, whatever the policy says
  shard_optimizer_sees_whole,               // whole parameters stay in the slots that optimizers read
  shard_stale_after_evaluation,             // parameters left whole by an evaluation are used again after a step
  shard_accumulates_in_compute_type,        // unsynchronised gradients add up in the type of the forward
  shard_gather_ignores_optimizer,           // gathers do not wait for the optimizer
  shard_gather_ignores_copy_in,             // the gather does not wait for its input
  shard_compute_ignores_gather,             // compute does not wait for the gather
  shard_input_freed_early,                  // the input of a gather is freed without waiting for it
  shard_output_freed_early,                 // the output of a gather is freed without waiting for the copy-out
  shard_reduction_ignores_compute,          // the reduction does not wait for the gradients
  shard_reduction_input_freed_early,        // the input of a reduction is freed without waiting for it
  shard_all_reduce_ignores_reduce_scatter,  // the all_reduce does not wait for the reduce_scatter
  shard_optimizer_ignores_reduction,        // compute does not wait for the reductions at the end of backward
  shard_gather_ignores_kept_parts,          // the gather for backward does not wait for the parts that forward kept
  shard_unshard_ignores_compute,            // a gather by hand does not wait for what wrote the parts
  shard_unused_gather_kept,                 // a gather that was issued ahead and not used is never dropped
  shard_reduction_inputs_kept,              // the inputs of all reductions of a backward are kept until its end
  shard_owner_not_compared,                 // gathers of two blocks of the same sizes are taken for one
  shard_host_ignores_offload,               // the host does not wait for gradients that are on their way to it
  sharded_padding_leaked,                   // uneven parts are joined with the padding that they travelled with
  sharded_pieces_in_rank_order,             // parts of several pieces are joined rank by rank instead of piece by piece
  sharded_gathers_twice,                    // a gather is made twice
  sharded_mean_of_parts,                    // a mean divides by the size of this rank's part
  sharded_gradient_of_own_part,             // the gradient of a cut is not gathered from the other ranks
  clip_norm_of_parts,                       // the norm that clips is that of this rank's parts
  shard_empty_part_offset,                  // a part without rows takes no room in the flat buffer of its rank
  shard_extension_left_out,                 // parts travel as they are, whatever their extension makes of them
  shard_entered_group_kept,                 // a group of which one module never ran stays entered in the next forward
  shard_reduced_parts_kept,                 // what reductions made is kept until the end of a backward
  scaler_found_inf_of_parts,                // ranks do not tell each other of gradients that are not finite
  scaler_steps_anyway,                      // a step is taken though gradients are not finite
  scaler_unscale_left_out,                  // gradients of a scaled loss are not divided back
  scaler_growth_not_reset,                  // a skipped step does not start the count towards growth anew
  optimizer_state_of_first_part,            // every rank takes the first part of whole optimizer state
  bucket_cap_ignored,                       // buckets close at no size: there is one per type
  transport_tail_left_out,                  // copies between ranks leave out their last byte
  count_
};

// What must see a defect; a crash, a hang or the plan alone does not count for a value defect.
enum class DefectKind { value, count, order, memory, message };

struct DefectInfo {
  Defect defect;
  std::string_view name;  // as `--defect NAME`
  DefectKind kind;
  std::string_view place;  // file of the point
  std::string_view effect;
};

const DefectInfo* defect_table();  // count_ - 1 entries, in the order of the enum without `none`
int num_defects();
std::string_view name_of(DefectKind kind);
Defect defect_from_name(std::string_view name);  // throws Error naming the known ones
void arm_defect(Defect defect);                  // for the whole process
Defect armed_defect();

namespace defect_detail {
extern Defect armed;
}
inline bool defect_armed(Defect defect) { return defect_detail::armed == defect; }

}  // namespace lockstep
