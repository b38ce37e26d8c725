// Hooks on the modules of a dry run. They report to the planner which modules are entered and left, where backward
// passes, and which parameters get gradients. They also move and cast inputs and outputs as the applied APIs do.
#pragma once

#include <cstdint>
#include <map>
#include <set>

#include "engine/nn/module.hpp"
#include "harness/plan/planner.hpp"
#include "harness/run/trace/traced_model.hpp"
#include "harness/run/trace/traced_shards.hpp"

namespace lockstep::run {

class ModuleWatch {
 public:
  ModuleWatch(plan::Planner& planner, TracedModel& model, TracedShards& shards)
      : planner_(planner), model_(model), shards_(shards) {}

  // Reports the calls of this module from now on.
  void watch(const nn::ModulePtr& module);
  // Reports the tree below `root` as it is now.
  void refresh(const nn::ModulePtr& root);
  // Reports the phase, the line and the iteration of the next collectives. The phase is the current one unless given.
  void report_position(const char* phase = nullptr);
  void report_gradient(plan::TensorId id);
  // The same as report_position(), within a backward.
  void report_backward_position();

  void begin_iteration() { ++iteration_; }
  // Forgets calls that have not returned: a forward failed, or a hook's step runs within one.
  void forget_open_calls() { depth_ = 0; }
  // A replicated module moves its inputs to this device.
  void move_inputs_of(plan::ModuleId module, device::Device device) { input_devices_[module] = device; }

 private:
  void before_forward(plan::ModuleId id, nn::Module& module, nn::Inputs& inputs);
  void after_forward(plan::ModuleId id, nn::Structure& outputs);
  void prepare_inputs(plan::ModuleId module, nn::Inputs& inputs) const;

  plan::Planner& planner_;
  TracedModel& model_;
  TracedShards& shards_;
  std::set<const nn::Module*> watched_;
  std::map<plan::ModuleId, device::Device> input_devices_;
  int iteration_ = 0;
  int depth_ = 0;               // of nested calls of watched modules
  std::uint64_t backward_ = 0;  // the last backward that was reported
};

}  // namespace lockstep::run
