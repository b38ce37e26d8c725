// The state of optimizers over units of flat_shard in a dry run. A rank has state of the elements that its chunk holds.
// A state dict has the state that any rank has, so this class keeps, on every rank, which parameters have state: those
// that were stepped with a gradient on some rank, were given state, or were loaded.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/optim/optimizer.hpp"
#include "harness/plan/planner.hpp"
#include "harness/run/trace/traced_shards.hpp"

namespace lockstep::run {

class TracedFlatOptimizers {
 public:
  TracedFlatOptimizers(plan::Planner& planner, TracedShards& shards) : planner_(planner), shards_(shards) {}

  // Whether state dicts of the optimizer are those of units: it trains one, and the type is not `local`.
  bool converts(const OptimizerPtr& optimizer) const;
  void note_step(const OptimizerPtr& optimizer);
  void note_init(const OptimizerPtr& optimizer);  // all parameters that are trained have state
  // The optimizer has loaded a local state. Parameters without elements on this rank are taken to have state if another
  // parameter has.
  void note_local_load(const OptimizerPtr& optimizer);
  // Plans and makes the state dict, by the names of the original parameters.
  optim::Optimizer::StateDict state_of(const OptimizerPtr& optimizer);
  // As state_of() on the first rank, with scalars in the place of the tensors of units. Plans nothing.
  optim::Optimizer::StateDict state_of_first_rank(const OptimizerPtr& optimizer) const;
  // Plans the load of such a state dict, and gives the optimizer its state and options.
  void load_state(const OptimizerPtr& optimizer, const optim::Optimizer::StateDict& dict);
  // Gives the optimizer, which need not train units, the state of a checkpoint: names of original parameters and keys
  // with undefined tensors, and options. With `partial`, state that the checkpoint lacks stays.
  void load_saved(const OptimizerPtr& optimizer, const optim::Optimizer::StateDict& saved, bool partial);
  // The names of the original parameters in the order of their positions.
  std::vector<std::string> original_names(const OptimizerPtr& optimizer) const;

 private:
  using Keys = std::map<std::string, DType>;  // of state tensors
  // A parameter of the optimizer.
  struct Trained {
    std::string name;
    Tensor tensor;
    std::optional<TracedShards::TrainedPart> part;  // none: not of a unit
  };
  struct Original {
    std::string name;
    std::size_t trained = 0;  // in the group
    std::size_t index = 0;    // of the parameter in the unit
  };
  std::vector<std::vector<Trained>> trained_by(const OptimizerPtr& optimizer) const;
  std::vector<Original> originals_of(const Trained& trained, std::size_t position) const;
  std::vector<Original> originals_in_order(const std::vector<Trained>& group) const;
  void note(const OptimizerPtr& optimizer, bool needs_gradient);
  const Keys* known(const OptimizerPtr& optimizer, const std::string& name) const;
  using StateTensors = std::map<std::string, Tensor>;
  std::map<std::string, StateTensors> state_of_unit(const OptimizerPtr& optimizer, const std::vector<Trained>& members);
  optim::Optimizer::StateDict in_order(const OptimizerPtr& optimizer,
                                       const std::map<std::string, StateTensors>& of_units) const;

  plan::Planner& planner_;
  TracedShards& shards_;
  std::map<OptimizerPtr, std::map<std::string, Keys>> known_;  // by the name of the trained parameter
};

}  // namespace lockstep::run
