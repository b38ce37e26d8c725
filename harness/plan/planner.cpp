#include "harness/plan/planner.hpp"

#include <algorithm>
#include <functional>
#include <utility>

namespace lockstep::plan {

IssueCollective Planner::issue() {
  return [this](Collective collective) {
    collective.phase = origin_.phase;
    collective.line = origin_.line;
    collective.turn = origin_.turn;
    collectives_.push_back(std::move(collective));
  };
}

Planner::Planner(int rank) : shards_(facts_, awaited_, issue()), tensor_parallel_(rank, issue()) {}

// ---- owners of parameters ----
// The tensors below `root`, without those of modules that are ignored, sharded, or replicated themselves.
ReplicatePlan::CoveredTensors Planner::covered_by(ModuleId root, const std::set<ModuleId>& ignored) const {
  ReplicatePlan::CoveredTensors covered;
  std::set<ModuleId> modules = ignored;
  std::set<TensorId> tensors;
  const std::function<void(ModuleId)> visit = [&](ModuleId id) {
    if (!modules.insert(id).second || shards_.has(id)) return;
    if (id != root && replicated_.contains(id)) return;
    const ModuleFacts& module = facts_.module(id);
    for (std::size_t index = 0; index < module.parameters.size(); ++index)
      if (const TensorId parameter = module.parameters[index].id; tensors.insert(parameter).second)
        covered.parameters.push_back({{id, index}, parameter});
    for (const NamedTensor& buffer : module.buffers) covered.buffers.push_back(buffer.id);
    for (const ModuleId child : module.children) visit(child);
  };
  visit(root);
  return covered;
}

// Each module and parameter once.
Planner::Managed Planner::managed_by(const std::vector<ModuleId>& modules, const Ignored& ignored) const {
  Managed managed;
  std::set<ModuleId> seen = ignored.modules;
  std::set<TensorId> tensors = ignored.parameters;
  const std::set<ModuleId> tops(modules.begin(), modules.end());
  const std::function<void(ModuleId)> visit = [&](ModuleId id) {
    if (!seen.insert(id).second || replicated_.contains(id) || shards_.has(id)) return;
    const ModuleFacts& module = facts_.module(id);
    for (const ModuleId child : module.children) visit(child);
    managed.modules.push_back(id);
    for (const NamedTensor& parameter : module.parameters)
      if (tensors.insert(parameter.id).second && !shards_.owns(parameter.id))
        managed.parameters.push_back(parameter.id);
  };
  for (const ModuleId top : modules) visit(top);
  return managed;
}

void Planner::replicate(ModuleId module, const ReplicateChoices& choices) {
  shards_.note_replicated(module);
  replicated_.try_emplace(
      module, choices, [this, module, ignored = choices.ignored] { return covered_by(module, ignored); }, facts_,
      awaited_, issue());
}

void Planner::fully_shard(const std::vector<ModuleId>& modules, ShardChoices choices, const Ignored& ignored) {
  shards_.add_group(modules, managed_by(modules, ignored).parameters, std::move(choices));
}

void Planner::set_flags(ModuleId module, const FlagChange& flags, bool recurse) {
  const std::vector<ModuleId> all = recurse ? facts_.pre_order(module) : std::vector<ModuleId>{module};
  for (const ModuleId id : all) {
    shards_.change(id, flags);
    const auto replicated = replicated_.find(id);
    if (replicated != replicated_.end() && flags.requires_gradient_sync)
      replicated->second.set_gradient_sync(*flags.requires_gradient_sync);
  }
}

void Planner::leave_out_tensor_parallel(const std::string& reason) {
  if (std::find(left_out_.begin(), left_out_.end(), reason) == left_out_.end()) left_out_.push_back(reason);
}

// ---- events ----
bool Planner::enter(ModuleId module, Call call) {
  const auto replicated = replicated_.find(module);
  if (replicated != replicated_.end() && !call.recomputing) replicated->second.enter(call.recording, call.in_backward);
  const bool watches = shards_.has(module) && shards_.enter(module, call.in_backward, call.outermost);
  return watches && call.recording && !call.recomputing;
}

bool Planner::leave(ModuleId module, Call call) {
  const bool of_group = shards_.has(module) && shards_.leave(module, call.in_backward, call.recording);
  // The end of the backward reshards a group that is only recomputed.
  if (call.in_backward && shards_.has(module)) add_participant({true, shards_.root_of(module)});
  return call.recording && !call.recomputing && (of_group || replicated_.contains(module));
}

void Planner::add_participant(Participant participant) {
  if (std::find(participants_.begin(), participants_.end(), participant) == participants_.end())
    participants_.push_back(participant);
}

void Planner::backward_reaches(ModuleId module) {
  if (const auto at = replicated_.find(module); at != replicated_.end()) {
    add_participant({false, module});
    at->second.backward_reaches();
  }
  if (!shards_.has(module)) return;
  add_participant({true, shards_.root_of(module)});
  shards_.backward_reaches(module);
}

void Planner::backward_leaves(ModuleId module) {
  if (shards_.has(module)) shards_.backward_leaves(module);
}

void Planner::gradient(TensorId parameter) {
  for (auto& [module, replicated] : replicated_) {
    if (!replicated.owns(parameter)) continue;
    add_participant({false, module});
    replicated.gradient(parameter);
  }
  if (shards_.owns(parameter)) shards_.gradient(parameter);
}

void Planner::end_backward() {
  for (const Participant& participant : std::exchange(participants_, {})) {
    if (!participant.sharded)
      replicated_.at(participant.id).end_backward();
    else if (participant.id >= 0)
      shards_.end_backward(participant.id);
  }
  awaited_.clear();
}

void Planner::begin_attempt() { before_attempts_.push_back(SavedState{collectives_.size(), replicated_, shards_}); }

void Planner::end_attempt(bool failed_as_expected) {
  SavedState before = std::move(before_attempts_.back());
  before_attempts_.pop_back();
  collectives_.resize(before.num_collectives);
  if (failed_as_expected) return;
  replicated_.swap(before.replicated);
  shards_.swap(before.shards);
}

}  // namespace lockstep::plan
