// The state that a call of replicate stores on its module. Its hooks start the ranks up, follow changes of the
// parameters and drive the reducer.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/parallel/reducer.hpp"
#include "engine/parallel/replicate.hpp"

namespace lockstep::parallel {

class ReplicateState {
 public:
  // Throws Error when the options do not fit the module.
  ReplicateState(const nn::ModulePtr& module, const ReplicateOptions& options);

  // ---- for the registry of applied APIs ----
  const std::vector<std::string>& parameter_names() const { return parameter_names_; }
  std::map<std::string, nn::Structure> settings() const;

  void before_forward(nn::Inputs& inputs);
  void before_backward();
  void set_before_all_reduce(std::function<void()> hook);

  bool requires_gradient_sync = true;

 private:
  void start();
  std::vector<nn::NamedParameter> trained_parameters() const;
  void make_reducer(const std::vector<nn::NamedParameter>& parameters);
  void refuse_different_shards(const nn::NamedParameter& parameter) const;
  void broadcast_buffers();
  void move_to_device(nn::Inputs& inputs) const;

  std::weak_ptr<nn::Module> module_;
  ReplicateOptions options_;
  DeviceMesh mesh_;
  std::vector<std::string> parameter_names_;
  device::Device device_;  // of device_id; the cpu if none is given
  std::string owner_;
  std::function<void()> before_all_reduce_;
  std::shared_ptr<Reducer> reducer_;  // null before the first forward
  std::vector<std::string> trained_names_;
};

using ReplicateStatePtr = std::shared_ptr<ReplicateState>;

}  // namespace lockstep::parallel
