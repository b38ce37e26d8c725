// Optimizers over parameter groups. One pass over many tensors; the same bits as a tensor at a time and as PyTorch's
// CPU formulas. State is keyed by parameter. Parameters without a gradient are left as they are.
//
//   auto adam = make_optimizer("Adam", {group_of(nn::named_parameters(model), {.lr = 1e-2})});
//   adam->step();
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/nn/module.hpp"
#include "engine/tensor/tensor.hpp"

namespace lockstep::optim {

struct Options {
  double lr = 1e-3;
  double momentum = 0.0;                          // SGD
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;  // Adam, AdamW
  double weight_decay = 0.0;                      // AdamW shrinks the parameter, the others add it to the gradient
  bool fused = false;                             // a request; the bits are the same
};

// A parameter as the optimizer sees it: looked up each step, as a parallel API may exchange the tensor in the slot.
struct ParameterRef {
  std::string name;
  std::function<Tensor()> get;
};
struct Group {
  std::vector<ParameterRef> parameters;
  Options options;
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  virtual std::string_view type() const = 0;
  void step();
  void zero_grad(bool set_to_none = true);
  void init_state();  // creates the state without a step
  std::vector<Group>& groups() { return groups_; }
  // All state tensors by "name/key" ("0.weight/exp_avg"), in order.
  std::vector<std::pair<std::string, Tensor>> state_tensors() const;
  struct StateDict {
    std::vector<std::pair<std::string, std::map<std::string, Tensor>>> state;  // by parameter name
    std::vector<std::pair<std::vector<std::string>, Options>> groups;
  };
  StateDict state_dict() const;
  void load_state_dict(const StateDict& state);

  using Hook = std::function<void(Optimizer&)>;
  void add_before_step(Hook hook) { before_step_.push_back(std::move(hook)); }
  void add_after_step(Hook hook) { after_step_.push_back(std::move(hook)); }

 protected:
  explicit Optimizer(std::vector<Group> groups) : groups_(std::move(groups)) {}
  struct ParameterState {
    std::map<std::string, Tensor> tensors;
    std::int64_t step = 0;
  };
  // The state of a parameter, created at first use.
  ParameterState& state_of(const ParameterRef& parameter, const Tensor& tensor, const Options& options);
  virtual void create_state(const Tensor& parameter, ParameterState& state, const Options& options) = 0;
  // One step over a group: parameters with their gradients and states, all defined.
  struct Item {
    Tensor parameter;
    Tensor grad;
    ParameterState* state;
  };
  virtual void update(const std::vector<Item>& items, const Options& options) = 0;

  std::vector<Group> groups_;
  std::map<std::string, ParameterState> states_;
  std::vector<Hook> before_step_, after_step_;
};

// A group of a module's parameters, looked up in their slots at each step.
Group group_of(const std::vector<nn::NamedParameter>& parameters, const Options& options);

// SGD, Adam or AdamW; throws Error for an unknown type, an empty group, options out of range.
std::unique_ptr<Optimizer> make_optimizer(std::string_view type, std::vector<Group> groups);

}  // namespace lockstep::optim
