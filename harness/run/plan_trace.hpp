// The dry run of a case that the plan of collectives is made from: the same steps by the same interpreter, on the meta
// device, with the plain model. Verbs that shard or replicate only tell the planner what is applied where; checks
// (but for modules that they call), collectives, files and faults are left out. Hooks on the plain modules tell it what
// is entered and left, where backward comes by, and which parameters get gradients.
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
#include "harness/run/value.hpp"
#include "harness/run/verbs.hpp"

namespace lockstep::run {

// Steps that the trace cannot follow: what they do depends on values, or was never recorded.
class Unforeseeable : public Error {
 public:
  using Error::Error;
};

class PlanTrace {
 public:
  PlanTrace() = default;
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
  const std::vector<std::string>& unknown() const { return unknown_; }  // what values would have been needed for
  const std::string& not_planned() const { return not_planned_; }       // an API that has no plan yet; empty: none

 private:
  Value perform_known(StepCall& call, std::string_view verb);
  Value perform_applying(StepCall& call, std::string_view verb);
  void bind_each(StepCall& call);
  void evaluate_calls(StepCall& call);
  void note(const std::string& what, const Error& error);

  void replicate(StepCall& call);
  void fully_shard(StepCall& call);
  void shard_together(StepCall& call, const std::vector<ModuleAt>& found, plan::ShardChoices choices);
  void set_flags(StepCall& call);
  void prefetch(StepCall& call);
  void extend_gather(StepCall& call);
  bool cut_for_tensor_parallel(StepCall& call);
  Dims sizes_of_part(const Tensor& tensor);
  Value build_model(StepCall& call);
  Value shape_of_collective(StepCall& call, std::string_view verb);

  plan::ModuleId id_of(const nn::ModulePtr& module);
  // `stands_for`: the number it takes over, if it is new.
  plan::TensorId id_of(const Tensor& tensor, std::optional<plan::TensorId> stands_for = {});
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
  std::map<std::pair<const nn::Module*, std::string>, std::optional<plan::TensorId>> in_slots_;
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
  int depth_ = 0;               // of forwards of watched modules, one within the other
  bool attempts_ = false;       // a step that must fail
  std::uint64_t backward_ = 0;  // the last that it told the planner of
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
