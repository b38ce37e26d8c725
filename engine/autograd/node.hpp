// The data structures of the tape: nodes, edges, saved tensors, the autograd state of a tensor and of a rank. Only the
// files of this folder include it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/autograd/autograd.hpp"
#include "engine/autograd/grad_of_peers.hpp"
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
// `line`: of the scenario, in which the operation was recorded; 0: unknown.
Tensor unpack_saved(const SavedTensor& saved, const char* operation, int number, int line = 0);

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

  // Computes the gradients of the inputs from those of the outputs and checks their sizes, types and layouts. A hook
  // may free the node meanwhile: then it can read no further saved tensor.
  Gradients run(Gradients& grads);
  Tensor unpack(int saved) const;
  void free_saved();
  // Throws Error if the saved tensors were freed.
  void require_kept() const;

  std::vector<Edge> edges;     // one per input
  std::span<const int> order;  // in which gradients are delivered to the edges; empty: as listed
  std::vector<TensorInfo> inputs;
  std::vector<TensorInfo> outputs;
  std::vector<SavedTensor> saved;
  std::vector<NodeHook> hooks;
  BackwardFunction function;
  comm::AttributionPtr attribution;  // of the collectives of forward; backward issues its own with it
  bool takes_unreduced = false;      // whether the derivative accepts unreduced gradients
  int line = 0;                      // of the scenario, in which it was recorded; for messages
  NodePtr changed;                   // for the history of a base: the operation that changed a view of it in place
  // Set for an identity that forwards each gradient as it arrives; called when all have arrived.
  std::function<void()> on_arrival;
  bool passes_gradients_on() const { return on_arrival && hooks.empty(); }

 private:
  const char* name_;
  std::uint64_t sequence_;
  bool freed_ = false;
  int runs_ = 0;  // of the derivative that have begun and not ended
};

// How a view came about. Only a recorded one may be changed in place while recording.
enum class ViewOrigin {
  recorded,           // by an operation with one result, with gradients on
  without_recording,  // with gradients off
  one_of_several,     // by an operation with several results
  of_other_layout,    // a sharded tensor over the memory of another tensor, or a local shard
  input_with_hooks,   // an input of a module whose backward hooks watch it
  output_with_hooks,  // an output of such a module that other tensors show
};
// A tensor over the memory of another one, its base. The base is no view itself. A recorded change in place of one of
// them belongs to the history of both (view_history.cpp).
struct ViewOf {
  Tensor base;
  ViewOrigin origin = ViewOrigin::recorded;
  std::uint64_t base_history = 0;  // history_of(base) that the history of the view stands for
};

// The state of a tensor that requires a gradient, has one, is the result of a recorded operation, or is a view.
struct GradState : AutogradMeta {
  bool requires_grad = false;  // leaf
  NodePtr node;                // result of a recorded operation: its node and output
  int output = 0;
  std::unique_ptr<ViewOf> view;
  Tensor grad;
  bool has_grad_of_peers = false;  // leaf without elements: grad_of_peers.hpp
  KeptBack kept_back;              // leaf: gradients that wait for synchronization (grad_of_peers.hpp)
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
// The number of the node that made the tensor; 0: none.
inline std::uint64_t history_of(const Tensor& tensor) {
  const GradState* state = grad_state(tensor);
  return state && state->node ? state->node->sequence() : 0;
}
inline bool is_stale(const GradState& state) {
  return state.view && state.view->base_history != history_of(state.view->base);
}
inline bool needs_gradient(const Tensor& tensor) {
  const GradState* state = tensor.defined() ? grad_state(tensor) : nullptr;
  return state && (state->requires_grad || state->node || is_stale(*state));
}
// ---- views (view_history.cpp) ----
// Makes `result` a view of the base of `of`, or of `of` itself. Nothing if both are one tensor.
void note_view(const Tensor& result, const Tensor& of, ViewOrigin origin);
// If the base has changed in place since, the view gets a new node: a selection from the new base. Throws Error for a
// view that is not a recorded one.
void renew_history(const Tensor& tensor, GradState& state);
// Throws Error if a recorded operation may not change the tensor in place: a leaf that requires a gradient, a view of
// one, or a view that is not a recorded one. Nothing when neither `inputs` nor the base of a view record. Renews the
// histories of `inputs`, so that an error of renew_history() comes before the tensor is written.
void require_changeable(const char* operation, const Tensor& tensor, const std::vector<Tensor>& inputs);
// Makes the tensor the result of `node`, which changed it in place. `inputs`: those of the node, the tensor first.
void attach_in_place(const Tensor& tensor, const NodePtr& node, const std::vector<Tensor>& inputs);
NodePtr make_node(const char* name, const std::vector<Tensor>& inputs, BackwardFunction function);
void attach(const Tensor& result, const NodePtr& node, int output);
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

// A change in place by a differentiable operation, for messages.
struct InPlaceChange {
  std::weak_ptr<Storage> storage;
  std::uint64_t version = 0;  // after it
  const char* operation = "";
  int line = 0;
};

// The autograd state of a rank.
struct AutogradRank {
  explicit AutogradRank(RankContext&) {}
  bool enabled = true;
  std::uint64_t next_sequence = 1;
  HookId next_hook = 1;
  std::vector<std::shared_ptr<const SavedTensorHooks>> saved_hooks;
  const WatchedOperations* watched = nullptr;  // by the innermost OperationWatch
  std::array<InPlaceChange, 32> changes;       // the latest ones, in turns
  std::size_t num_changes = 0;
  const char* saving = "";                            // the operation whose tensors the hooks are packing
  int recomputations = 0;                             // nesting depth of recomputations
  std::vector<ComputationLayer*> computation_layers;  // innermost last (computed.hpp)
  std::uint64_t next_backward = 1;
  std::vector<RunningBackward*> running;  // innermost last
};
inline AutogradRank& autograd_rank() { return RankContext::current().service<AutogradRank>(); }

}  // namespace lockstep
