// Inside the tape: nodes, edges, saved tensors, what autograd hangs on a tensor, and what a rank owns of it. Only the
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
#include "engine/core/rank_context.hpp"

namespace lockstep {

// Where a gradient goes next: to an output of a node, to a leaf, or nowhere.
struct Edge {
  NodePtr node;
  int output = 0;
  std::shared_ptr<TensorImpl> leaf;
  bool needed() const { return node != nullptr || leaf != nullptr; }
};

struct TensorInfo {
  Dims sizes;
  DType dtype = DType::float32;
  device::Device device;
  LayoutPtr layout;  // of its gradient; null for plain tensors
};

// A tensor kept for backward: itself with the version it had, or what the hooks made of it.
struct SavedTensor {
  Tensor tensor;
  std::uint64_t version = 0;
  PackedTensor packed;
  std::shared_ptr<const SavedTensorHooks> hooks;
};
// Through the hooks in force, as an alias without history. `operation` is for messages.
SavedTensor save_tensor(const Tensor& tensor, const char* operation);
// Throws Error when it was changed in place since; `number` counts what the operation saved.
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
  std::uint64_t sequence() const { return sequence_; }  // later recorded is larger; a node's inputs are smaller

  // Gradients of the inputs from those of the outputs, checked against the inputs' sizes and types.
  Gradients run(Gradients& grads) const;
  Tensor unpack(int saved) const;
  void free_saved();
  bool freed() const { return freed_; }

  std::vector<Edge> edges;     // one per input
  std::span<const int> order;  // in which gradients go along the edges; empty: as listed
  std::vector<TensorInfo> inputs;
  std::vector<TensorInfo> outputs;
  std::vector<SavedTensor> saved;
  std::vector<NodeHook> hooks;
  BackwardFunction function;
  // Of an identity whose gradients go on as they come: called in its turn, when all have.
  std::function<void()> passing;
  bool passes() const { return passing && hooks.empty(); }

 private:
  const char* name_;
  std::uint64_t sequence_;
  bool freed_ = false;
};

// What hangs on a tensor that asked for a gradient, or has one, or came out of a recorded operation.
struct GradState : AutogradMeta {
  bool requires_grad = false;  // of a leaf
  NodePtr node;                // of a result
  int output = 0;
  bool is_view = false;  // of a recorded tensor: an in-place operation on it could not tell the base
  Tensor grad;
  std::vector<std::pair<HookId, std::shared_ptr<const GradientHook>>> hooks;  // of a leaf
  std::vector<std::pair<HookId, std::shared_ptr<const std::function<void(const Tensor&)>>>> post_accumulate;
  std::shared_ptr<const std::function<void(const Tensor&, const Tensor&)>> accumulator;
};

inline GradState* grad_state(const Tensor& tensor) {
  return static_cast<GradState*>(tensor.impl().autograd.get());  // the only kind there is
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
// Whether two layouts are one; null: both plain.
bool same_layout(const LayoutPtr& a, const LayoutPtr& b);
Edge edge_of(const Tensor& tensor);
TensorInfo info_of(const Tensor& tensor);
// A gradient of the tensor that is described, each element `value`.
Tensor full_gradient(const TensorInfo& info, double value);

// A backward under way, as others see it.
class RunningBackward {
 public:
  virtual ~RunningBackward() = default;
  virtual bool reaches(const TensorImpl* leaf) const = 0;
  std::uint64_t id = 0;
  std::vector<std::function<void()>> callbacks;
  std::vector<std::function<void()>> at_end;  // run after all else, an exception or not; must not throw
};

// What a rank owns of autograd.
struct AutogradRank {
  explicit AutogradRank(RankContext&) {}
  bool enabled = true;
  std::uint64_t next_sequence = 1;
  HookId next_hook = 1;
  std::vector<std::shared_ptr<const SavedTensorHooks>> saved_hooks;
  const char* saving = "";  // the operation whose tensors are being saved, while hooks pack them
  int recomputations = 0;   // of activation checkpoints, one in the other
  std::uint64_t next_backward = 1;
  std::vector<RunningBackward*> running;  // innermost last
};
inline AutogradRank& autograd_rank() { return RankContext::current().service<AutogradRank>(); }

}  // namespace lockstep
