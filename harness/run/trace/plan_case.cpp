#include "harness/run/trace/plan_case.hpp"

#include <algorithm>
#include <new>

#include "engine/comm/fake_world.hpp"
#include "engine/device/stand_in_memory.hpp"
#include "harness/run/interpreter.hpp"
#include "harness/run/step_blocks.hpp"
#include "harness/run/trace/dry_run.hpp"
#include "harness/run/trace/group_members.hpp"
#include "harness/run/trace/layout_table.hpp"
#include "harness/run/trace/plan_conditions.hpp"
#include "harness/scenario/evaluation.hpp"

namespace lockstep::run {

bool has_plan(const scenario::Steps& steps) {
  return any_step(steps, [](const scenario::Step& step) {
    return step.verb == scenario::Verb::replicate || step.verb == scenario::Verb::fully_shard ||
           step.verb == scenario::Verb::flat_shard || step.verb == scenario::Verb::tensor_parallel;
  });
}

std::string listed_unknown(const std::vector<std::string>& notes) {
  std::string text;
  for (std::size_t i = 0; i < std::min<std::size_t>(notes.size(), 2); ++i)
    text += str(i == 0 ? " (unknown: " : "; ", notes[i], i + 1 == notes.size() || i == 1 ? ")" : "");
  return text;
}

namespace {

// The error and its place, and the unknown values behind it.
std::string why_unforeseen(const std::string& place, const std::exception& error, const DryRun& dry_run) {
  return str(place, ": ", error.what(), listed_unknown(dry_run.unknown_values(error.what())));
}

std::vector<PlanGroup> groups_of(const std::vector<plan::Collective>& planned,
                                 const std::vector<layout::MeshShape>& meshes, int rank) {
  std::vector<PlanGroup> groups;
  for (const plan::Collective& one : planned) {
    const auto is_same = [&](const PlanGroup& known) { return known.axis == one.axis && known.size == one.group_size; };
    if (std::none_of(groups.begin(), groups.end(), is_same))
      groups.push_back({one.axis, one.group_size, members_of(meshes, rank, one.axis, one.group_size)});
  }
  return groups;
}

}  // namespace

PlanOutcome plan_case(const CaseSpec& spec, int rank, int world_size, std::size_t stage, const PlanRequest& with) {
  comm::FakeWorld world(rank, world_size);
  RankContext& context = world.context();
  const RankScope scope(context);
  device::count_stand_ins(with.memory);
  PlanOutcome outcome;
  DryRun dry_run(with.scaled_steps);
  {
    Interpreter interpreter(spec, stage, dry_run);
    try {
      interpreter.run();
    } catch (const scenario::OutOfTime&) {
      throw;
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception& error) {
      outcome.unforeseen = why_unforeseen(context.place, error, dry_run);
    }
    if (with.layouts) outcome.layouts = layout_table(interpreter.file_scope());
  }
  outcome.planned = dry_run.planner().collectives();
  outcome.unknown = dry_run.unknown_values("");
  outcome.left_out = dry_run.planner().left_out();
  outcome.conditions = conditions_of(spec, dry_run.values_read());
  outcome.memory = device::memory_stats();
  outcome.groups = groups_of(outcome.planned, dry_run.meshes(), rank);
  return outcome;
}

}  // namespace lockstep::run
