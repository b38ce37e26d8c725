// Activation checkpointing: a part of the forward keeps none of the tensors that its backward reads; the first of them
// that backward asks for makes that part run again, which fills them all in.
//
// Non-reentrant, by hooks on saved tensors: the graph of the first forward stays and is the one that backward walks, so
// that gradients, hooks and accumulators are those of the plain forward, bit for bit, and inputs need no gradient. The
// region's own inputs are kept (through the hooks of an outer region, when there is one: that region then gives them
// back by running again). Everything else that the function reads, parameters above all, it reads anew.
//
// The recomputation runs inside the backward, with gradients on, and stops after the last tensor that is still needed.
// Random numbers come as in the forward, and the generator is afterwards as it was. What a backward filled in and did
// not use is dropped at its end, also when it ends by an exception. A function with side effects has them twice: the
// running statistics of a batch norm move twice, as they do under PyTorch's checkpoint, which this follows.
//
//   Tensor h = checkpoint([block](const std::vector<Tensor>& in) { return block->call(in[0]).tensor(); }, {x});
//
// The function lives as long as the graph: what it holds by value stays in memory. A rank's own, like the tape.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "engine/autograd/autograd.hpp"

namespace lockstep {

enum class DeterminismCheck {
  metadata,  // sizes, type and device of what is recomputed must be those of the forward
  none       // only their number is looked at
};

struct CheckpointOptions {
  bool preserve_random_state = true;  // the recomputation draws the numbers of the forward
  DeterminismCheck determinism = DeterminismCheck::metadata;
  std::string name{};                          // for messages
  std::function<void()> before_recomputing{};  // runs at the start of each recomputation
};

// Runs `first` now, keeping no saved tensor; `again` is called with the region's inputs (aliases without history that
// need a gradient where the given ones did) when backward needs what was saved. Both must do the same operations. With
// gradients off it only runs `first`. Backward throws Error when fewer tensors are saved by `again` than are needed, or
// others.
void run_checkpointed(const std::function<void()>& first, std::function<void(const std::vector<Tensor>&)> again,
                      const std::vector<Tensor>& inputs, const CheckpointOptions& options);

// function(inputs), whatever it gives; it is called again with inputs in backward.
template <class Function>
auto checkpoint(Function function, const std::vector<Tensor>& inputs, const CheckpointOptions& options = {}) {
  using Result = std::invoke_result_t<Function&, const std::vector<Tensor>&>;
  std::optional<Result> result;
  run_checkpointed([&] { result.emplace(function(inputs)); },
                   [function](const std::vector<Tensor>& given) mutable { (void)function(given); }, inputs, options);
  return std::move(*result);
}

// Whether a recomputation runs on this rank, and how many of them one in the other.
bool recomputing();
int recomputation_depth();

}  // namespace lockstep
