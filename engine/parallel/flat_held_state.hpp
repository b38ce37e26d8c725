// The state of models and optimizers as this rank holds it, for checkpoints: tensors that share their storage with the
// model, those of flat-sharded units as stretches of original parameters. No communication.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/nn/module.hpp"
#include "engine/optim/optimizer.hpp"

namespace lockstep::parallel {

// Consecutive elements of a parameter, in row-major order.
struct FlatStretch {
  Dims sizes;       // of the full parameter
  LayoutPtr inner;  // of the part under tensor parallelism; null: the part is the full parameter
  Dims part;        // the sizes of the local part, of which these are elements
  std::int64_t begin = 0;
  bool has_replicas = false;  // whether other ranks may hold the same elements
  bool speaks = true;         // false if replicas of tensor parallelism have other stretches of the same elements, and
                              // another rank has them all
};

struct HeldValue {
  std::string path;
  Tensor tensor;  // 1-d for a stretch
  std::optional<FlatStretch> stretch{};
  Tensor buffer{};  // that `tensor` is a copy of, in its original type; undefined: shares its storage
};
// Settles the module. Throws Error during forward and backward, and within summon_full_parameters.
std::vector<HeldValue> held_state(const nn::ModulePtr& root);

struct HeldParameterState {
  std::string name;                  // of the original parameter
  std::vector<HeldValue> tensors{};  // by key
  std::optional<std::int64_t> step{};
};
struct HeldOptimizerState {
  std::vector<HeldParameterState> state;  // without parameters of which this rank has no element
  std::vector<std::pair<std::vector<std::string>, optim::Options>> groups;  // the names of the original parameters
};
HeldOptimizerState held_optimizer_state(optim::Optimizer& optimizer);
// The original parameters of each parameter of the optimizer; of others themselves.
std::map<std::string, std::vector<std::string>> original_names_of(optim::Optimizer& optimizer);

}  // namespace lockstep::parallel
