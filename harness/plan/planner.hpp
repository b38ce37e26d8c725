// The plan of one rank: the collectives that its steps must issue. The plan is computed from the APIs applied to the
// modules and from the events of a dry run (modules entered and left, backward reaching and leaving them, parameters
// receiving gradients). It does not depend on the code of the parallel layer.
//
//   Planner planner;
//   planner.update_facts(facts);
//   planner.replicate(module, choices);
//   planner.at({"forward", 12});
//   planner.enter(module, {.recording = true});
//   ...
//   tally(planner.collectives())
//
// The caller reports events in the order of the run.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "harness/plan/collectives.hpp"
#include "harness/plan/facts.hpp"
#include "harness/plan/replicate_plan.hpp"
#include "harness/plan/shard_plan.hpp"
#include "harness/plan/tensor_parallel_plan.hpp"

namespace lockstep::plan {

class Planner {
 public:
  explicit Planner(int rank = 0);
  Planner(const Planner&) = delete;
  Planner& operator=(const Planner&) = delete;

  void update_facts(const Facts& facts) { facts_.update(facts); }
  const Facts& facts() const { return facts_; }
  // The origin of the collectives that follow.
  struct Origin {
    std::string phase = "other";
    int line = 0;  // in the scenario's file
    int turn = 0;  // of the innermost loop
  };
  void at(Origin origin) { origin_ = std::move(origin); }

  // ---- applied APIs ----
  void replicate(ModuleId module, const ReplicateChoices& choices);
  // Makes one parameter group. It excludes parameters of other groups, of replicated modules and of `ignored`.
  struct Ignored {
    std::set<ModuleId> modules;
    std::set<TensorId> parameters;
  };
  void fully_shard(const std::vector<ModuleId>& modules, ShardChoices choices, const Ignored& ignored = {});
  // The parameters that a group of these modules would own now, and the modules that would hold them, in post-order.
  struct Managed {
    std::vector<TensorId> parameters;
    std::vector<ModuleId> modules;
  };
  Managed managed_by(const std::vector<ModuleId>& modules, const Ignored& ignored = {}) const;
  // flat_shard of a module: a unit of each module in `of_types` below it, and one of the rest.
  struct FlatUnit {
    ModuleId module = 0;
    std::vector<TensorId> parameters;  // in the order of the flat parameter
    std::vector<ModuleId> modules;     // that hold them, and the other modules whose buffers belong to the unit
  };
  std::vector<FlatUnit> flat_units(ModuleId root, const std::set<ModuleId>& of_types, const Ignored& ignored) const;
  void flat_shard(const FlatUnit& unit, ShardChoices choices);
  // The start-up of sync_module_states: along the replicate axis first, then along the shard axis.
  void broadcast_states(const std::vector<FlatUnit>& units, const std::vector<Axis>& axes, const std::string& owner);
  // State dicts of units: one tensor per parameter of a unit, its values or one key of the state of an optimizer. A
  // unit that shards is gathered as a whole. Parameters of tensor parallelism, `distributed` on the ranks, are then
  // gathered one by one, unless the state dict keeps them sharded.
  struct FlatState {
    ModuleId unit = 0;
    DType dtype = DType::float32;
    std::vector<layout::ShardedLayout> distributed{};
  };
  void save_flat_state(const FlatState& state, StateType type);
  // Loading gathers the pieces of one parameter. `sizes`: of the parameter, or of this rank's part of it under tensor
  // parallelism.
  void load_flat_state(ModuleId unit, const Dims& sizes, DType dtype, StateType type);
  void set_flags(ModuleId module, const FlagChange& flags, bool recurse = true);
  ShardPlan& shards() { return shards_; }
  const ShardPlan& shards() const { return shards_; }
  TensorParallelPlan& tensor_parallel() { return tensor_parallel_; }
  // The collectives of clip_grad_norm: one all_reduce per axis that shards some gradient. `gradients`: those of sharded
  // tensors, with the type of their norms.
  struct Gradient {
    layout::ShardedLayout layout;
    DType norm_type = DType::float32;
  };
  void clip_gradients(const std::vector<Gradient>& gradients);
  // The collectives of a gradient scaler: one all_reduce of a flag per mesh.
  void unscale_gradients(const std::vector<Gradient>& gradients);
  // Something of the case is not planned: the collectives of tensor parallelism and redistributions are left out.
  void leave_out_tensor_parallel(const std::string& reason);
  const std::vector<std::string>& left_out() const { return left_out_; }
  bool is_applied(ModuleId module) const { return replicated_.contains(module) || shards_.has(module); }

  // ---- events; those of modules and parameters without an applied API have no effect ----
  struct Call {
    bool recording = true;        // on the tape; leave: an output requires a gradient
    bool in_backward = false;     // a recomputation, or in a hook
    bool recomputing = false;     // by an activation checkpoint
    std::uint64_t outermost = 0;  // enter: the number of the outermost call that runs
  };
  // Return whether the dry run must report backward at the inputs of this call (enter) or at its outputs (leave).
  bool enter(ModuleId module, Call call);
  bool leave(ModuleId module, Call call);
  // The first event of a backward. `reached`: the parameters that this backward will reach.
  void begin_backward(std::set<TensorId> reached) { awaited_ = std::move(reached); }
  void backward_reaches(ModuleId module);
  void backward_leaves(ModuleId module);
  void gradient(TensorId parameter);
  void end_backward();
  class BackwardScope;

  // ---- a step with `raises` ----
  // Its collectives are excluded from the plan. If it failed `failed_as_expected`, with the expected message, the
  // states of its groups remain; otherwise they are reset to those before the step. Attempts nest: a hook may have such
  // a step.
  void begin_attempt();
  void end_attempt(bool failed_as_expected);

  const std::vector<Collective>& collectives() const { return collectives_; }

 private:
  ReplicatePlan::CoveredTensors covered_by(ModuleId root, const std::set<ModuleId>& ignored) const;
  IssueCollective issue();
  // A replicated module or a root of sharded groups that this backward reached. The end of a backward handles them in
  // the order in which backward reached them first.
  struct Participant {
    bool sharded = false;
    int id = 0;  // of the replicated module, or of the root (ShardPlan::root_of)
    friend bool operator==(const Participant&, const Participant&) = default;
  };
  void add_participant(Participant participant);

  Facts facts_;
  std::set<TensorId> awaited_;             // by the current backward
  std::vector<Participant> participants_;  // of the current backward
  Origin origin_;
  std::vector<Collective> collectives_;
  std::map<ModuleId, ReplicatePlan> replicated_;
  ShardPlan shards_;
  TensorParallelPlan tensor_parallel_;
  std::vector<std::string> left_out_;
  struct SavedState {
    std::size_t num_collectives = 0;
    std::map<ModuleId, ReplicatePlan> replicated;
    ShardPlan shards;
  };
  std::vector<SavedState> before_attempts_;  // an attempt in a hook is within another
};

// While it lives, the events are those of one backward. A backward around it, a hook of which runs this one, goes on
// afterwards.
class Planner::BackwardScope {
 public:
  explicit BackwardScope(Planner& planner)
      : planner_(planner),
        awaited_(std::exchange(planner.awaited_, {})),
        participants_(std::exchange(planner.participants_, {})) {}
  ~BackwardScope() {
    planner_.awaited_ = std::move(awaited_);
    planner_.participants_ = std::move(participants_);
  }
  BackwardScope(const BackwardScope&) = delete;
  BackwardScope& operator=(const BackwardScope&) = delete;

 private:
  Planner& planner_;
  std::set<TensorId> awaited_;
  std::vector<Participant> participants_;
};

}  // namespace lockstep::plan
