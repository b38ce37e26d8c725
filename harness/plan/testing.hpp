// For tests: a model as plain values, and the events of a forward and a backward through a chain of modules.
#pragma once

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "engine/core/text.hpp"
#include "harness/plan/planner.hpp"

namespace lockstep::plan::testing {

class Model {
 public:
  explicit Model(Planner& planner) : planner_(planner) {}

  ModuleId module(const std::vector<ModuleId>& children = {}) {
    const ModuleId id = next_module_++;
    facts_.modules[id].children = children;
    planner_.know(facts_);
    return id;
  }
  TensorId parameter(ModuleId of, Dims sizes, DType dtype = DType::float32, bool requires_grad = true) {
    const TensorId id = next_tensor_++;
    facts_.tensors[id] = {sizes, dtype, requires_grad, 0};
    facts_.modules[of].parameters.push_back({str("p", id), id});
    planner_.know(facts_);
    return id;
  }
  void share(ModuleId of, TensorId parameter) {
    facts_.modules[of].parameters.push_back({"shared", parameter});
    planner_.know(facts_);
  }
  void buffer(ModuleId of, Dims sizes) {
    const TensorId id = next_tensor_++;
    facts_.tensors[id] = {sizes, DType::float32, false, 0};
    facts_.modules[of].buffers.push_back({"b", id});
    planner_.know(facts_);
  }
  ModuleId linear(std::int64_t in, std::int64_t out) {
    const ModuleId id = module();
    parameter(id, {out, in});
    parameter(id, {out});
    return id;
  }
  ModuleId mlp(std::int64_t width) {
    const ModuleId in = linear(width, 4 * width), out = linear(4 * width, width);
    return module({in, out});
  }
  Facts& facts() { return facts_; }
  void tell() { planner_.know(facts_); }
  // As an optimizer does: all values are other ones.
  void step() {
    for (auto& [id, tensor] : facts_.tensors) tensor.version += 1;
    tell();
  }

  // ---- events ----
  void forward(ModuleId root, const std::vector<ModuleId>& chain, bool recording = true) {
    planner_.at({"forward", 1, 0});
    enter(root, recording);
    for (const ModuleId module : chain) {
      if (module == root) continue;
      enter(module, recording);
      leave(module, recording);
    }
    leave(root, recording);
  }
  // Of a chain on data: the inputs of its first module, and of the root, need no gradient.
  void backward(ModuleId root, const std::vector<ModuleId>& chain, bool first_needs_gradient = false) {
    planner_.at({"backward", 2, 0});
    planner_.backward_reaches(root);
    for (auto module = chain.rbegin(); module != chain.rend(); ++module) {
      if (*module != root && watched_outputs_.count(*module) > 0) planner_.backward_reaches(*module);
      give_gradients(*module);
      const bool first = module + 1 == chain.rend();
      if (*module != root && watched_inputs_.count(*module) > 0 && (!first || first_needs_gradient))
        planner_.backward_leaves(*module);
    }
    for (const NamedTensor& parameter : facts_.module(root).parameters) give_gradient(parameter.id);
    planner_.end_backward();
  }
  void give_gradients(ModuleId module) {
    for (const ModuleId id : facts_.post_order(module))
      for (const NamedTensor& parameter : facts_.module(id).parameters) give_gradient(parameter.id);
  }
  void give_gradient(TensorId id) {
    if (facts_.tensor(id).requires_grad) planner_.gradient(id);
  }

 private:
  void enter(ModuleId module, bool recording) {
    if (planner_.enter(module, {recording, false}))
      watched_inputs_.insert(module);
    else
      watched_inputs_.erase(module);
  }
  void leave(ModuleId module, bool recording) {
    if (planner_.leave(module, {recording, false}))
      watched_outputs_.insert(module);
    else
      watched_outputs_.erase(module);
  }
  Planner& planner_;
  Facts facts_;
  std::set<ModuleId> watched_inputs_, watched_outputs_;  // by the last forward
  ModuleId next_module_ = 0;
  TensorId next_tensor_ = 0;
};

inline std::int64_t count(const Planner& planner, const std::string& operation, const std::string& phase = "") {
  return std::count_if(planner.collectives().begin(), planner.collectives().end(), [&](const Collective& one) {
    return one.operation == operation && (phase.empty() || one.phase == phase);
  });
}
inline std::int64_t bytes(const Planner& planner, const std::string& operation, const std::string& phase = "") {
  std::int64_t sum = 0;
  for (const Collective& one : planner.collectives())
    if (one.operation == operation && (phase.empty() || one.phase == phase)) sum += one.bytes;
  return sum;
}

}  // namespace lockstep::plan::testing
