// The tape: nodes recorded by the differentiable operations (ops.hpp), backward over them, hooks, saved tensors.
//
// A node owns its derivative and edges to the nodes of its inputs. backward() runs the nodes in one fixed order: the
// latest recorded first; a leaf runs as soon as all its gradients have arrived. A leaf accumulates its gradient into
// grad(leaf), unless a parallel API has set an accumulator. The state of a rank (gradient mode, saved-tensor hooks, the
// running backward) is a service of its RankContext. The functions here are called on the thread of the rank.
//
// An operation is one short function that holds forward and backward:
//
//   Tensor mul(const Tensor& a, const Tensor& b) {
//     return record("mul", raw::mul(a, b), {a, b}, {a, b}, [](const Backward& at) -> Gradients {
//       return {at.needs(0) ? raw::sum_to(raw::mul(at.grad(), at.saved(1)), at.sizes(0)) : Tensor(),
//               at.needs(1) ? raw::sum_to(raw::mul(at.grad(), at.saved(0)), at.sizes(1)) : Tensor()};
//     });
//   }
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/tensor/tensor.hpp"

namespace lockstep {

class Node;
using NodePtr = std::shared_ptr<Node>;
using Gradients = std::vector<Tensor>;  // one per input; an undefined tensor means no gradient

// ---- state of a tensor ----
// Whether the tensor is a leaf with set_requires_grad, or the result of a recorded operation.
bool requires_grad(const Tensor& tensor);
// Throws Error unless the tensor is a leaf, and for `true` unless it has a floating type.
void set_requires_grad(const Tensor& tensor, bool value);
bool is_leaf(const Tensor& tensor);
Tensor grad(const Tensor& tensor);  // undefined when there is none
// An undefined value removes the gradient and the gradients that are kept back (grad_of_peers.hpp). Throws Error when
// sizes, type, device or layout differ from those of the tensor; the layout of a gradient is layout::gradient_layout of
// the layout of the tensor. `any_floating`: the type may be another floating-point one; optimizers cast the gradient.
enum class GradientType { same, any_floating };
void set_grad(const Tensor& tensor, const Tensor& value, GradientType type = GradientType::same);
Tensor detach(const Tensor& tensor);             // the same view, layout and name without gradient history
const char* grad_fn_name(const Tensor& tensor);  // "" for leaves

// ---- gradient mode ----
bool grad_enabled();
class GradMode {  // turns recording on or off within the scope
 public:
  explicit GradMode(bool enabled);
  ~GradMode();
  GradMode(const GradMode&) = delete;
  GradMode& operator=(const GradMode&) = delete;

 private:
  bool previous_;
};
struct NoGrad : GradMode {
  NoGrad() : GradMode(false) {}
};

// ---- recording ----
// The result of pack(), which unpack() gets.
using PackedTensor = std::shared_ptr<void>;
struct SavedTensorHooks {
  std::function<PackedTensor(const Tensor&)> pack;
  std::function<Tensor(const PackedTensor&)> unpack;
};
// Within the scope the hooks pack every saved tensor. Of nested scopes the innermost applies.
class SavedTensorHooksScope {
 public:
  explicit SavedTensorHooksScope(SavedTensorHooks hooks);
  ~SavedTensorHooksScope();
  SavedTensorHooksScope(const SavedTensorHooksScope&) = delete;
  SavedTensorHooksScope& operator=(const SavedTensorHooksScope&) = delete;
};

// The arguments of a derivative: gradients of the outputs, saved tensors, descriptions of the inputs.
class Backward {
 public:
  const Tensor& grad(int output = 0) const;  // the gradient of an output; zeros when none arrived
  bool has_grad(int output) const;           // whether a gradient arrived at the output
  bool needs(int input) const;               // whether the input needs a gradient
  Tensor saved(int i) const;                 // unpacked; throws Error if it was changed in place after it was saved
  const Dims& sizes(int input) const;
  DType dtype(int input) const;
  device::Device device(int input) const;

