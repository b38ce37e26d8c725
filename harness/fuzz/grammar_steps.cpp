// The steps of the training: microbatches with their flags, and what happens around them.
#include <algorithm>

#include "harness/fuzz/grammar.hpp"

namespace lockstep::fuzz {

namespace {

bool shards_by_groups(const Parallel& parallel) { return !parallel.groups.empty(); }

std::vector<Microbatch> derive_microbatches(Chooser choose, const Program& program, const Parallel& parallel) {
  const bool is_root_sharded = shards_by_groups(parallel) && !parallel.root_is_replicated;
  const bool is_hybrid = parallel.names == "[replicate, shard]";
  std::vector<Microbatch> microbatches;
  std::vector<Chooser> choosers = choose.items("microbatches", 1, 3);
  for (std::size_t i = 0; i < choosers.size(); ++i) {
    Chooser& item = choosers[i];
    Microbatch microbatch;
    const bool is_last = i + 1 == choosers.size();
    if (!is_last) {
      microbatch.sync = !item.chance("without sync", 60);
      if (is_root_sharded) {
        microbatch.reshards = !item.chance("stays unsharded", 20);
        microbatch.last_backward = !item.chance("not the last backward", 25);
        // With 16-bit types, what is summed in another order is rounded to other values.
        const bool may_differ = !parallel.is_narrow() && !program.model.has_rounding;
        if (is_hybrid && microbatch.sync && parallel.api == Api::fully_shard && may_differ)
          microbatch.all_reduces = !item.chance("without all-reduce", 25);
      }
    }
    if (is_root_sharded && program.checkpoints.empty() && item.chance("resharded between", 6))
      microbatch.resharded_between = parallel.groups.front().modules.front();
    microbatch.gives_gradient =
        program.loss == Loss::squares && !program.is_scaled && item.chance("gives gradient", 12);
    microbatches.push_back(microbatch);
  }
  return microbatches;
}

// Freezes or thaws one child before a step. At most one is frozen at a time. A frozen group that is a root of its own
// has no backward after which it is resharded, so its slots would show the values from before the step.
void derive_thaw(Chooser choose, const Program& program, const Parallel& parallel, std::string& frozen, Step& step) {
  const bool may = parallel.api != Api::flat_shard && program.model.blocks.size() > 1 && !program.model.has_unused &&
                   !parallel.only_tensor_parallel && !parallel.root_is_replicated;
  if (!may || !choose.chance("thaw", 8)) return;
  if (!frozen.empty()) {
    step.thawed = frozen;
    frozen.clear();
    return;
  }
  const auto count = static_cast<std::int64_t>(program.model.blocks.size());
  frozen = program.model.blocks[static_cast<std::size_t>(choose.number("which", 0, count - 1))];
  step.frozen = frozen;
}

// A child that is frozen between the forward and the backward of the only microbatch. A checkpoint refuses that.
void derive_late_freeze(Chooser choose, const Program& program, const Parallel& parallel, std::string& frozen,
                        Step& step) {
  const bool may = parallel.api != Api::flat_shard && program.model.blocks.size() > 1 && !program.model.has_unused &&
                   !parallel.only_tensor_parallel && !parallel.root_is_replicated && program.checkpoints.empty() &&
                   step.microbatches.size() == 1 && frozen.empty();
  if (!may || !choose.chance("late freeze", 8)) return;
  const auto count = static_cast<std::int64_t>(program.model.blocks.size());
  frozen = program.model.blocks[static_cast<std::size_t>(choose.number("which late", 0, count - 1))];
  step.frozen_late = frozen;
}

// Two summands have one sum, whichever comes first.
bool may_nest(const Step& step) {
  return step.microbatches.size() == 2 && std::none_of(step.microbatches.begin(), step.microbatches.end(), has_flags);
}

bool is_trainable(const Program& program, const std::string& frozen) {
  return program.frozen.empty() && frozen.empty() && !program.model.has_unused;
}

Change derive_change(Chooser& item, const Program& program, const Parallel& parallel, bool of_gradient) {
  // A flat parameter ends in elements of no parameter.
  const bool has_names = parallel.api != Api::flat_shard || parallel.use_orig_params;
  const int adds = has_names ? 20 : 0, mixes = of_gradient && parallel.api != Api::flat_shard ? 15 : 0;
  Change change;
  change.kind = static_cast<Change::Kind>(item.pick("kind", {20, 10, adds, adds / 2, mixes, of_gradient ? 10 : 0, 10}));
  const auto count = static_cast<std::int64_t>(program.model.blocks.size());
  if (has_names && count > 1 && item.chance("of a child", 40))
    change.child = program.model.blocks[static_cast<std::size_t>(item.number("child", 0, count - 1))];
  change.in_full = parallel.api == Api::flat_shard && !of_gradient && item.chance("in full", 50);
  change.in_hook = !change.in_full && !program.move && item.chance("in a hook", 25);
  return change;
}

// What happens around the optimizer's step.
void derive_around_step(Chooser& item, const Program& program, const Parallel& parallel, const std::string& frozen,
                        bool moves_later, Step& step) {
  // After an evaluation the slots of fully_shard show what it gathered, and a change of them would be lost.
  const bool hides_shards = step.evaluates_late && parallel.api != Api::flat_shard;
  for (Chooser& each : item.items("of gradients", 0, item.chance("changes gradients", 20) ? 2 : 0)) {
    step.of_gradients.push_back(derive_change(each, program, parallel, true));
    if (hides_shards) step.of_gradients.back().in_hook = false;
  }
  const bool may_change = !hides_shards && (!parallel.root_is_replicated || is_trainable(program, frozen));
  if (may_change)
    for (Chooser& each : item.items("of parameters", 0, item.chance("changes parameters", 20) ? 2 : 0))
      step.of_parameters.push_back(derive_change(each, program, parallel, false));
  const bool may_overflow = program.model.ends_in_linear && is_trainable(program, frozen);
  step.overflows = program.is_scaled && may_overflow && item.chance("overflows", 60);
  step.gathers_losses = item.chance("gathers losses", 6);
  const bool has_event = shards_by_groups(parallel) && !parallel.root_is_replicated && step.of_parameters.empty();
  const int on_disk = program.model.has_buffers ? 0 : 3;  // running statistics differ between the ranks
  if (may_change && is_trainable(program, frozen) && !moves_later)
    step.restore = static_cast<Restore>(item.pick("restore", {86, 3, 3, 2, on_disk, on_disk}));
  step.waits_for_event = has_event && step.restore == Restore::none && item.chance("waits for event", 6);
}

}  // namespace

std::vector<Step> derive_steps(Chooser choose, const Program& program) {
  std::vector<Step> steps;
  std::string frozen = program.frozen.empty() ? "" : program.frozen.front();
  for (Chooser& item : choose.items("all", 1, 3)) {
    Step step;
    const bool moves_later = program.move && steps.size() < program.move->before_step;
    const Parallel& parallel = program.move && !moves_later ? program.move->parallel : program.parallel;
    step.microbatches = derive_microbatches(item, program, parallel);
    step.rows = static_cast<int>(item.number("rows", 2, 4));
    // Running statistics differ between the ranks, and evaluation mode uses them.
    const bool may_evaluate = !program.model.draws || !program.model.has_buffers;
    step.evaluates = may_evaluate && item.chance("evaluates", 15);
    // Two gathers of an evaluation are not ordered before the optimizer
    // (scenarios/bugs/offloaded_evaluation_before_step and unused_prefetch_of_evaluation).
    const bool races = (!parallel.offload.empty() && program.device != "cpu") || !parallel.prefetches.empty();
    step.evaluates_late = may_evaluate && !races && item.chance("evaluates late", 12);
    if (!moves_later) derive_thaw(item, program, parallel, frozen, step);
    if (!moves_later) derive_late_freeze(item, program, parallel, frozen, step);
    const bool is_clear = steps.empty() || steps.back().clear == Clear::to_none;
    step.is_nested = is_clear && may_nest(step) && item.chance("nested", 25);
    derive_interruptions(item, program.model, may_evaluate, is_clear && frozen.empty(), step);
    if (shards_by_groups(parallel) && !parallel.root_is_replicated && item.chance("unshards", 8)) {
      step.unsharded = parallel.groups.front().modules.front();
      step.unshards_async = item.chance("async", 50);
    }
    const bool may_clip = !parallel.is_narrow() && !program.model.has_rounding;
    const int clips = may_clip ? item.pick("clips", {88, 8, 2, 2}) : 0;
    if (clips > 0) {
      step.max_norm = "0.5";
      step.norm = clips == 2 ? "inf" : clips == 3 ? "1" : "";
    }
    if (item.chance("lr", 8)) step.lr = "0.003";
    step.clear = static_cast<Clear>(item.pick("clear", {60, 25, 15}));
    // A state dict has no gradients, and a gradient that was unscaled takes no scaled ones.
    if (moves_later || (program.is_scaled && step.clear == Clear::not_at_all)) step.clear = Clear::to_none;
    derive_around_step(item, program, parallel, frozen, moves_later, step);
    if (step.overflows) step.max_norm = step.norm = "";
    steps.push_back(step);
  }
  return steps;
}

}  // namespace lockstep::fuzz
