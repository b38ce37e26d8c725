#include "engine/core/defects.hpp"

#include <array>
#include <string>

#include "engine/core/error.hpp"

namespace lockstep {

namespace defect_detail {
Defect armed = Defect::none;
}

namespace {
using enum Defect;
constexpr std::array table = {
    DefectInfo{replicate_no_division, "replicate_no_division", DefectKind::value, "engine/parallel",
               "the mean of gradients is not divided by the world size"},
    DefectInfo{replicate_divides_twice, "replicate_divides_twice", DefectKind::value, "engine/parallel",
               "the mean of gradients is divided by the world size twice"},
    DefectInfo{replicate_reduces_early, "replicate_reduces_early", DefectKind::value, "engine/parallel",
               "a bucket is reduced before its last gradient is copied in"},
    DefectInfo{replicate_bucket_not_sent, "replicate_bucket_not_sent", DefectKind::count, "engine/parallel",
               "the last bucket of a backward is never reduced"},
    DefectInfo{replicate_wait_left_out, "replicate_wait_left_out", DefectKind::order, "engine/parallel",
               "compute does not wait for the reduction of a bucket"},
    DefectInfo{sum_leaves_out_rank, "sum_leaves_out_rank", DefectKind::value, "engine/comm",
               "a sum over ranks omits the last rank"},
    DefectInfo{compare_always_equal, "compare_always_equal", DefectKind::value, "harness/verdict",
               "a comparison of values always holds"},
    DefectInfo{compare_ignores_last, "compare_ignores_last", DefectKind::value, "harness/verdict",
               "a comparison of values ignores the last element"},
    DefectInfo{checkpoint_random_state_not_restored, "checkpoint_random_state_not_restored", DefectKind::value,
               "engine/autograd", "a recomputation draws other random numbers than its forward"},
    DefectInfo{checkpoint_keeps_activations, "checkpoint_keeps_activations", DefectKind::memory, "engine/autograd",
               "a checkpointed region keeps the activations that it recomputes"},
    DefectInfo{checkpoint_recomputes_twice, "checkpoint_recomputes_twice", DefectKind::count, "engine/autograd",
               "a checkpointed region is recomputed twice in a backward"},
    DefectInfo{shard_no_division, "shard_no_division", DefectKind::value, "engine/parallel",
               "the gradients of a sharded group are summed and not divided"},
    DefectInfo{shard_divides_twice, "shard_divides_twice", DefectKind::value, "engine/parallel",
               "the gradients of a sharded group are divided twice"},
    DefectInfo{shard_divides_by_shard_axis, "shard_divides_by_shard_axis", DefectKind::value, "engine/parallel",
               "on a 2-d mesh, gradients are divided by the size of the shard axis only"},
    DefectInfo{shard_all_reduce_left_out, "shard_all_reduce_left_out", DefectKind::value, "engine/parallel",
               "on a 2-d mesh, the all-reduce over the replicate axis is left out"},
    DefectInfo{shard_partial_sum_late, "shard_partial_sum_late", DefectKind::value, "engine/parallel",
               "partial sums of earlier microbatches are added after the all-reduce"},
    DefectInfo{shard_reshard_forgotten, "shard_reshard_forgotten", DefectKind::memory, "engine/parallel",
               "a group stays unsharded after its forward"},
    DefectInfo{shard_reshard_too_often, "shard_reshard_too_often", DefectKind::count, "engine/parallel",
               "a group with reshard_after_forward: false is resharded after its forward"},
    DefectInfo{shard_root_resharded, "shard_root_resharded", DefectKind::count, "engine/parallel",
               "the root is resharded after its forward"},
    DefectInfo{shard_wrong_slice, "shard_wrong_slice", DefectKind::value, "engine/parallel",
               "if the rows do not divide evenly, a shard begins one row early"},
    DefectInfo{shard_padding_leaked, "shard_padding_leaked", DefectKind::value, "engine/parallel",
               "copy-out of a padded shard reads its padding instead of its rows"},
    DefectInfo{shard_gradient_overwritten, "shard_gradient_overwritten", DefectKind::value, "engine/parallel",
               "the gradient of a second microbatch replaces that of the first"},
    DefectInfo{shard_sync_flag_ignored, "shard_sync_flag_ignored", DefectKind::count, "engine/parallel",
               "gradients are reduced in every microbatch, regardless of the flag"},
    DefectInfo{shard_prefetch_wrong_group, "shard_prefetch_wrong_group", DefectKind::order, "engine/parallel",
               "backward prefetches the next group instead of the previous one"},
    DefectInfo{shard_shared_reduced_twice, "shard_shared_reduced_twice", DefectKind::value, "engine/parallel",
               "the gradient of a shared parameter counts twice"},
    DefectInfo{shard_frozen_reduced, "shard_frozen_reduced", DefectKind::count, "engine/parallel",
               "frozen parameters take part in the reduction"},
    DefectInfo{shard_cast_left_out, "shard_cast_left_out", DefectKind::value, "engine/parallel",
               "shards are gathered in their own type, regardless of mixed_precision"},
    DefectInfo{shard_optimizer_sees_whole, "shard_optimizer_sees_whole", DefectKind::value, "engine/parallel",
               "the slots that optimizers read keep the unsharded parameters"},
    DefectInfo{shard_stale_after_evaluation, "shard_stale_after_evaluation", DefectKind::value, "engine/parallel",
               "parameters that an evaluation left unsharded are used again after a step"},
    DefectInfo{shard_accumulates_in_compute_type, "shard_accumulates_in_compute_type", DefectKind::value,
               "engine/parallel", "gradients without synchronization accumulate in the type of the forward"},
    DefectInfo{shard_gather_ignores_optimizer, "shard_gather_ignores_optimizer", DefectKind::order, "engine/parallel",
               "all-gathers do not wait for the optimizer"},
    DefectInfo{shard_gather_ignores_copy_in, "shard_gather_ignores_copy_in", DefectKind::order, "engine/parallel",
               "the all-gather does not wait for copy-in"},
    DefectInfo{shard_compute_ignores_gather, "shard_compute_ignores_gather", DefectKind::order, "engine/parallel",
               "compute does not wait for the all-gather"},
    DefectInfo{shard_input_freed_early, "shard_input_freed_early", DefectKind::order, "engine/parallel",
               "the input of an all-gather is freed without a wait for the all-gather"},
    DefectInfo{shard_output_freed_early, "shard_output_freed_early", DefectKind::order, "engine/parallel",
               "the output of an all-gather is freed without a wait for copy-out"},
    DefectInfo{shard_reduction_ignores_compute, "shard_reduction_ignores_compute", DefectKind::order, "engine/parallel",
               "the reduce-scatter does not wait for the gradients"},
    DefectInfo{shard_reduction_input_freed_early, "shard_reduction_input_freed_early", DefectKind::order,
               "engine/parallel", "the input of a reduce-scatter is freed without a wait for it"},
    DefectInfo{shard_all_reduce_ignores_reduce_scatter, "shard_all_reduce_ignores_reduce_scatter", DefectKind::order,
               "engine/parallel", "the all-reduce does not wait for the reduce-scatter"},
    DefectInfo{shard_optimizer_ignores_reduction, "shard_optimizer_ignores_reduction", DefectKind::order,
               "engine/parallel", "compute does not wait for reductions"},
    DefectInfo{shard_gather_ignores_kept_parts, "shard_gather_ignores_kept_parts", DefectKind::order, "engine/parallel",
               "the all-gather for backward does not wait for the shards that forward kept"},
    DefectInfo{shard_unshard_ignores_compute, "shard_unshard_ignores_compute", DefectKind::order, "engine/parallel",
               "an explicit unshard does not wait for writes of the shards"},
    DefectInfo{shard_unused_gather_kept, "shard_unused_gather_kept", DefectKind::memory, "engine/parallel",
               "an all-gather that was prefetched and not used is never dropped"},
    DefectInfo{shard_reduction_inputs_kept, "shard_reduction_inputs_kept", DefectKind::memory, "engine/parallel",
               "the inputs of all reductions are kept until the end of their backward"},
    DefectInfo{shard_owner_not_compared, "shard_owner_not_compared", DefectKind::message, "engine/comm",
               "all-gathers of two blocks of the same sizes match each other"},
    DefectInfo{shard_host_ignores_offload, "shard_host_ignores_offload", DefectKind::order, "engine/parallel",
               "the host does not wait for gradients that are copied to it"},
    DefectInfo{sharded_padding_leaked, "sharded_padding_leaked", DefectKind::value, "engine/mesh/redistribute.cpp",
               "uneven shards are joined with their padding"},
    DefectInfo{sharded_pieces_in_rank_order, "sharded_pieces_in_rank_order", DefectKind::value,
               "engine/mesh/redistribute.cpp",
               "shards of several pieces are joined rank by rank instead of piece by piece"},
    DefectInfo{sharded_gathers_twice, "sharded_gathers_twice", DefectKind::count, "engine/mesh/redistribute.cpp",
               "an all-gather is made twice"},
    DefectInfo{sharded_mean_of_parts, "sharded_mean_of_parts", DefectKind::value, "engine/autograd/ops_on_sharded.cpp",
               "a mean divides by the size of this rank's shard"},
    DefectInfo{sharded_gradient_of_own_part, "sharded_gradient_of_own_part", DefectKind::value,
               "engine/autograd/ops_sharded.cpp",
               "the gradient of a slice into shards is not gathered from the other ranks"},
    DefectInfo{clip_norm_of_parts, "clip_norm_of_parts", DefectKind::value, "engine/optim/clip.cpp",
               "clipping uses the norm of this rank's shards"},
    DefectInfo{shard_empty_part_offset, "shard_empty_part_offset", DefectKind::value, "engine/parallel",
               "a shard without rows takes no room in the flat buffer of its rank"},
    DefectInfo{shard_extension_left_out, "shard_extension_left_out", DefectKind::value, "engine/parallel",
               "the all-gather sends the shards themselves, regardless of their extensions"},
    DefectInfo{shard_entered_group_kept, "shard_entered_group_kept", DefectKind::value, "engine/parallel",
               "a group of which one module did not run counts as entered in the next forward"},
    DefectInfo{shard_reduced_parts_kept, "shard_reduced_parts_kept", DefectKind::memory, "engine/parallel",
               "the outputs of all reductions are kept until the end of their backward"},
    DefectInfo{scaler_found_inf_of_parts, "scaler_found_inf_of_parts", DefectKind::value,
               "engine/optim/grad_scaler.cpp", "ranks do not share whether their gradients are finite"},
    DefectInfo{scaler_steps_anyway, "scaler_steps_anyway", DefectKind::value, "engine/optim/grad_scaler.cpp",
               "the optimizer steps although gradients are not finite"},
    DefectInfo{scaler_unscale_left_out, "scaler_unscale_left_out", DefectKind::value, "engine/optim/grad_scaler.cpp",
               "the gradients of a scaled loss are not divided by the scale"},
    DefectInfo{scaler_growth_not_reset, "scaler_growth_not_reset", DefectKind::value, "engine/optim/grad_scaler.cpp",
               "a skipped step does not reset the count of steps until the scale grows"},
    DefectInfo{optimizer_state_of_first_part, "optimizer_state_of_first_part", DefectKind::value,
               "engine/state/full_state.cpp", "every rank takes the first shard of full optimizer state"},
    DefectInfo{saved_replicas_by_nobody, "saved_replicas_by_nobody", DefectKind::value, "engine/state/plan.cpp",
               "no rank writes the values that several ranks hold"},
    DefectInfo{saved_replicas_twice, "saved_replicas_twice", DefectKind::value, "engine/state/plan.cpp",
               "two ranks write the values that several ranks hold"},
    DefectInfo{saved_chunk_of_zeros, "saved_chunk_of_zeros", DefectKind::value, "engine/state/writer.cpp",
               "the last chunk of a rank's file is never written"},
    DefectInfo{saved_stale_snapshot, "saved_stale_snapshot", DefectKind::value, "engine/state/save.cpp",
               "an asynchronous save writes the snapshot of the save before it"},
    DefectInfo{saved_over_old, "saved_over_old", DefectKind::message, "engine/state/writer.cpp",
               "the old checkpoint is removed before the new one is complete"},
    DefectInfo{saved_failure_of_one_rank, "saved_failure_of_one_rank", DefectKind::message, "engine/state/agree.cpp",
               "the failure of a rank in a save or load is raised on that rank only"},
    DefectInfo{loaded_from_wrong_offset, "loaded_from_wrong_offset", DefectKind::value, "engine/state/reader.cpp",
               "the pieces of a chunk are read from its begin"},
    DefectInfo{loaded_without_hashes, "loaded_without_hashes", DefectKind::message, "engine/state/reader.cpp",
               "the values of a checkpoint are not compared with their hashes"},
    DefectInfo{loaded_step_forgotten, "loaded_step_forgotten", DefectKind::value, "engine/state/load_parts.cpp",
               "the step counts of an optimizer are not restored"},
    DefectInfo{loaded_options_forgotten, "loaded_options_forgotten", DefectKind::value, "engine/state/load_parts.cpp",
               "the hyperparameters of an optimizer are not restored"},
    DefectInfo{bucket_cap_ignored, "bucket_cap_ignored", DefectKind::count, "engine/layout/buckets.cpp",
               "buckets have no maximal size: there is one per type"},
    DefectInfo{transport_tail_left_out, "transport_tail_left_out", DefectKind::count, "engine/comm/copy.cpp",
               "copies between ranks omit the last byte"},
};
static_assert(table.size() + 1 == static_cast<std::size_t>(count_), "every defect needs its row");
}  // namespace

const DefectInfo* defect_table() { return table.data(); }
int num_defects() { return static_cast<int>(table.size()); }

std::string_view name_of(DefectKind kind) {
  constexpr std::string_view names[] = {"value", "count", "order", "memory", "message"};
  return names[static_cast<int>(kind)];
}

Defect defect_from_name(std::string_view name) {
  std::string known;
  for (const DefectInfo& info : table) {
    if (info.name == name) return info.defect;
    known += str(known.empty() ? "" : ", ", info.name);
  }
  throw Error(str("unknown defect `", name, "`"), str("one of ", known));
}

void arm_defect(Defect defect) { defect_detail::armed = defect; }
Defect armed_defect() { return defect_detail::armed; }

}  // namespace lockstep
