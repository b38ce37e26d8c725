// The state of a training run as one tree: tensors with their layouts and plain values, by key. Checkpoints, full state
// dicts and their loads all work on this tree.
//
//   State state;
//   state.push_back({"model", model});
//   state.push_back({"optimizer", optimizer.get()});
//   state.push_back({"step", PlainValue{"100"}});
//   for (const TreeTensor& entry : tree_of(state).tensors) entry.key;   // "model.fc1.weight"
//
// The keys of a part NAME:
//   module            NAME.PATH of each parameter and persistent buffer
//   optimizer         NAME.state.PARAMETER.KEY of each state tensor; values NAME.state.PARAMETER.step,
//                     NAME.groups.I (parameter names and hyperparameters), NAME.type
//   gradient scaler   value NAME.scaler
//   tensor            NAME
//   plain value       value NAME
//   random state      value NAME.rank-R of each rank R
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "engine/core/random.hpp"
#include "engine/nn/module.hpp"
#include "engine/optim/grad_scaler.hpp"
#include "engine/optim/optimizer.hpp"
#include "engine/parallel/flat_held_state.hpp"
#include "engine/state/box.hpp"
#include "engine/tensor/tensor.hpp"

namespace lockstep::state {

// Any value that is equal on all ranks, as JSON text.
struct PlainValue {
  std::string json;
};
// The generator of the current rank.
struct RandomState {};

struct Part {
  std::string name;
  std::variant<nn::ModulePtr, optim::Optimizer*, optim::GradScaler*, Tensor, PlainValue, RandomState> object;
};
using State = std::vector<Part>;

struct TreeTensor {
  std::string key;
  Tensor tensor;  // shares its storage with the module or optimizer; sharded if it has a layout
  std::optional<parallel::FlatStretch> stretch{};  // of a parameter of which the tensor holds consecutive elements
};
struct TreeValue {
  std::string key;
  std::string json;
};
struct Tree {
  std::vector<TreeTensor> tensors;
  std::vector<TreeValue> values;
  std::vector<std::pair<Tensor, Tensor>> copies;  // buffers, and the tensors of the tree that are copies of them
};
// The sizes of the full tensor.
const Dims& full_sizes(const TreeTensor& entry);

// The boxes of the full tensor that this rank holds, and the tensors that hold them: a local shard with all its boxes,
// or one view per box of a stretch.
struct HeldPart {
  Tensor local;
  std::vector<HeldBox> boxes;
};
std::vector<HeldPart> held_parts(const TreeTensor& entry);

// The tree of a state, in the order of its parts. Settles modules (nn::settle). Throws Error for a key that occurs
// twice.
Tree tree_of(const State& state);

// Throws Error with the key if each rank holds a summand of the tensor's values: they have no place in a checkpoint.
void check_not_partial(const TreeTensor& entry);

// The keys of an optimizer's tensors and step counts: "PREFIX.state.PARAMETER.KEY".
std::string optimizer_key(const std::string& prefix, const std::string& parameter, const std::string& key);
// The state of a random generator as a JSON text, and back. Throws Error for any other text.
std::string random_state_text(const Generator::State& state);
Generator::State random_state_from_text(const std::string& json);

}  // namespace lockstep::state
