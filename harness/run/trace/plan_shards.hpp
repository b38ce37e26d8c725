// The parameters that fully_shard takes, as the dry run holds them: tensors without values, of the types, layouts and
// places that the policies give them. All of it is worked out here, from engine/layout and the states of the plan; no
// code of engine/parallel is asked.
//
//   part    what the slots show between calls, and what optimizers see: a sharded tensor of the parameter's own type
//   kept    the same among the ranks that share a parameter after a forward
//   full    what a module computes with: a leaf of the type that the policy computes in
//
// follow() puts into the slots what the plan says they show now, and gives the parts the gradients that were reduced.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/mesh/sharded.hpp"
#include "engine/nn/module.hpp"
#include "harness/plan/planner.hpp"
#include "harness/run/values/value.hpp"

namespace lockstep::run {

struct ShardPolicy {
  std::optional<DType> param, output;
  bool casts_inputs = true;
  device::Device computes_on;  // stand-ins
  device::Device parts_on;
};

class TracedShards {
 public:
  // `stands_for`: a tensor is the parameter of that number from now on. `gradient`: one came to the full parameter.
  struct Tell {
    std::function<void(const Tensor&, plan::TensorId)> stands_for;
    std::function<void(plan::TensorId)> gradient;
  };
  TracedShards(plan::Planner& planner, Tell tell) : planner_(planner), tell_(std::move(tell)) {}

  struct Slot {
    nn::ModulePtr owner;
    std::size_t index = 0;
    nn::ParameterSlot& get() const { return owner->parameters[index]; }
  };
  struct Parameter {
    plan::TensorId id = 0;
    std::vector<Slot> slots;
    int dim = 0;
    Tensor part, kept, full;
  };
  // One group, which the planner knows already: cuts what its slots hold.
  void add(const std::vector<nn::ModulePtr>& modules, const std::vector<plan::ModuleId>& ids,
           std::vector<Parameter> parameters, const MeshPtr& mesh, const ShardPolicy& policy);
  void adopt();  // what a load or a cast put into the slots is the part from now on
  void follow();
  bool holds(const Tensor& tensor) const;  // a part, or what is kept

  // What a group does to the inputs and outputs of a call.
  void prepare(plan::ModuleId module, nn::Inputs& inputs) const;
  void finish(plan::ModuleId module, nn::Value& outputs) const;

 private:
  struct Group {
    ShardPolicy policy;
    MeshPtr mesh;
    std::vector<Parameter> parameters;
  };
  void cut(Group& group, Parameter& parameter);
  const Tensor& full_of(const Group& group, Parameter& parameter);
  const Tensor& kept_of(const Group& group, Parameter& parameter);
  void settle_before_reading(const std::vector<nn::ModulePtr>& modules, plan::ModuleId first, const Group& group);
  void deliver();

  plan::Planner& planner_;
  Tell tell_;
  std::vector<Group> groups_;
  std::map<plan::ModuleId, std::size_t> group_of_;
};

}  // namespace lockstep::run
