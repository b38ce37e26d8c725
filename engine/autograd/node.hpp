// The data structures of the tape: nodes, edges, saved tensors, the autograd state of a tensor and of a rank. Only the
// files of this folder include it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/autograd/autograd.hpp"
#include "engine/comm/attribution.hpp"
#include "engine/core/rank_context.hpp"

namespace lockstep {

// The target of a gradient: an output of a node, a leaf, or none.
struct Edge {
  NodePtr node;
  int output = 0;
  std::shared_ptr<TensorImpl> leaf;
  bool needed() const { return node != nullptr || leaf != nullptr; }
};

// Describes a tensor and its gradient.
struct TensorInfo {
  Dims sizes;
  DType dtype = DType::float32;
  device::Device device;
  LayoutPtr layout;  // of the gradient; null for plain tensors
};

// A tensor that backward reads: an alias with the version at saving, or the packed form and the hooks that made it.
struct SavedTensor {
  Tensor tensor;
  std::uint64_t version = 0;
  PackedTensor packed;
  std::shared_ptr<const SavedTensorHooks> hooks;
};
// Saves an alias without history, through the innermost hooks. `operation`: for messages.
SavedTensor save_tensor(const Tensor& tensor, const char* operation);
// Throws Error when the tensor was changed in place after it was saved. `number`: its index among the saved tensors.
Tensor unpack_saved(const SavedTensor& saved, const char* operation, int number);

using GradientHook = std::function<Tensor(const Tensor&)>;
struct NodeHook {
  HookId id = 0;
  int output = 0;
  std::shared_ptr<const GradientHook> hook;
};

class Node {
 public:
  Node(const char* name, std::uint64_t sequence) : name_(name), sequence_(sequence) {}
  ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  const char* name() const { return name_; }
  std::uint64_t sequence() const { return sequence_; }  // increases in the order of recording

  // Computes the gradients of the inputs from those of the outputs and checks their sizes, types and layouts.
  Gradients run(Gradients& grads) const;
  Tensor unpack(int saved) const;
  void free_saved();
  bool freed() const { return freed_; }

  std::vector<Edge> edges;     // one per input
  std::span<const int> order;  // in which gradients are delivered to the edges; empty: as listed
  std::vector<TensorInfo> inputs;
  std::vector<TensorInfo> outputs;
  std::vector<SavedTensor> saved;
  std::vector<NodeHook> hooks;
  BackwardFunction function;
  comm::AttributionPtr attribution;  // of the collectives of forward; backward issues its own with it
  bool takes_unreduced = false;      // whether the derivative accepts unreduced gradients
  // Set for an identity that forwards each gradient as it arrives; called when all have arrived.
  std::function<void()> on_arrival;
  bool passes_gradients_on() const { return on_arrival && hooks.empty(); }

 private:
  const char* name_;
  std::uint64_t sequence_;
  bool freed_ = false;
};

// The state of a tensor that requires a gradient, has one, or is the result of a recorded operation.
struct GradState : AutogradMeta {
  bool requires_grad = false;  // leaf
  NodePtr node;                // result of a recorded operation: its node and output
  int output = 0;
  bool is_view = false;  // a view of a recorded tensor: an in-place operation would bypass the history of the base
  Tensor grad;
  std::vector<std::pair<HookId, std::shared_ptr<const GradientHook>>> hooks;  // leaf
  std::vector<std::pair<HookId, std::shared_ptr<const std::function<void(const Tensor&)>>>> post_accumulate;
  std::shared_ptr<const std::function<void(const Tensor&, const Tensor&)>> accumulator;
  bool accepts_partial = false;  // the accumulator takes unreduced gradients
};

inline GradState* grad_state(const Tensor& tensor) {
  return static_cast<GradState*>(tensor.impl().autograd.get());  // the only subclass
}
inline GradState& make_grad_state(const Tensor& tensor) {
  auto& slot = tensor.impl().autograd;
  if (!slot) slot = std::make_unique<GradState>();
  return static_cast<GradState&>(*slot);
}
inline bool needs_gradient(const Tensor& tensor) {
  const GradState* state = tensor.defined() ? grad_state(tensor) : nullptr;
  return state && (state->requires_grad || state->node);
}
// Whether two layouts are equal; null equals null.
bool same_layout(const LayoutPtr& a, const LayoutPtr& b);
// A gradient on its way through backward may be unreduced: partial on axes where its final layout is replicated. It is
// reduced when a leaf, a hook or a derivative needs it, so that the gradients of several uses are summed first and one
// collective serves all of them. A redistribution takes it unreduced: to the gradient of a shard it needs a
// reduce-scatter only.
bool is_unreduced(const Tensor& grad);
// The gradient after its reduction; itself if it is not unreduced, or undefined. `attribution`: of the collective.
Tensor reduced_gradient(Tensor grad, const comm::AttributionPtr& attribution);
// Marks the operation that gave this result as one that takes unreduced gradients; nothing if it was not recorded.
Tensor taking_unreduced(Tensor result);
Edge edge_of(const Tensor& tensor);
TensorInfo info_of(const Tensor& tensor);
// A gradient for the described tensor, filled with `value`.
Tensor full_gradient(const TensorInfo& info, double value);

// A running backward, as the other files of this folder see it.
class RunningBackward {
 public:
  virtual ~RunningBackward() = default;
  virtual bool reaches(const TensorImpl* leaf) const = 0;
  std::uint64_t id = 0;
  std::vector<std::function<void()>> callbacks;
  std::vector<std::function<void()>> at_end;  // run last, also after an exception; must not throw
};

class ComputationLayer;
struct WatchedOperations;

// The autograd state of a rank.
struct AutogradRank {
  explicit AutogradRank(RankContext&) {}
  bool enabled = true;
  std::uint64_t next_sequence = 1;
  HookId next_hook = 1;
  std::vector<std::shared_ptr<const SavedTensorHooks>> saved_hooks;
  const WatchedOperations* watched = nullptr;         // by the innermost OperationWatch
  const char* saving = "";                            // the operation whose tensors the hooks are packing
  int recomputations = 0;                             // nesting depth of recomputations
  std::vector<ComputationLayer*> computation_layers;  // innermost last (computed.hpp)
  std::uint64_t next_backward = 1;
  std::vector<RunningBackward*> running;  // innermost last
};
inline AutogradRank& autograd_rank() { return RankContext::current().service<AutogradRank>(); }

}  // namespace lockstep
