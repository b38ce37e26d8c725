// For tests: a model as plain data, and the events of a forward and a backward through a chain of modules.
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
    update();
    return id;
  }
  TensorId parameter(ModuleId of, Dims sizes, DType dtype = DType::float32, bool requires_grad = true) {
    const TensorId id = next_tensor_++;
    facts_.tensors[id] = {sizes, dtype, requires_grad, 0};
    facts_.modules[of].parameters.push_back({str("p", id), id});
    update();
    return id;
  }
  void share(ModuleId of, TensorId parameter) {
    facts_.modules[of].parameters.push_back({"shared", parameter});
    update();
  }
  void buffer(ModuleId of, Dims sizes) {
    const TensorId id = next_tensor_++;
    facts_.tensors[id] = {sizes, DType::float32, false, 0};
    facts_.modules[of].buffers.push_back({"b", id});
    update();
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
  // Passes changed facts to the planner.
  void update() { planner_.update_facts(facts_); }
  // An optimizer step: all values change.
  void step() {
    for (auto& [id, tensor] : facts_.tensors) tensor.version += 1;
    update();
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
  // Inputs of the root need no gradient, and those of the first module only with `first_needs_gradient`.
  void backward(ModuleId root, const std::vector<ModuleId>& chain, bool first_needs_gradient = false) {
    planner_.at({"backward", 2, 0});
    planner_.backward_reaches(root);
    for (auto module = chain.rbegin(); module != chain.rend(); ++module) {
      if (*module != root && watched_outputs_.contains(*module)) planner_.backward_reaches(*module);
      report_gradients(*module);
      const bool first = module + 1 == chain.rend();
      if (*module != root && watched_inputs_.contains(*module) && (!first || first_needs_gradient))
        planner_.backward_leaves(*module);
    }
    for (const NamedTensor& parameter : facts_.module(root).parameters) report_gradient(parameter.id);
    planner_.end_backward();
  }
  void report_gradients(ModuleId module) {
    for (const ModuleId id : facts_.post_order(module))
      for (const NamedTensor& parameter : facts_.module(id).parameters) report_gradient(parameter.id);
  }
  void report_gradient(TensorId id) {
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
  std::set<ModuleId> watched_inputs_, watched_outputs_;  // of the last forward
  ModuleId next_module_ = 0;
  TensorId next_tensor_ = 0;
};

inline ShardChoices shard_over(int num_ranks, Reshard reshard = {}) {
  ShardChoices choices;
  choices.shard = {"shard", num_ranks};
  choices.reshard_after_forward = reshard;
  return choices;
}

// A chain of linears, each a group with the name a, b, c, ..., and the root group with one parameter.
struct Chain {
  Planner planner;
  Model model{planner};
  std::vector<ModuleId> blocks;
  ModuleId root = 0;
  Chain(int num_blocks, ShardChoices choices) {
    for (int i = 0; i < num_blocks; ++i) blocks.push_back(model.linear(8, 8));
    root = model.module(blocks);
    model.parameter(root, {8});
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      choices.owner = std::string(1, static_cast<char>('a' + i));
      planner.fully_shard({blocks[i]}, choices);
    }
    choices.owner = "root";
    planner.fully_shard({root}, choices);
  }
  ModuleId block(char name) const { return blocks[static_cast<std::size_t>(name - 'a')]; }
  void forward(bool recording = true) { model.forward(root, blocks, recording); }
  void backward(bool first_needs_gradient = false) { model.backward(root, blocks, first_needs_gradient); }
};

// The collectives of the data-parallel layer in one phase, from an index on: "gather b", "scatter b", "sum b".
inline std::vector<std::string> sequence_of(const Planner& planner, const std::string& phase, std::size_t from = 0) {
  std::vector<std::string> all;
  for (std::size_t i = from; i < planner.collectives().size(); ++i) {
    const Collective& collective = planner.collectives()[i];
    if (collective.phase != phase || collective.family != "data_parallel") continue;
    const std::string& operation = collective.operation;
    const char* word = operation == "all_gather" ? "gather" : operation == "all_reduce" ? "sum" : "scatter";
    all.push_back(str(word, " ", collective.owner));
  }
  return all;
}

inline std::int64_t count(const Planner& planner, const std::string& operation, const std::string& phase = "") {
  return std::count_if(planner.collectives().begin(), planner.collectives().end(), [&](const Collective& collective) {
    return collective.operation == operation && (phase.empty() || collective.phase == phase);
  });
}
inline std::int64_t bytes(const Planner& planner, const std::string& operation, const std::string& phase = "") {
  std::int64_t sum = 0;
  for (const Collective& collective : planner.collectives())
    if (collective.operation == operation && (phase.empty() || collective.phase == phase)) sum += collective.bytes;
  return sum;
}

}  // namespace lockstep::plan::testing
