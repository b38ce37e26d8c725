// The plan of one rank: which collectives its steps must make, worked out from what was applied to which module and
// from a trace of the plain model (which modules are entered and left, where backward comes by, which parameters get
// gradients). It knows nothing of the code that will make them.
//
//   Planner planner;
//   planner.know(facts);
//   planner.replicate(module, choices);
//   planner.at({"forward", 12});
//   planner.enter(module, {.recording = true});
//   ...
//   tally(planner.collectives())
//
// Events come in the order of the run. Where a module has several APIs applied, each sees its own.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "harness/plan/collectives.hpp"
#include "harness/plan/facts.hpp"
#include "harness/plan/replicate_plan.hpp"
#include "harness/plan/shard_plan.hpp"

namespace lockstep::plan {

class Planner {
 public:
  Planner();
  Planner(const Planner&) = delete;
  Planner& operator=(const Planner&) = delete;

  void know(const Facts& facts) { facts_.update(facts); }
  const Facts& facts() const { return facts_; }
  struct Where {
    std::string phase = "other";
    int line = 0;
    int turn = 0;
  };
  void at(Where where) { where_ = std::move(where); }

  // ---- what is applied ----
  void replicate(ModuleId module, const ReplicateChoices& choices);
  // One group; parameters that other groups, replicated modules or `ignored` own are left out.
  struct Ignored {
    std::set<ModuleId> modules;
    std::set<TensorId> parameters;
  };
  void fully_shard(const std::vector<ModuleId>& modules, ShardChoices choices, const Ignored& ignored = {});
  // The tensors that a group of these modules would own now, in order, and the modules below that it looks through.
  struct Managed {
    std::vector<TensorId> parameters;
    std::vector<ModuleId> modules;
  };
  Managed managed_by(const std::vector<ModuleId>& modules, const Ignored& ignored = {}) const;
  void set_flags(ModuleId module, const FlagChange& flags, bool recurse = true);
  ShardPlan& shards() { return shards_; }
  const ShardPlan& shards() const { return shards_; }
  bool is_applied(ModuleId module) const { return replicated_.contains(module) || shards_.has(module); }

  // ---- events; those of modules and parameters that nothing is applied to are passed over ----
  struct Call {
    bool recording = true;
    bool recomputing = false;  // a forward within a backward
  };
  // Whether backward must be watched at the inputs of this call, and at its outputs.
  bool enter(ModuleId module, Call call);
  bool leave(ModuleId module, Call call);
  // The parameters that it comes to, before any other event of it.
  void begin_backward(std::set<TensorId> comes_to) { awaited_ = std::move(comes_to); }
  void backward_reaches(ModuleId module);
  void backward_leaves(ModuleId module);
  void gradient(TensorId parameter);
  void end_backward();

  // ---- a step that must fail ----
  // What it would issue is no part of the plan. Where it failed `as_foreseen`, what it did up to there has happened;
  // else nobody knows how far it came, and all is as it was before.
  void begin_attempt();
  void end_attempt(bool as_foreseen);

  const std::vector<Collective>& collectives() const { return collectives_; }

 private:
  ReplicatePlan::Covered covered_by(ModuleId root, const std::set<ModuleId>& ignored) const;
  Issue issue();
  // Whose end of backward comes in which order: that in which backward first came by.
  struct End {
    bool sharded = false;
    int which = 0;  // the replicated module, or the root among the sharded
    friend bool operator==(const End&, const End&) = default;
  };
  void note_end(End end);

  Facts facts_;
  std::set<TensorId> awaited_;
  std::vector<End> ends_;
  Where where_;
  std::vector<Collective> collectives_;
  std::map<ModuleId, ReplicatePlan> replicated_;
  ShardPlan shards_;
  struct Before {
    std::size_t num_collectives = 0;
    std::map<ModuleId, ReplicatePlan> replicated;
    ShardPlan shards;
  };
  std::unique_ptr<Before> before_;  // of the step that is tried
};

}  // namespace lockstep::plan