 private:
  friend class Node;
  Backward(const Node& node, Gradients& grads) : node_(node), grads_(grads) {}
  const Node& node_;
  Gradients& grads_;                      // grad() adds zeros
  mutable std::vector<Tensor> unpacked_;  // each saved tensor is unpacked at most once
};
using BackwardFunction = std::function<Gradients(const Backward&)>;

// Attaches a node to `result` if recording is on and an input requires a gradient. Returns the result, or an alias of
// it when it already has a history. `inputs`: the differentiable inputs, one gradient each. `saved`: the tensors that
// backward reads; aliases without history are kept; the result may be among them. record_many is for several results,
// of which only floating ones get a history.
//
// Gradients are delivered to the inputs in their order. `order` changes that: it lists the indices of the inputs, in
// static memory. It is for operations that PyTorch records as several nodes, where gradients arrive in another order.
Tensor record(const char* name, Tensor result, std::vector<Tensor> inputs, std::vector<Tensor> saved,
              BackwardFunction function, std::span<const int> order = {});
std::vector<Tensor> record_many(const char* name, std::vector<Tensor> results, std::vector<Tensor> inputs,
                                std::vector<Tensor> saved, BackwardFunction function);
// Whether record() would attach a node; lets an operation skip work that only backward needs.
bool recording(const std::vector<Tensor>& inputs);
// For an in-place operation that has written `tensor`: bumps its version and makes it the result of a new node. Throws
// Error when recording and the tensor is a leaf that requires a gradient or a view of a recorded tensor.
void record_in_place(const char* name, const Tensor& tensor, std::vector<Tensor> inputs, std::vector<Tensor> saved,
                     BackwardFunction function);

// ---- hooks ----
using HookId = std::int64_t;
// Runs when the gradient of `tensor` is complete and before it is used further. A defined result replaces the gradient.
// Throws Error when the tensor requires no gradient.
HookId add_hook(const Tensor& tensor, std::function<Tensor(const Tensor& grad)> hook);
// Runs after the gradient of a leaf has been accumulated in a backward.
HookId add_post_accumulate_hook(const Tensor& leaf, std::function<void(const Tensor& leaf)> hook);
void remove_hook(const Tensor& tensor, HookId id);
// Replaces the accumulation into grad(leaf); an empty function restores it. The accumulator gets the gradient and is
// responsible for calling run_post_accumulate_hooks. With `accepts_partial` it may get a gradient that is a partial sum
// on axes where the leaf is replicated, unless the leaf has hooks; otherwise backward reduces it. A leaf that has been
// frozen since the forward gets its gradient through an accumulator only.
void set_accumulator(const Tensor& leaf, std::function<void(const Tensor& leaf, const Tensor& grad)> accumulator,
                     bool accepts_partial = false);
bool has_accumulator(const Tensor& leaf);
// grad(leaf) += grad, or a copy of `grad` when there is none. Throws Error when sizes, type, device or layout differ.
void accumulate_grad(const Tensor& leaf, const Tensor& grad);
void accumulate_grad(const Tensor& leaf, Tensor&& grad);  // keeps `grad` instead of a copy if this is its only owner
void run_post_accumulate_hooks(const Tensor& leaf);
bool has_post_accumulate_hooks(const Tensor& leaf);
// Records a separate identity for each tensor, so that independent branches of the graph stay independent in backward.
// `reached` is called once per backward, when the gradient of the first of the tensors is complete. The caller
// continues with the returned tensors; those that need no gradient are returned unchanged. The history of a returned
// tensor begins at its identity, so no recorded operation may change one that others show: a view, a leaf, a tensor
// that is listed twice, or one of `inputs`, those of the module that has returned the tensors.
std::vector<Tensor> watch_first_gradient(std::vector<Tensor> tensors, std::function<void()> reached,
                                         const std::vector<Tensor>& inputs = {});

// ---- backward ----
// Differentiates the roots with respect to all leaves that require a gradient. `grads`: one gradient per root, in the
// sizes, type, gradient layout and device of the root; an undefined one, or an empty list, means 1 for a scalar root.
// The graph is freed unless retained. Throws Error for a root that is not a scalar and has no gradient, a root without
// history, a graph that an earlier backward freed, also one within a hook, and a saved tensor that was changed in place
// (with operation and versions).
void backward(const std::vector<Tensor>& roots, const Gradients& grads = {}, bool retain_graph = false);
bool in_backward();
// The number of the innermost running backward, different for each call of backward(); 0 when none runs.
std::uint64_t backward_id();
std::uint64_t outermost_backward_id();  // the same for the outermost one
bool backward_runs(std::uint64_t id);   // as the innermost one or around it
// For what happens once per backward, also if a hook runs another backward within.
class OncePerBackward {
 public:
  bool enter();  // notes a call; whether it is the first within the innermost running backward

 private:
  std::vector<std::uint64_t> called_in_;  // running backwards, and those that have ended since the last call
};
// Whether the graph of the innermost running backward contains this leaf. Its gradient may still be undefined.
bool backward_reaches(const Tensor& leaf);
// Runs once after all nodes of the innermost running backward, in the order of queueing. A callback may queue further
// ones. Throws Error when no backward runs.
void queue_backward_callback(std::function<void()> callback);

}  // namespace lockstep
