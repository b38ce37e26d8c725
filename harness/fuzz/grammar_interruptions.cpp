// What happens to the model under test beside its training: forwards without a backward, failures, and training in
// hooks.
#include <array>

#include "harness/fuzz/grammar.hpp"

namespace lockstep::fuzz {

namespace {

std::string used_module(Chooser& choose, const Model& model) {
  std::vector<std::string> paths;
  for (const Unit& unit : model.units)
    if (unit.is_used) paths.push_back(unit.path);
  return paths[static_cast<std::size_t>(choose.number("module", 0, static_cast<std::int64_t>(paths.size()) - 1))];
}

}  // namespace

SideModel derive_side(Chooser choose, const Program& program) {
  constexpr std::array<const char*, 4> events{"before_backward", "after_backward", "after_forward", "before_forward"};
  constexpr std::array<const char*, 3> verbs{"fully_shard", "replicate", "flat_shard"};
  SideModel side;
  side.module = used_module(choose, program.model);
  // A hook of a forward within a checkpoint belongs to the recomputed region, and so does the training in it.
  side.event = events.at(static_cast<std::size_t>(choose.number("event", 0, program.checkpoints.empty() ? 3 : 1)));
  side.verb = verbs.at(static_cast<std::size_t>(choose.number("verb", 0, 2)));
  return side;
}

void derive_interruptions(Chooser choose, const Model& model, bool may_evaluate, bool is_clear, Step& step) {
  bool is_first = true;
  for (Microbatch& microbatch : step.microbatches) {
    Chooser item = choose.in(is_first ? "before the first" : "before the others");
    microbatch.evaluates_between =
        may_evaluate && microbatch.resharded_between.empty() && item.chance("evaluates between", 6);
    // Without synchronization a group keeps the sums of a failed backward, too.
    const bool may_mix = !is_clear || !is_first || has_flags(microbatch);
    is_first = false;
    Interruption& before = microbatch.before;
    before.kind = static_cast<Interruption::Kind>(item.pick("kind", {88, 4, 3, 3, may_mix ? 0 : 4}));
    if (before.kind < Interruption::failed_forward) continue;
    before.module = used_module(item, model);
    before.fails_after = item.chance("fails after", 50);
  }
}

}  // namespace lockstep::fuzz
