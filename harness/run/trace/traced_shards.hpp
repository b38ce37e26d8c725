// The parameters of fully_shard in a dry run: tensors without values, with the types, layouts and devices that the
// policies give them. All of it comes from engine/layout and the states of the planner, none from engine/parallel.
//
//   shard               the tensor in the parameter slots between calls, which optimizers see: sharded, of the
//                       parameter's type
//   post_forward_shard  the shard while `reshard_after_forward` keeps the parameter sharded among fewer ranks
//   full                the full parameter that a module computes with: a leaf of the type that the policy computes
//                       in. If the parameter was sharded over other axes before, it has that layout.
//
// follow() puts one of the three into the parameter slots, as the state of the planner says, and gives the shards their
// reduced gradients.
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
  device::Device compute_device;  // a stand-in, as the next
  device::Device shard_device;
};

class TracedShards {
 public:
  struct Events {
    std::function<void(plan::TensorId, const Tensor&)> replaced;  // the parameter is another tensor from now on
    std::function<void(plan::TensorId)> gradient;                 // the full parameter got a gradient
    // Whether tensor_parallel has distributed the parameter: then it is shown in full sizes, with a note of its layout.
    std::function<bool(plan::TensorId)> is_distributed;
    std::function<void(plan::TensorId, const Tensor&)> made_full;
  };
  TracedShards(plan::Planner& planner, Events events) : planner_(planner), events_(std::move(events)) {}

  struct Slot {
    nn::ModulePtr owner;
    std::size_t index = 0;
    nn::ParameterSlot& get() const { return owner->parameters[index]; }
  };
  struct Parameter {
    plan::TensorId id = 0;
    std::vector<Slot> slots;
    int dim = 0;
    LayoutPtr inner = nullptr;  // of the full parameter: that of tensor parallelism, null without it
    Tensor shard, post_forward_shard, full;
  };
  // Shards the parameters of one group, which the planner knows already.
  void add_group(const std::vector<nn::ModulePtr>& modules, const std::vector<plan::ModuleId>& ids,
                 std::vector<Parameter> parameters, const MeshPtr& mesh, const ShardPolicy& policy);
  // A tensor that a load or a cast put into the slots is the shard from now on.
  void adopt_replaced();
  void follow();
  bool holds(const Tensor& tensor) const;  // as one of the two shards of a parameter

  // Moves and casts the inputs of a call as the module's group does, and casts its outputs.
  void prepare_inputs(plan::ModuleId module, nn::Inputs& inputs) const;
  void finish_outputs(plan::ModuleId module, nn::Structure& outputs) const;

 private:
  struct Group {
    ShardPolicy policy;
    MeshPtr mesh;
    std::vector<Parameter> parameters;
  };
  void shard_parameter(const Group& group, Parameter& parameter) const;
  const Tensor& full_of(const Group& group, Parameter& parameter);
  const Tensor& post_forward_shard_of(const Group& group, Parameter& parameter);
  void reshard_before_reading(const std::vector<nn::ModulePtr>& modules, plan::ModuleId first, const Group& group);
  void deliver_gradients();

  plan::Planner& planner_;
  Events events_;
  std::vector<Group> groups_;
  std::map<plan::ModuleId, std::size_t> group_of_;
};

}  // namespace lockstep::run
