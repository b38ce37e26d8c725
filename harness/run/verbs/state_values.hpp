// State dicts as values of the language, for the run and the dry run.
#pragma once

#include <string>

#include "engine/nn/module.hpp"
#include "engine/optim/optimizer.hpp"
#include "harness/run/verbs/verbs.hpp"

namespace lockstep::run {

// The form of the tensors in a state dict: as held, sharing storage, or as copies, full tensors or on the host.
struct StateForm {
  bool full = false;
  bool cpu = false;
  bool keep = true;     // false on the other ranks with rank0_only
  device::Device host;  // the device of the copies with `cpu`
  // Collective if `full`: all ranks gather. A rank that does not keep the tensor gets an undefined tensor.
  Tensor operator()(const Tensor& tensor) const;
};
// That which the arguments of a step `state_dict` give.
StateForm state_form_of(const StepCall& call);

// {name: tensor}
Value value_of_state(const nn::StateDict& dict, const StateForm& form);
// {state: {parameter: {key: tensor}}, groups: [{parameters: [name], lr: ..., ...}]}, and back. Throws Error for a value
// of another form.
Value value_of_state(const optim::Optimizer::StateDict& dict, const StateForm& form);
optim::Optimizer::StateDict optimizer_state_of(const Value& state);

}  // namespace lockstep::run
