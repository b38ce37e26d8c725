// State dicts of modules: every parameter and persistent buffer under its path, in registration order.
#include <map>
#include <set>

#include "engine/autograd/autograd.hpp"
#include "engine/layout/placement.hpp"
#include "engine/nn/module.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::nn {

namespace {

// A slot of the tree that a state dict has an entry for.
struct Entry {
  std::string path;
  Tensor* slot;
  ParameterSlot* parameter;  // null for a buffer
};

void collect(const ModulePtr& module, const std::string& prefix, std::vector<Entry>& found) {
  for (ParameterSlot& slot : module->parameters)
    if (slot.tensor.defined()) found.push_back({prefix + slot.name, &slot.tensor, &slot});
  for (BufferSlot& slot : module->buffers)
    if (slot.persistent && slot.tensor.defined()) found.push_back({prefix + slot.name, &slot.tensor, nullptr});
  for (const ChildSlot& child : module->children) collect(child.module, prefix + child.name + ".", found);
}

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += str(text.empty() ? "" : ", ", name);
  return text;
}

// The sizes of a sharded tensor are those of its local shard, so the layouts are compared, too.
bool have_same_layout(const Tensor& a, const Tensor& b) {
  const auto &left = a.layout(), &right = b.layout();
  return left && right ? *left == *right : left == right;
}
std::string layout_text(const Tensor& tensor) {
  return tensor.is_sharded() ? tensor.layout()->text() : str("plain ", to_text(tensor.sizes()));
}

// Puts a detached alias of `value` into the slot. It requires a gradient if the old tensor did.
void assign_to(const Entry& entry, const Tensor& value) {
  const Tensor& old = *entry.slot;
  Tensor made = detach(value);
  made.set_name(old.name());
  if (entry.parameter && requires_grad(old)) set_requires_grad(made, true);
  *entry.slot = made;
  if (entry.parameter && entry.parameter->sharded.defined()) entry.parameter->sharded = made;
}

}  // namespace

StateDict state_dict(const ModulePtr& root) {
  settle(root);
  std::vector<Entry> entries;
  collect(root, "", entries);
  StateDict state;
  for (const Entry& entry : entries) state.emplace_back(entry.path, detach(*entry.slot));
  return state;
}

LoadReport load_state_dict(const ModulePtr& root, const StateDict& state, bool strict, bool assign) {
  settle(root);
  std::vector<Entry> entries;
  collect(root, "", entries);
  std::map<std::string, const Tensor*> given;
  for (const auto& [name, tensor] : state) given[name] = &tensor;

  LoadReport report;
  std::vector<std::string> wrong_sizes, wrong_layouts;
  std::set<std::string> known;
  for (const Entry& entry : entries) {
    known.insert(entry.path);
    const auto found = given.find(entry.path);
    if (found == given.end())
      report.missing.push_back(entry.path);
    else if (!have_same_layout(*found->second, *entry.slot))
      wrong_layouts.push_back(
          str(entry.path, " (", layout_text(*found->second), " into ", layout_text(*entry.slot), ")"));
    else if (found->second->sizes() != entry.slot->sizes())
      wrong_sizes.push_back(
          str(entry.path, " (", to_text(found->second->sizes()), " into ", to_text(entry.slot->sizes()), ")"));
  }
  for (const auto& [name, tensor] : state)
    if (!known.contains(name)) report.unexpected.push_back(name);

  std::string problems;
  if (strict && !report.missing.empty()) problems += str("; Missing key(s) in state_dict: ", listed(report.missing));
  if (strict && !report.unexpected.empty())
    problems += str("; Unexpected key(s) in state_dict: ", listed(report.unexpected));
  if (!wrong_sizes.empty()) problems += str("; size mismatch for ", listed(wrong_sizes));
  if (!wrong_layouts.empty()) problems += str("; layouts differ: ", listed(wrong_layouts));
  if (!problems.empty())
    throw Error(str("load_state_dict into ", root->type(), problems),
                "load the state dict of the same module, or load with strict = false");

  const NoGrad no_grad;
  for (const Entry& entry : entries) {
    const auto found = given.find(entry.path);
    if (found == given.end()) continue;
    if (assign)
      assign_to(entry, *found->second);
    else
      raw::copy_(*entry.slot, *found->second);
  }
  return report;
}

}  // namespace lockstep::nn
