// Activation checkpointing. A checkpointed region of the forward keeps no saved tensors. The first time backward reads
// one of them, the region is recomputed, which fills in all of them.
//
// The checkpoint is non-reentrant: it uses hooks on saved tensors. Backward runs over the graph of the first forward,
// so gradients, hooks and accumulators are those of the plain forward, bit for bit, and inputs need no gradient. The
// inputs of the region are saved (by an outer region through its hooks, so reading them recomputes that region).
// Everything else that the function reads, such as parameters, it reads again.
//
// The recomputation runs inside the backward with gradients on, and stops after the last tensor that is still needed.
// It draws the random numbers of the forward and restores the generator afterwards. Recomputed tensors that a backward
// did not read are dropped at its end, also after an exception. Side effects happen twice: the running statistics of a
// batch norm are updated twice, as with PyTorch's checkpoint, whose semantics this follows.
//
// A selective checkpoint keeps the results of operations that its policy names, and does not compute them again. After
// torch.utils.checkpoint.create_selective_checkpoint_contexts; the policy is asked in the first forward only.
//
//   Tensor h = checkpoint([block](const std::vector<Tensor>& in) { return block->call(in[0]).tensor(); }, {x});
//
// The function, with everything it captures by value, lives as long as the graph. Like the tape, regions belong to one
// rank.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "engine/autograd/autograd.hpp"

namespace lockstep {

enum class DeterminismCheck {
  metadata,  // compares number, sizes, types and devices of the saved tensors with those of the forward
  none       // compares only their number
};

enum class SavePolicy { must_save, prefer_recompute };
// For one call of an operation within the region; `call` counts the calls of that operation from 0.
using SavePolicyFunction = std::function<SavePolicy(std::string_view operation, std::int64_t call)>;
struct SavedOperation {
  std::string name;
  std::int64_t every = 1;  // the first of every so many calls is saved
};
// The policy that saves these operations. Throws Error for a name that is not among saveable_operations().
SavePolicyFunction save_operations(std::vector<SavedOperation> operations);
// The differentiable operations without views and in-place operations, and `redistribute`: the collectives that change
// the placements of sharded tensors. An operation that is composed of others (batch_norm) is saved by their names.
std::vector<std::string> saveable_operations();

struct CheckpointOptions {
  bool preserve_random_state = true;  // the recomputation draws the random numbers of the forward
  DeterminismCheck determinism = DeterminismCheck::metadata;
  std::string name{};                          // for messages
  std::function<void()> before_recomputing{};  // runs at the start of each recomputation
  SavePolicyFunction policy{};                 // of a selective checkpoint; empty: everything is recomputed
};

// Runs `first` without keeping saved tensors. Backward calls `again` when it needs them, with the inputs of the region:
// aliases without history that require a gradient where the given ones did. Both functions must do the same operations.
// With gradients off only `first` runs. Backward throws Error when `again` saves fewer tensors than are needed or, with
// DeterminismCheck::metadata, tensors of other sizes, types or devices.
void run_checkpointed(const std::function<void()>& first, std::function<void(const std::vector<Tensor>&)> again,
                      const std::vector<Tensor>& inputs, const CheckpointOptions& options);

// Returns function(inputs), which may be of any type. Backward calls the function again.
template <class Function>
auto checkpoint(Function function, const std::vector<Tensor>& inputs, const CheckpointOptions& options = {}) {
  using Result = std::invoke_result_t<Function&, const std::vector<Tensor>&>;
  std::optional<Result> result;
  run_checkpointed([&] { result.emplace(function(inputs)); },
                   [function](const std::vector<Tensor>& given) mutable { (void)function(given); }, inputs, options);
  return std::move(*result);
}

// Whether a recomputation runs on this rank, and the nesting depth of recomputations.
bool recomputing();
int recomputation_depth();

}  // namespace lockstep
