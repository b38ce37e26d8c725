// The dry run of a case, from which its plan is made. The interpreter walks the same steps as in a run, but models and
// tensors are on stand-in devices (stand_in.hpp): they have shapes and no values. Verbs that replicate or shard call
// the planner instead of the engine, and change types, layouts and devices of the model's tensors as the policies do
// (traced_shards.hpp). Hooks on the modules report the events that the planner needs (module_watch.hpp).
//
//   DryRun dry_run;
//   Interpreter interpreter(spec, stage, dry_run);
//   interpreter.run();
//   dry_run.planner().collectives()
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "harness/plan/planner.hpp"
#include "harness/run/step_runner.hpp"
#include "harness/run/trace/module_watch.hpp"
#include "harness/run/trace/traced_flat_optimizers.hpp"
#include "harness/run/trace/traced_layouts.hpp"
#include "harness/run/trace/traced_model.hpp"
#include "harness/run/trace/traced_shards.hpp"
#include "harness/run/trace/traced_tensor_parallel.hpp"
#include "harness/run/verbs/parallel_arguments.hpp"

namespace lockstep::run {

// A step that a dry run cannot follow.
class Unforeseeable : public Error {
 public:
  using Error::Error;
};

class DryRun final : public StepRunner {
 public:
  // `scaled_steps`: whether the run did or skipped each step with a scaler, in order. Values decide that. Any further
  // one is taken for done.
  explicit DryRun(std::vector<bool> scaled_steps = {});
  // Whether a plan depends on steps of this verb. It does not on those that are left out.
  static bool affects_plan(scenario::Verb verb);
  // Whether the dry run of the verb reads the argument. Otherwise the plan does not depend on it.
  static bool reads(scenario::Verb verb, std::string_view argument);

  void prepare(Session& session) override;
  void enter(const scenario::Step& step, const Site& site) override;
  void resume(const scenario::Step&) override {}
  void begin_iteration() override { watch_.begin_iteration(); }
  Value perform(StepCall& call) override;
  // Attempts a forward: if it fails in the expected way, groups stay unsharded as after the failing forward of a run.
  // A load or save reshards its modules before it fails, and a step with a scaler unscales the gradients. Other steps
  // are left out: they fail before they issue a collective, or for a reason that a dry run does not see.
  void perform_expecting_error(StepCall& call) override;
  // Tolerates the failure of a step that the plan does not depend on. The names that it would bind become unbound.
  bool tolerates(const scenario::Step& step, const Scope& scope, const Error& error) override;
  std::optional<Value> routine_argument(const scenario::Expr& expr, const Scope& scope) override;
  bool allows_unbound_results() const override { return true; }

  const plan::Planner& planner() const { return planner_; }
  // The names of the values that differ among the cases of a scenario and that the steps read (plan_conditions.hpp).
  const std::set<std::string, std::less<>>& values_read() const { return values_read_; }
  // The meshes of the case in the order of their making: that of all ranks, and those of `mesh` steps.
  const std::vector<layout::MeshShape>& meshes() const { return meshes_; }
  // The values that were needed and unknown, each with its place and the reason. Those that `message` names come first.
  std::vector<std::string> unknown_values(const std::string& message) const;

 private:
  // How the dry run treats a verb: the function that performs it, and the effect of a failure. treatment_of() states
  // it for every verb.
  enum class OnError : std::uint8_t {
    ends_plan,    // later steps depend on the step
    is_left_out,  // the plan is the same without the step
    by_steps,     // is_left_out if it is so for every step in the blocks, otherwise ends_plan
  };
  struct Treatment {
    Value (DryRun::*perform)(StepCall&);
    OnError on_error;
  };
  static Treatment treatment_of(scenario::Verb verb);
  static bool is_dispensable(const scenario::Step& step);

  // ---- dry_run_steps.cpp ----
  Value run_as_is(StepCall& call);  // by the verb's own function
  Value assign(StepCall& call);
  Value read(StepCall& call);
  Value to_empty(StepCall& call);
  Value save_checkpoint(StepCall& call);
  Value load_checkpoint(StepCall& call);
  void settle_before_failure(StepCall& call);
  void load_saved_optimizer(const std::string& folder, const std::string& name, const OptimizerPtr& optimizer,
                            bool partial);
  Value backward(StepCall& call);
  Value clip_grad_norm(StepCall& call);
  bool plan_unscale(const ScalerPtr& scaler, const OptimizerPtr& optimizer);
  void unscale_before_failure(StepCall& call);
  bool skips_next_scaled_step();
  Value unscale(StepCall& call);
  Value step(StepCall& call);
  Value init_optimizer_state(StepCall& call);
  Value update_scale(StepCall& call);
  Value observe(StepCall& call);
  Value hook(StepCall& call);
  Value wait(StepCall& call);
  void note_unknown(const std::string& name, const scenario::Place& place, const Error& error);

  // ---- dry_run_expressions.cpp ----
  Value leave_out(StepCall& call);
  Value let(StepCall& call);

