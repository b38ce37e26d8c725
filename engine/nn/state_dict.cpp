// State dicts of modules: every parameter and persistent buffer under its path, in registration order.
#include <map>
#include <set>

#include "engine/autograd/autograd.hpp"
#include "engine/layout/placement.hpp"
#include "engine/mesh/sharded.hpp"
#include "engine/nn/state_slots.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::nn {

namespace {

void collect(const ModulePtr& module, const std::string& prefix, std::vector<StateSlot>& found) {
  for (std::size_t i = 0; i < module->parameters.size(); ++i)
    if (module->parameters[i].tensor.defined())
      found.push_back({prefix + module->parameters[i].name, module, i, false});
  for (std::size_t i = 0; i < module->buffers.size(); ++i)
    if (const BufferSlot& slot = module->buffers[i]; slot.persistent && slot.tensor.defined())
      found.push_back({prefix + slot.name, module, i, true});
  for (const ChildSlot& child : module->children) collect(child.module, prefix + child.name + ".", found);
}

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += str(text.empty() ? "" : ", ", name);
  return text;
}

bool are_same(const LayoutPtr& a, const LayoutPtr& b) { return a && b ? *a == *b : a == b; }
std::string layout_text(const Dims& sizes, const LayoutPtr& layout) {
  return layout ? layout->text() : str("plain ", to_text(sizes));
}

// Puts a detached alias of `value` into the slot. It requires a gradient if the old tensor did.
void assign_to(const StateSlot& slot, const Tensor& value) {
  const Tensor& old = slot.tensor();
  Tensor made = detach(value);
  made.set_name(old.name());
  if (!slot.is_buffer && requires_grad(old)) set_requires_grad(made, true);
  slot.tensor() = made;
  if (slot.is_buffer) return;
  if (ParameterSlot& parameter = slot.owner->parameters[slot.index]; parameter.sharded.defined())
    parameter.sharded = made;
}

}  // namespace

std::vector<StateSlot> state_slots(const ModulePtr& root) {
  std::vector<StateSlot> slots;
  collect(root, "", slots);
  return slots;
}

StateDict state_dict(const ModulePtr& root) {
  settle(root);
  StateDict state;
  for (const StateSlot& slot : state_slots(root)) state.emplace_back(slot.path, detach(slot.tensor()));
  return state;
}

LoadReport check_state_dict(const std::string& into, const std::vector<StateTarget>& targets, const StateDict& state,
                            bool strict) {
  std::map<std::string, const Tensor*> given;
  for (const auto& [name, tensor] : state) given[name] = &tensor;

  LoadReport report;
  std::vector<std::string> wrong_sizes, wrong_layouts, without_values, wrong_types;
  std::set<std::string> known;
  for (const StateTarget& target : targets) {
    known.insert(target.path);
    const auto found = given.find(target.path);
    if (found == given.end()) {
      report.missing.push_back(target.path);
      continue;
    }
    const Dims& sizes = global_sizes(*found->second);
    if (!are_same(found->second->layout(), target.layout))
      wrong_layouts.push_back(str(target.path, " (", layout_text(sizes, found->second->layout()), " into ",
                                  layout_text(target.sizes, target.layout), ")"));
    else if (sizes != target.sizes)
      wrong_sizes.push_back(str(target.path, " (", to_text(sizes), " into ", to_text(target.sizes), ")"));
    else if (target.takes_values && found->second->is_meta())
      without_values.push_back(target.path);
    else if (target.takes_gradients && !is_floating(found->second->dtype()))
      wrong_types.push_back(str(target.path, " (", name_of(found->second->dtype()), ")"));
  }
  for (const auto& [name, tensor] : state)
    if (!known.contains(name)) report.unexpected.push_back(name);

  std::string problems;
  if (strict && !report.missing.empty()) problems += str("; Missing key(s) in state_dict: ", listed(report.missing));
  if (strict && !report.unexpected.empty())
    problems += str("; Unexpected key(s) in state_dict: ", listed(report.unexpected));
  if (!wrong_sizes.empty()) problems += str("; size mismatch for ", listed(wrong_sizes));
  if (!wrong_layouts.empty()) problems += str("; layouts differ: ", listed(wrong_layouts));
  if (!without_values.empty()) problems += str("; on meta, without values: ", listed(without_values));
  if (!wrong_types.empty()) problems += str("; no floating-point type of a trained parameter: ", listed(wrong_types));
  if (!problems.empty())
    throw Error(str("load_state_dict into ", into, problems),
                "load the state dict of the same module, or load with strict = false");
  return report;
}

LoadReport load_state_dict(const ModulePtr& root, const StateDict& state, bool strict, bool assign) {
  settle(root);
  const std::vector<StateSlot> slots = state_slots(root);
  std::vector<StateTarget> targets;
  targets.reserve(slots.size());
  for (const StateSlot& slot : slots) {
    const Tensor& own = slot.tensor();
    targets.push_back({slot.path, global_sizes(own), own.layout(), !assign && !own.is_meta(),
                       assign && !slot.is_buffer && requires_grad(own)});
  }
  LoadReport report = check_state_dict(root->type(), targets, state, strict);

  std::map<std::string, const Tensor*> given;
  for (const auto& [name, tensor] : state) given[name] = &tensor;
  const NoGrad no_grad;
  for (const StateSlot& slot : slots) {
    const auto found = given.find(slot.path);
    if (found == given.end()) continue;
    if (assign)
      assign_to(slot, *found->second);
    else
      raw::copy_(slot.tensor(), *found->second);
  }
  return report;
}

}  // namespace lockstep::nn
