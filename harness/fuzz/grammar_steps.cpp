// The steps of the training: microbatches with their flags, and what happens around them.
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
    step.evaluates = !program.model.draws && item.chance("evaluates", 15);
    // Two gathers of an evaluation are not ordered before the optimizer
    // (scenarios/bugs/offloaded_evaluation_before_step and unused_prefetch_of_evaluation).
    const bool races = (!parallel.offload.empty() && program.device != "cpu") || !parallel.prefetches.empty();
    step.evaluates_late = !program.model.draws && !races && item.chance("evaluates late", 12);
    if (!moves_later) derive_thaw(item, program, parallel, frozen, step);
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
    if (moves_later) step.clear = Clear::to_none;  // a state dict has no gradients
    steps.push_back(step);
  }
  return steps;
}

}  // namespace lockstep::fuzz
