// The slots of a module tree that its state dict has entries for, and the check of a state dict before it is loaded.
// For APIs whose state dicts differ from what the slots hold.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "engine/nn/module.hpp"

namespace lockstep::nn {

// A parameter or a persistent buffer.
struct StateSlot {
  std::string path;
  ModulePtr owner;
  std::size_t index = 0;  // of owner->parameters or owner->buffers
  bool is_buffer = false;
  Tensor& tensor() const { return is_buffer ? owner->buffers[index].tensor : owner->parameters[index].tensor; }
};
// In registration order, also parameters that are not listed. A shared slot occurs under each of its names.
std::vector<StateSlot> state_slots(const ModulePtr& root);

// The form in which a state dict holds a tensor.
struct StateTarget {
  std::string path;
  Dims sizes;                    // of the full tensor
  LayoutPtr layout;              // null: plain
  bool takes_values = false;     // a copy of the values, into memory
  bool takes_gradients = false;  // the tensor itself, which then requires a gradient
};
// Returns the missing and the unexpected names. Throws Error, with all problems, if sizes or layouts of a tensor
// differ, if a tensor has no values or no floating-point type where its target needs them, and, with `strict`, if a
// name is missing or unexpected. `into`: the type of the module.
LoadReport check_state_dict(const std::string& into, const std::vector<StateTarget>& targets, const StateDict& state,
                            bool strict);

}  // namespace lockstep::nn
