// The dry run of a case that the plan of collectives is made from: the same steps by the same interpreter, on meta
// devices that stand for the real ones (stand_in.hpp). Verbs that shard or replicate tell the planner what is applied
// where, and change types, layouts and places of the model's tensors as the policies do (plan_shards.hpp); checks
// (except for modules that they call), collectives, files and faults are left out. Hooks on the modules tell the
// planner which module is entered and left, where backward passes, and which parameters get gradients.
//
//   const PlanOutcome outcome = plan_case(spec, rank, stage);
//   outcome.planned, or why nothing could be planned
//
// It runs on a context of its own, so that the rank that asks keeps its generator, streams, memory and log.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/nn/module.hpp"
#include "harness/plan/planner.hpp"
#include "harness/run/trace/plan_shards.hpp"
#include "harness/run/values/value.hpp"
#include "harness/run/verbs/verbs.hpp"

namespace lockstep::run {

// Steps that the trace cannot follow: what they do depends on values, or was never recorded.
class Unforeseeable : public Error {
 public:
  using Error::Error;
};

class PlanTrace {
 public:
  PlanTrace();
  PlanTrace(const PlanTrace&) = delete;
  PlanTrace& operator=(const PlanTrace&) = delete;

  Value perform(StepCall& call);  // in place of run_verb
  // Whether the plan stays the same though this step failed; the names it would bind are then unbound.
  bool forgives(const scenario::Step& step, const Scope& scope, const Error& error);
  // A step that must fail: a forward that fails here in the same way leaves behind what it did until then.
  void attempt(const scenario::Step& step, const Scope& scope, const std::function<void()>& perform);
  // Whether an argument has a value without those that only a run gives.
  bool knows(const scenario::Expr& expr, const Scope& scope);
  void next_turn() { ++turn_; }  // of a loop
  const plan::Planner& planner() const { return planner_; }
  // The notes on values that were needed and not known, those on the names in `message` first.
  std::vector<std::string> unknown_for(const std::string& message) const;
  const std::string& not_planned() const { return not_planned_; }  // an API that has no plan yet; empty: none

 private:
  Value perform_known(StepCall& call, std::string_view verb);
  Value perform_applying(StepCall& call, std::string_view verb);
  void bind_each(StepCall& call);
  void evaluate_calls(StepCall& call);
  void note(const std::string& name, const scenario::Place& place, const Error& error);

  void replicate(StepCall& call);
  void fully_shard(StepCall& call);
  void shard_together(StepCall& call, const std::vector<ModuleAt>& found, plan::ShardChoices choices,
                      const ShardPolicy& policy);
  void cut_parameters(const std::vector<nn::ModulePtr>& modules, const std::vector<plan::ModuleId>& ids,
                      const plan::Planner::Managed& managed, const std::map<plan::TensorId, int>& dims,
                      const MeshPtr& mesh, const ShardPolicy& policy);
  Value unshard(StepCall& call);
  static std::optional<device::Device> accelerator_of(const Value& device_id, const nn::ModulePtr& module,
                                                      const Session& session);
  void set_flags(StepCall& call);
  void prefetch(StepCall& call);
  void extend_gather(StepCall& call);
  bool cut_for_tensor_parallel(StepCall& call);
  Dims sizes_of_part(const Tensor& tensor);
  Value build_model(StepCall& call);
  Value shape_of_collective(StepCall& call, std::string_view verb);
  Value observe(StepCall& call);
  void materialize(StepCall& call);
  void prepare(plan::ModuleId module, nn::Inputs& inputs) const;

  plan::ModuleId id_of(const nn::ModulePtr& module);
  plan::TensorId id_of(const Tensor& tensor);
  void stands_for(const Tensor& tensor, plan::TensorId id);
  void gradient(plan::TensorId id);
  void refresh(const nn::ModulePtr& root);  // tells the planner of this tree as it is now
  void watch(const nn::ModulePtr& module);
  void here(const char* phase = nullptr);  // tells it where the run is
  void here_in_backward();
  std::vector<plan::ModuleId> watched_ids(StepCall& call, const char* name);

  plan::Planner planner_;
  std::map<const nn::Module*, plan::ModuleId> module_ids_;
  std::map<const TensorImpl*, plan::TensorId> tensor_ids_;
  std::vector<nn::ModulePtr> modules_;  // kept, so that a number stands for one object
  std::vector<Tensor> tensors_, replacements_;
  TracedShards shards_;
  std::map<plan::ModuleId, device::Device> moves_inputs_to_;  // of replicated modules
  std::set<const nn::Module*> watched_;
  // Of parameters that tensor parallelism cut: this rank's part.
  struct Cut {
    int dim = 0, parts = 1, mine = 0;
  };
  std::map<plan::TensorId, Cut> cuts_;
  std::map<plan::TensorId, MeshPtr> meshes_;  // of sharded parameters: the ranks that gather them
  std::vector<std::string> unknown_;
  std::string not_planned_;
  int turn_ = 0;
  int depth_ = 0;          // of forwards of watched modules, one within the other
  bool attempts_ = false;  // a step that must fail
  int num_attempts_ = 0;
  std::map<std::string, std::int64_t> user_collectives_;  // of the scenario's own steps, by operation
  std::uint64_t backward_ = 0;                            // the last that it told the planner of
};

struct PlanOutcome {
  std::vector<plan::Collective> planned;
  std::string unforeseen;   // why the plan ends early; empty: it is whole
  std::string not_planned;  // an API in it that has no plan yet
};
PlanOutcome plan_case(const CaseSpec& spec, int rank, int world_size, std::size_t stage);
// Whether some step applies an API that the plan speaks of.
bool has_plan(const scenario::Steps& steps);

}  // namespace lockstep::run
