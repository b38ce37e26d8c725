// The memory that a sharded model may hold after its forward, and when buffers are promised.
#include <algorithm>

#include "engine/core/error.hpp"
#include "harness/fuzz/render_internal.hpp"

namespace lockstep::fuzz {

namespace {

constexpr std::size_t most_characters = 900;  // an expression of the language has at most 1000

bool is_used(const Model& model, const std::string& path) {
  return std::none_of(model.units.begin(), model.units.end(),
                      [&](const Unit& unit) { return unit.path == path && !unit.is_used; });
}

bool runs_once(const Model& model, const std::string& path) {
  return is_used(model, path) && std::none_of(model.units.begin(), model.units.end(),
                                              [&](const Unit& unit) { return unit.runs_again && unit.path == path; });
}

// The root stays regardless of the argument. `2` keeps the shards of a smaller mesh.
bool stays_unsharded(const Group& group) {
  return group.modules.front().empty() || group.reshard == "false" || group.reshard == "2";
}

}  // namespace

std::string gathered_after_forward(const Program& program, const Parallel& parallel, const Step& step) {
  const bool is_plain = parallel.api == Api::fully_shard && !parallel.root_is_replicated && parallel.prefetches.empty();
  if (!is_plain || (!step.unsharded.empty() && !is_used(program.model, step.unsharded))) return "";
  if (program.ties_late) return "";  // a group gathers both parameters of a late tie
  std::string stays;                 // the groups of modules inside others come first
  for (const Group& group : parallel.groups) {
    if (group.other_dim && stays_unsharded(group)) return "";
    for (const std::string& module : group.modules) {
      // A group of several modules is resharded when each has run, and a second run of one begins a new round.
      if (group.modules.size() > 1 && !runs_once(program.model, module)) return "";
      const char* answer = stays_unsharded(group) ? "true" : "false";
      stays += module.empty() ? str(answer) : str(answer, " if starts_with(p.name, '", module, ".') else ");
    }
  }
  const int shards = parallel.neighbours > 0 ? parallel.neighbours : parallel.data_ranks;
  const std::string rows = str("(p.shape[0] + ", shards - 1, ") // ", shards, " * ", shards);
  std::string most =
      str("sum([0] + [", rows, " * (p.bytes // p.shape[0]) for p in parameters(alone) if (", stays, ")])");
  return most.size() > most_characters ? "" : most;
}

bool promises_buffers(const Program& program) {
  const bool runs_again = std::any_of(program.steps.begin(), program.steps.end(), [](const Step& step) {
    const bool is_interrupted = std::any_of(step.microbatches.begin(), step.microbatches.end(), [](const auto& each) {
      return each.evaluates_between || each.before.kind != Interruption::none;
    });
    return step.evaluates || step.evaluates_late || is_interrupted;
  });
  return program.model.has_buffers && !program.move && program.checkpoints.empty() && !runs_again;
}

}  // namespace lockstep::fuzz
