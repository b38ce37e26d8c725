// Optimizers over parameter groups.
//
// A step updates all tensors of a group in one pass. It has the bits of an update per tensor and of PyTorch's CPU
// formulas. State is keyed by parameter name. Parameters without a gradient do not change. Sharded parameters are
// updated locally, without communication.
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

#include "engine/core/rank_context.hpp"
#include "engine/nn/module.hpp"
#include "engine/tensor/tensor.hpp"

namespace lockstep::optim {

class Optimizer;
// A service of the rank: called after the step of any optimizer.
struct StepObserver {
  explicit StepObserver(RankContext&) {}
  std::function<void(Optimizer&)> stepped{};
};

struct Options {
  double lr = 1e-3;
  double momentum = 0.0;                          // SGD
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;  // Adam, AdamW
  double weight_decay = 0.0;                      // AdamW scales the parameter; the others change the gradient
  bool fused = false;                             // accepted for compatibility; it does not change the bits
};

// A parameter of an optimizer. `get` is called in each step, because a parallel API may exchange the tensor in the
// slot.
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
  virtual std::string_view type() const = 0;  // "SGD", "Adam" or "AdamW"
  void step();                                // throws Error for a partial parameter
  void zero_grad(bool set_to_none = true);
  void init_state();  // creates the state of all parameters without a step
  std::vector<Group>& groups() { return groups_; }
  // All state tensors by "name/key" ("0.weight/exp_avg"), in order of the parameters.
  std::vector<std::pair<std::string, Tensor>> state_tensors() const;
  struct StateDict {
    std::vector<std::pair<std::string, std::map<std::string, Tensor>>> state;  // by parameter name
    std::vector<std::pair<std::vector<std::string>, Options>> groups;
  };
  StateDict state_dict() const;  // shares the state tensors
  // Copies the state and options in. Throws Error if groups, parameter names, keys, sizes or layouts differ.
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
  // The state of a parameter, created at the first use.
  ParameterState& state_of(const ParameterRef& parameter, const Tensor& tensor, const Options& options);
  virtual void create_state(const Tensor& parameter, ParameterState& state, const Options& options) = 0;
  // A parameter with its gradient and state, all defined.
  struct Item {
    Tensor parameter;
    Tensor grad;
    ParameterState* state;
  };
  // Updates the parameters of a group.
  virtual void update(const std::vector<Item>& items, const Options& options) = 0;

  std::vector<Group> groups_;
  std::map<std::string, ParameterState> states_;
  std::vector<Hook> before_step_, after_step_;
};

// A group of a module's parameters. Each step reads the trained tensors from their slots.
Group group_of(const std::vector<nn::NamedParameter>& parameters, const Options& options);

// Creates SGD, Adam or AdamW. A group may be empty, but not all of them. Throws Error for an unknown type, no
// parameter, a repeated parameter name, and options out of range.
std::unique_ptr<Optimizer> make_optimizer(std::string_view type, std::vector<Group> groups);

}  // namespace lockstep::optim
