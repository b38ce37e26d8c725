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
struct Group;
// A service of the rank: called when a step of any optimizer has updated a group, before the hooks after the step.
struct StepObserver {
  explicit StepObserver(RankContext&) {}
  std::function<void(Optimizer&, const Group&)> stepped{};
};

struct Options {
  double lr = 1e-3;
  double momentum = 0.0;                          // SGD
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;  // Adam, AdamW
  double weight_decay = 0.0;                      // AdamW scales the parameter; the others change the gradient
  bool fused = false;                             // accepted for compatibility; it does not change the bits
};

// Throws Error for options out of range. `type`: of the optimizer, for messages.
void check_options(std::string_view type, const Options& options);

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
  // Throws Error for a partial parameter, and for a state that does not fit its parameter.
  void step();
  void zero_grad(bool set_to_none = true);
  void init_state();  // creates the state of all parameters without a step
  std::vector<Group>& groups() { return groups_; }
  std::uint64_t number() const { return number_; }  // no other optimizer has it, not even after this one is gone
  // All state tensors by "name/key" ("0.weight/exp_avg"), in order of the parameters.
  std::vector<std::pair<std::string, Tensor>> state_tensors() const;
  struct StateDict {
    std::vector<std::pair<std::string, std::map<std::string, Tensor>>> state;  // by parameter name
    std::vector<std::pair<std::vector<std::string>, Options>> groups;
  };
  StateDict state_dict() const;  // shares the state tensors
  // Copies the state and options in. Parameters without an entry lose their state. Throws Error, before anything is
  // written, for other groups or parameter names, options out of range, and state that check_state() refuses or that
  // has other sizes or another layout. `missing`: keys that the state of a parameter lacks are refused, or kept. If
  // kept, tensors that the options need and tensors that are given undefined keep their values, or begin as zeros.
  // Other tensors that are not given are removed. A step count that is not given keeps its value.
  enum class Missing { refused, kept };
  void load_state_dict(const StateDict& state, Missing missing = Missing::refused);
  // The checks of load_state_dict that need no tensor of this rank. check_state() throws Error for a key that the type
  // of the optimizer does not have or that is missing, a tensor without values or of a type that is not floating-point,
  // and a step count that is not a whole number from 0.
  void check_groups(const StateDict& state) const;
  void check_state(const std::string& parameter, const std::map<std::string, Tensor>& state, const Options& options,
                   Missing missing = Missing::refused) const;
  // The tensors that the state of a parameter can have, each of the form of the parameter, and whether it needs them.
  struct StateKey {
    std::string key;
    bool is_needed = true;
  };
  virtual std::vector<StateKey> state_keys(const Options& options) const = 0;

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
  // Adds the tensors that the state needs and does not have, as zeros.
  void add_state(const Tensor& parameter, ParameterState& state, const Options& options) const;
  // Throws Error unless the tensors of the state have the sizes and the type of the parameter.
  void check_fits(const ParameterRef& parameter, const Tensor& tensor, const ParameterState& state) const;
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

 private:
  static std::uint64_t next_number();
  const std::uint64_t number_ = next_number();
};

// A group of a module's parameters. Each step reads the trained tensors from their slots.
Group group_of(const std::vector<nn::NamedParameter>& parameters, const Options& options);

// Creates SGD, Adam or AdamW. A group may be empty, but not all of them. Throws Error for an unknown type, no
// parameter, a repeated parameter name, and options out of range.
std::unique_ptr<Optimizer> make_optimizer(std::string_view type, std::vector<Group> groups);

}  // namespace lockstep::optim