  // ---- dry_run_collectives.cpp ----
  Value collective_in_place(StepCall& call);
  Value all_gather(StepCall& call);
  Value reduce_scatter(StepCall& call);
  Value all_to_all(StepCall& call);
  Value gather(StepCall& call);
  Value scatter(StepCall& call);
  void count_user_collective(const StepCall& call);

  // ---- dry_run_parallel.cpp ----
  Value mesh(StepCall& call);
  Value replicate(StepCall& call);
  Value set_requires_grad(StepCall& call);
  Value fully_shard(StepCall& call);
  Value tensor_parallel(StepCall& call);
  Value unshard(StepCall& call);
  Value reshard(StepCall& call);
  Value set_flags(StepCall& call);
  Value prefetch(StepCall& call);
  Value register_forward_method(StepCall& call);
  Value extend_gather(StepCall& call);
  static std::vector<plan::Axis> axes_of(const DeviceMesh& mesh);
  std::vector<TracedShards::Parameter> traced(const std::vector<plan::TensorId>& ids,
                                              const std::vector<plan::ModuleId>& modules);
  void place_buffers(const std::vector<plan::ModuleId>& modules, device::Device device) const;
  void shard_group(const std::vector<ModuleMatch>& found, FullyShardArguments& arguments, plan::ShardChoices choices,
                   const ShardPolicy& policy);
  std::map<plan::TensorId, int> shard_dims_of(const std::vector<ModuleMatch>& found, ShardDimArgument& stated);
  void shard_parameters(const std::vector<nn::ModulePtr>& modules, const std::vector<plan::ModuleId>& ids,
                        const plan::Planner::Managed& managed, const std::map<plan::TensorId, int>& dims,
                        const MeshPtr& mesh, const ShardPolicy& policy);
  std::vector<plan::ModuleId> refreshed_ids(const std::vector<ModuleMatch>& found);

  // ---- dry_run_flat.cpp ----
  Value flat_shard(StepCall& call);
  Value summon_full_parameters(StepCall& call);
  void make_units(const ModuleMatch& root, const FlatShardArguments& arguments, const plan::ShardChoices& choices,
                  const ShardPolicy& policy);
  void give_storage(const std::vector<plan::Planner::FlatUnit>& units, device::Device device) const;

  // ---- dry_run_flat_state.cpp ----
  Value state_dict(StepCall& call);
  Value optimizer_state_dict(StepCall& call, const OptimizerPtr& optimizer);
  void note_state_of_first_rank(const StepCall& call, const Value& own, const optim::Optimizer::StateDict& of_first);
  Value set_state_dict_type(StepCall& call);
  Value load_state_dict(StepCall& call);
  void load_into_units(const StepCall& call, const nn::ModulePtr& module);
  void load_into_flat_optimizer(const StepCall& call, const OptimizerPtr& optimizer);
  void take_state_of_first_rank(const StepCall& call, const OptimizerPtr& optimizer);
  optim::Optimizer::StateDict by_names(const StepCall& call, const optim::Optimizer::StateDict& dict,
                                       const OptimizerPtr& optimizer) const;
  static optim::Optimizer::StateDict without_tensors(optim::Optimizer::StateDict dict);
  static Value value_of_first_rank(const StepCall& call, std::string_view argument);
  std::optional<optim::Optimizer::StateDict> state_given_by_first_rank(const StepCall& call) const;

  std::vector<layout::MeshShape> meshes_;
  std::vector<nn::ModulePtr> replicated_;
  plan::Planner planner_;
  TracedModel model_;
  TracedShards shards_;
  TracedFlatOptimizers flat_optimizers_;
  ModuleWatch watch_;
  TracedLayouts layouts_;
  TracedTensorParallel tensor_parallel_;
  std::map<ScalerPtr, std::set<OptimizerPtr>> unscaled_;  // since the last update of the scaler
  std::set<ScalerPtr> skipped_;                           // those that skipped a step since their last update
  std::vector<bool> scaled_steps_;
  std::size_t num_scaled_steps_ = 0;                 // so far
  std::map<plan::TensorId, MeshPtr> gather_meshes_;  // of sharded parameters: the ranks of their all-gathers
  // The optimizers of the checkpoints of this stage, by folder and by the name of the part: names of the original
  // parameters, keys and options, with undefined tensors.
  std::map<std::string, std::map<std::string, optim::Optimizer::StateDict>> saved_optimizers_;
  // The state dicts of optimizers that rank 0 has, with scalars for tensors, by the list of groups in the value of this
  // rank. That value lacks state.
  std::vector<std::pair<Value, optim::Optimizer::StateDict>> states_of_first_rank_;
  std::vector<std::string> unknown_values_;
  std::set<std::string, std::less<>> values_read_;
  bool is_attempt_ = false;  // within a step that must raise
  int num_attempts_ = 0;
  std::map<std::string, std::int64_t> user_collectives_;  // of the scenario's own steps, by operation
};

}  // namespace lockstep::run
