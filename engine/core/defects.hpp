// Seeded defects: named points in the engine and the comparer that make a mistake on purpose. The kill matrix arms them
// one by one, to show that the scenarios see each kind of mistake. A point that is not armed costs one predictable
// branch.
//
//   double divisor(int num_ranks) { return defect_armed(Defect::replicate_no_division) ? 1.0 : num_ranks; }
//
// A point belongs into the smallest possible function; the waits of engine/parallel have one point for all
// (engine/parallel/waits.hpp). One defect can be armed per process, before its ranks start, and holds for all of them.
#pragma once

#include <string_view>

namespace lockstep {

// A new defect needs a row in defects.cpp, too; the length of that table is checked at compile time.
enum class Defect {
  none,
  replicate_no_division,                 // the mean of gradients is not divided by the world size
  replicate_divides_twice,               // the mean of gradients is divided by the world size twice
  replicate_reduces_early,               // a bucket is reduced before its last gradient is copied in
  replicate_bucket_not_sent,             // the last bucket of a backward is never reduced
  replicate_wait_left_out,               // compute does not wait for the reduction of a bucket
  sum_leaves_out_rank,                   // a sum over ranks omits the last rank
  compare_always_equal,                  // a comparison of values always holds
  compare_ignores_last,                  // a comparison of values ignores the last element
  checkpoint_random_state_not_restored,  // a recomputation draws other random numbers than its forward
  checkpoint_keeps_activations,          // a checkpointed region keeps the activations that it recomputes
  checkpoint_recomputes_twice,           // a checkpointed region is recomputed twice in a backward
  checkpoint_saved_computed_again,       // a selective checkpoint computes the operations that it saved again
  checkpoint_saved_draws_nothing,        // a saved random operation does not advance the generator in a recomputation
  shard_no_division,                     // the gradients of a sharded group are summed and not divided
  shard_divides_twice,                   // the gradients of a sharded group are divided twice
  shard_divides_by_shard_axis,           // on a 2-d mesh, gradients are divided by the size of the shard axis only
  shard_all_reduce_left_out,             // on a 2-d mesh, the all-reduce over the replicate axis is left out
  shard_partial_sum_late,                // partial sums of earlier microbatches are added after the all-reduce
  shard_reshard_forgotten,               // a group stays unsharded after its forward
  shard_reshard_too_often,               // a group with reshard_after_forward: false is resharded after its forward
  shard_root_resharded,                  // the root is resharded after its forward
  shard_wrong_slice,                     // if the rows do not divide evenly, a shard begins one row early
  shard_padding_leaked,                  // copy-out of a padded shard reads its padding instead of its rows
  shard_gradient_overwritten,            // the gradient of a second microbatch replaces that of the first
  shard_sync_flag_ignored,               // gradients are reduced in every microbatch, regardless of the flag
  shard_prefetch_wrong_group,            // backward prefetches the next group instead of the previous one
  shard_shared_reduced_twice,            // the gradient of a shared parameter counts twice
  shard_frozen_reduced,                  // frozen parameters take part in the reduction
  shard_cast_left_out,                   // shards are gathered in their own type, regardless of mixed_precision
  shard_optimizer_sees_whole,            // the slots that optimizers read keep the unsharded parameters
  shard_stale_after_evaluation,          // parameters that an evaluation left unsharded are used again after a step
  shard_accumulates_in_compute_type,     // gradients without synchronization accumulate in the type of the forward
  shard_gather_ignores_optimizer,        // all-gathers do not wait for the optimizer
  shard_gather_ignores_copy_in,          // the all-gather does not wait for copy-in
  shard_compute_ignores_gather,          // compute does not wait for the all-gather
  shard_input_freed_early,               // the input of an all-gather is freed without a wait for the all-gather
  shard_output_freed_early,              // the output of an all-gather is freed without a wait for copy-out
  flat_gather_limit_ignored,             // the host runs ahead of compute by any number of units
  flat_wrong_stretch,                    // a parameter that straddles ranks is cut one element early
  flat_padding_not_zeroed,               // the padding of flat gradients keeps what the memory held
  flat_missing_gradient_not_zeroed,      // the place of a missing gradient keeps what the memory held
  flat_predivision_left_out,             // gradients are divided after the sum only
  flat_divides_by_shard_axis,            // a hybrid unit divides by the ranks of its shard axis
  flat_states_not_synced,                // sync_module_states sends no parameters
  flat_buffers_not_synced,               // sync_module_states sends no buffers
  flat_root_inputs_not_cast,             // the inputs of the root keep their type
  flat_unit_types_ignored,               // submodules of the given types are not units of their own
  flat_grad_op_resharded,                // shard_grad_op reshards after forward
  flat_empty_view_has_gradient,          // a parameter without elements on this rank gets a gradient
  flat_writeback_lost,                   // a tensor assigned to a slot is not copied into the shard
  flat_summon_not_written_back,          // changes to summoned parameters are lost
  flat_summoned_gradients_lost,          // changes to summoned gradients are lost
  flat_prefetch_left_out,                // backward gathers no unit ahead
  flat_low_precision_gradient_kept,      // gradients keep the compute type although they should not
  flat_reshards_without_sync,            // a backward without synchronization reshards shard_grad_op
  flat_buffers_not_cast,                 // buffers keep their type
  flat_ignored_sharded,                  // ignored parameters are sharded
  flat_stale_leaves,                     // a changed shard does not raise the version of the unsharded parameters
  flat_memory_freed_early,               // the memory of a flat parameter is freed without a wait for compute
  flat_part_ignores_alignment,           // full parameters are read without the padding before them
  flat_piece_of_first_rank,              // every rank puts the first rows into a sharded state dict
  flat_load_leaves_out_straddling,       // a parameter that straddles ranks is loaded on its first rank only
  flat_state_in_order_of_units,          // optimizer state counts parameters in the order of units, not of the model
  flat_optimizer_state_of_first_part,    // every rank takes the first elements of loaded optimizer state
  flat_optimizer_state_straddling_lost,  // saved optimizer state has zeros where a parameter continues on a later rank
  flat_optimizer_step_forgotten,         // loaded optimizer state of flat parameters has no step counts
  flat_buffers_saved_as_computed,        // buffers have the type of the computation in state dicts and checkpoints
  flat_clip_counts_replicas,             // clipping counts the gradients of no_shard once per rank
  flat_clip_wrong_axis,                  // clipping of hybrid units sums over the axis that replicates
  flat_clip_leaves_out_straddling,       // a parameter that straddles ranks counts with its first rank only in the norm
  flat_prefetch_of_passed_unit,          // backward gathers a unit ahead that it has passed already
  flat_scaler_of_one_rank,               // ranks do not share whether their stretches of the gradients are finite
  flat_hybrid_wrong_axis,                // the second sum of a hybrid unit is over the axis that shards
  flat_summon_recurses,                  // parameters of units below are summoned although they should not be
  flat_clip_of_whole_chunk,              // the norm takes the whole chunk for each parameter in it
  flat_gradient_counts_again,            // a reduced gradient stays and counts again in the next backward
  flat_meta_not_drawn,                   // parameters that were on the meta device are not drawn
  flat_forward_prefetch_left_out,        // forward gathers no unit ahead
  flat_summon_on_every_rank,             // rank0_only summons the parameters on every rank
  flat_summon_not_offloaded,             // summoned parameters stay on the device
  flat_state_on_every_rank,              // rank0_only gives state dicts on every rank
  flat_accumulates_in_original_type,     // gradients without synchronization accumulate in the original type
  flat_prefetch_without_gradient,        // backward gathers units ahead whose outputs require no gradient
  flat_root_takes_replicas,              // the root takes the units below a replicated module
  shard_reduce_type_ignored,             // gradients are reduced in the type of the computation
  shard_reduction_ignores_compute,       // the reduce-scatter does not wait for the gradients
  shard_reduction_input_freed_early,     // the input of a reduce-scatter is freed without a wait for it
  shard_all_reduce_ignores_reduce_scatter,  // the all-reduce does not wait for the reduce-scatter
  shard_optimizer_ignores_reduction,        // compute does not wait for reductions
  shard_gather_ignores_kept_parts,        // the all-gather for backward does not wait for the shards that forward kept
  shard_unshard_ignores_compute,          // an explicit unshard does not wait for writes of the shards
  shard_unused_gather_kept,               // an all-gather that was prefetched and not used is never dropped
  shard_reduction_inputs_kept,            // the inputs of all reductions are kept until the end of their backward
  shard_owner_not_compared,               // all-gathers of two blocks of the same sizes match each other
  shard_optimizer_ignores_unused_gather,  // the optimizer does not wait for a gather that no module uses
  shard_host_ignores_offload,             // the host does not wait for gradients that are copied to it
  sharded_padding_leaked,                 // uneven shards are joined with their padding
  sharded_pieces_in_rank_order,           // shards of several pieces are joined rank by rank instead of piece by piece
  sharded_gathers_twice,                  // an all-gather is made twice
  sharded_mean_of_parts,                  // a mean divides by the size of this rank's shard
  sharded_rows_off_by_one,                // a rank that holds a range of rows of an embedding leaves out the last one
  sharded_vocabulary_offset,      // the targets of a loss are looked up one class late on all ranks but the first
  sharded_loss_own_maximum,       // each rank subtracts its own maximum from its logits instead of that of all
  sharded_loss_mean_of_parts,     // a mean loss divides by the rows of this rank
  sharded_loss_gathers_logits,    // the logits of a loss over sharded classes are gathered
  sharded_loss_weight_offset,     // replicated class weights are looked up by the local number of the class
  loss_weights_counted,           // a weighted mean loss divides by the number of rows
  sharded_bias_added_by_all,      // a linear layer with a partial result adds the whole bias on every rank
  sharded_view_takes_last_dim,    // a split of a sharded dim shards the last of the new dims instead of the first
  sharded_partial_gradient_kept,  // the partial gradient of an operand that ranks share is not reduced
  sharded_dropout_draws_shard,    // dropout on a shard draws one number per element of the shard
  sharded_gradient_of_own_part,   // the gradient of a slice into shards is not gathered from the other ranks
  clip_norm_of_parts,             // clipping uses the norm of this rank's shards
  shard_empty_part_offset,        // a shard without rows takes no room in the flat buffer of its rank
  shard_extension_left_out,       // the all-gather sends the shards themselves, regardless of their extensions
  shard_entered_group_kept,       // a group of which one module did not run counts as entered in the next forward
  shard_reduced_parts_kept,       // the outputs of all reductions are kept until the end of their backward
  scaler_found_inf_of_parts,      // ranks do not share whether their gradients are finite
  scaler_steps_anyway,            // the optimizer steps although gradients are not finite
  scaler_unscale_left_out,        // the gradients of a scaled loss are not divided by the scale
  scaler_growth_not_reset,        // a skipped step does not reset the count of steps until the scale grows
  optimizer_state_of_first_part,  // every rank takes the first shard of full optimizer state
  saved_replicas_by_nobody,       // no rank writes the values that several ranks hold
  saved_replicas_twice,           // two ranks write the values that several ranks hold
  saved_chunk_of_zeros,           // the last chunk of a rank's file is never written
  saved_stale_snapshot,           // an asynchronous save writes the snapshot of the save before it
  saved_index_before_data,        // the checkpoint gets its name before the files of the ranks are flushed
  saved_over_old,                 // the old checkpoint is removed before the new one is complete
  saved_failure_of_one_rank,      // the failure of a rank in a save or load is raised on that rank only
  loaded_from_wrong_offset,       // the pieces of a chunk are read from its begin
  loaded_without_hashes,          // the values of a checkpoint are not compared with their hashes
  loaded_step_forgotten,          // the step counts of an optimizer are not restored
  loaded_options_forgotten,       // the hyperparameters of an optimizer are not restored
  bucket_cap_ignored,             // buckets have no maximal size: there is one per type
  tensor_bias_on_every_rank,      // each rank adds the full bias of a rowwise layer before the sum
  tensor_bias_gradient_divided,   // the gradient of such a bias is divided by the number of ranks
  tensor_gradient_not_reduced,    // each rank keeps its own summand of the gradient of a replicated parameter or input
  tensor_gradient_reduced_per_use,  // such gradients are reduced at each use instead of once
  tensor_output_left_partial,       // the outputs of rowwise layers are not summed
  tensor_input_wrong_dim,           // inputs sharded along dim 0 are taken as sharded along dim 1, and the reverse
  tensor_output_wrong_dim,          // outputs are sharded along dim 1 instead of dim 0, and the reverse
  tensor_ranks_keep_values,         // ranks keep the values that they built, instead of those of the first rank
  tensor_ties_broken,               // a tied parameter becomes one parameter per slot
  transport_tail_left_out,          // copies between ranks omit the last byte
  shard_layout_not_strided,         // a parameter that is sharded over two axes has the layout of the other order
  shard_layout_axes_swapped,        // the layout of a parameter on several axes has its placements on the wrong axes
  shard_unsharded_without_layout,   // an unsharded parameter has lost its layout over the other axes
  shard_inner_partial_kept,  // a gradient that is partial over tensor parallelism is reduced over data parallelism only
  shard_divides_by_all_axes,     // the mean of gradients counts the ranks of tensor parallelism
  clip_norm_of_one_axis,         // clipping leaves out the last axis over which gradients are sharded
  scaler_found_inf_of_one_axis,  // ranks share along one axis only whether their gradients are finite
  count_
};

// The kind of evidence that must show a defect. A crash, a hang or a deviation from the plan alone does not count for a
// value defect.
enum class DefectKind { value, count, order, memory, message };

struct DefectInfo {
  Defect defect;
  std::string_view name;  // as `--defect NAME`
  DefectKind kind;
  std::string_view place;  // file or folder of the point
  std::string_view effect;
};

const DefectInfo* defect_table();  // num_defects() entries in the order of the enumeration, without `none`
int num_defects();
std::string_view name_of(DefectKind kind);
Defect defect_from_name(std::string_view name);  // throws Error with the known names
void arm_defect(Defect defect);                  // for the whole process
Defect armed_defect();

namespace defect_detail {
extern Defect armed;
bool ask(Defect defect) noexcept;
}  // namespace defect_detail
inline bool defect_armed(Defect defect) { return defect_detail::armed != Defect::none && defect_detail::ask(defect); }

// While a defect is armed, each question about any defect sets its byte in `asked`, which has num_defects() of them.
// The kill matrix gives memory that it shares with the ranks, and so learns which points a case reaches. Null: no
// account is kept.
void keep_account_of_questions(unsigned char* asked);

}  // namespace lockstep
