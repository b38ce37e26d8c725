// tensor_parallel in a dry run. A styled module computes with full sizes: its inputs become values with a noted layout,
// and its parameters, sharded tensors in the slots, are shown in full while it runs. Its outputs get the placements of
// its style. The planner learns every change of a layout, forward and backward. Nothing of engine/parallel is called.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/nn/module.hpp"
#include "harness/plan/planner.hpp"
#include "harness/run/trace/module_watch.hpp"
#include "harness/run/trace/traced_layouts.hpp"
#include "harness/run/trace/traced_model.hpp"
#include "harness/run/verbs/parallel_arguments.hpp"

namespace lockstep::run {

class TracedTensorParallel {
 public:
  TracedTensorParallel(plan::Planner& planner, TracedModel& model, TracedLayouts& layouts, ModuleWatch& watch)
      : planner_(planner), model_(model), layouts_(layouts), watch_(watch) {}

  void apply(const TensorParallelArguments& arguments);
  // Puts the sharded tensors back into all slots: a recomputation may have stopped within a module. Does nothing within
  // a call, in a hook: its modules still compute with what their slots show.
  void restore();
  // The layout of a distributed parameter; null for any other.
  const layout::ShardedLayout* layout_of(plan::TensorId id) const;
  // The full parameter of a group of fully_shard: `full` gets a note of its layout.
  void note_full(plan::TensorId id, const Tensor& full);
  // The axis along which the gradient of a parameter is a partial sum.
  std::optional<plan::Axis> partial_axis_of(plan::TensorId id) const;

 private:
  struct Slot {
    nn::ModulePtr owner;
    std::size_t index = 0;
    bool gradient_is_partial = false;
    Tensor shown;  // in full, while the module runs
    nn::ParameterSlot& get() const { return owner->parameters[index]; }
  };
  struct Styled {
    plan::ModuleId id = 0;
    StyleArgument style;
    layout::MeshShape mesh;
    std::string owner;
    std::vector<Slot> slots;
  };
  using StyledPtr = std::shared_ptr<Styled>;
  struct Parameter {
    layout::ShardedLayout layout;
    bool gradient_is_partial = false;
  };

  StyledPtr add_module(const TensorParallelArguments& arguments, const StyledModule& one);
  void distribute(const nn::ModulePtr& model, const Slot& slot, const plan::ParameterReading& reading,
                  const Styled& styled);
  void install(const nn::ModulePtr& module, const StyledPtr& styled);
  void show(Styled& styled);
  static void hide(Styled& styled);
  Tensor full_of(const Tensor& shard, const Slot& slot, const Styled& styled);
  nn::Structure call(const Styled& styled, nn::Inputs inputs,
                     const std::function<nn::Structure(const nn::Inputs&)>& compute);
  void convert_inputs(const Styled& styled, nn::Inputs& inputs);
  nn::Structure convert_outputs(const Styled& styled, const nn::Structure& outputs);
  nn::Structure prepared(const Styled& styled, const nn::Structure& item,
                         const std::optional<ConversionArgument>& conversion);

  plan::Planner& planner_;
  TracedModel& model_;
  TracedLayouts& layouts_;
  ModuleWatch& watch_;
  std::vector<StyledPtr> styled_;
  std::map<plan::TensorId, Parameter> parameters_;
  std::map<const TensorImpl*, std::shared_ptr<std::string>>
      unreduced_;               // leaves with a hook: the owner of a partial gradient
  std::vector<Tensor> hooked_;  // keeps their addresses
};

}  // namespace lockstep::run
