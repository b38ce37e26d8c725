// The tape: nodes built by the differentiable operations (ops.hpp), backward over them, hooks, saved tensors.
//
// A node owns its derivative and edges to the nodes of its inputs. backward() runs nodes in one fixed order: the latest
// recorded first; a leaf gets its gradient as soon as its last use is done. Gradients meet at leaves through
// accumulation, or through an accumulator that a parallel API put in its place. Everything that is of a rank (gradient
// mode, saved-tensor hooks, the running backward) is a service of its context.
//
// An operation is one short function, forward and backward together:
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
using Gradients = std::vector<Tensor>;  // one an input; an undefined tensor means none

// ---- state of a tensor ----
bool requires_grad(const Tensor& tensor);  // a leaf that asked for it, or a result of a recorded operation
void set_requires_grad(const Tensor& tensor, bool value);  // leaves of floating type only
bool is_leaf(const Tensor& tensor);
Tensor grad(const Tensor& tensor);                         // undefined when there is none
void set_grad(const Tensor& tensor, const Tensor& value);  // undefined removes it; sizes and type must agree
Tensor detach(const Tensor& tensor);                       // alias without history
const char* grad_fn_name(const Tensor& tensor);            // "" for leaves

// ---- gradient mode ----
bool grad_enabled();
class GradMode {  // within the scope recording is on or off
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
// Two values that travel together to unpack: what pack() made of a saved tensor.
using PackedTensor = std::shared_ptr<void>;
struct SavedTensorHooks {
  std::function<PackedTensor(const Tensor&)> pack;
  std::function<Tensor(const PackedTensor&)> unpack;
};
// Within the scope every saved tensor goes through the hooks; the innermost scope wins.
class SavedTensorHooksScope {
 public:
  explicit SavedTensorHooksScope(SavedTensorHooks hooks);
  ~SavedTensorHooksScope();
  SavedTensorHooksScope(const SavedTensorHooksScope&) = delete;
  SavedTensorHooksScope& operator=(const SavedTensorHooksScope&) = delete;
};

// What a backward function sees.
class Backward {
 public:
  const Tensor& grad(int output = 0) const;  // gradient of an output; zeros are made for a missing one of several
  bool has_grad(int output) const;           // whether a gradient reached that output
  bool needs(int input) const;               // whether that input's gradient is wanted
  Tensor saved(int i) const;                 // unpacked; throws Error when it was changed in place since, or freed
  const Dims& sizes(int input) const;        // of the input
  DType dtype(int input) const;
  device::Device device(int input) const;

 private:
  friend class Node;
  Backward(const Node& node, Gradients& grads) : node_(node), grads_(grads) {}
  const Node& node_;
  Gradients& grads_;                      // zeros are put in when asked for
  mutable std::vector<Tensor> unpacked_;  // a saved tensor is unpacked once, however often it is read
};
using BackwardFunction = std::function<Gradients(const Backward&)>;

// Attaches a node to `result` when recording and an input requires grad; gives the result back. `inputs` are the
// differentiable inputs in order, `saved` what backward reads (aliases without history are kept; the result may be
// among them). Several results: record_many.
//
// Gradients go on to the inputs in the order of the inputs. `order` is for an operation whose parts PyTorch records as
// several nodes, so that the gradients arrive in another order there: the inputs' indices, in memory that lives on.
Tensor record(const char* name, Tensor result, std::vector<Tensor> inputs, std::vector<Tensor> saved,
              BackwardFunction function, std::span<const int> order = {});
std::vector<Tensor> record_many(const char* name, std::vector<Tensor> results, std::vector<Tensor> inputs,
                                std::vector<Tensor> saved, BackwardFunction function);
// Whether record() would attach a node: spares work that only backward needs.
bool recording(const std::vector<Tensor>& inputs);
// For an in-place operation that wrote `tensor`: bumps the version and makes the result of a new node of it. Throws
// Error when it is a leaf that requires grad and recording is on.
void record_in_place(const char* name, const Tensor& tensor, std::vector<Tensor> inputs, std::vector<Tensor> saved,
                     BackwardFunction function);

// ---- hooks ----
using HookId = std::int64_t;
// When the gradient of `tensor` is complete, before it goes on; a defined result replaces it.
HookId add_hook(const Tensor& tensor, std::function<Tensor(const Tensor& grad)> hook);
// After a leaf's gradient has been accumulated in a backward.
HookId add_post_accumulate_hook(const Tensor& leaf, std::function<void(const Tensor& leaf)> hook);
void remove_hook(const Tensor& tensor, HookId id);
// Takes the place of accumulation into grad(leaf): a parallel API decides what becomes of the gradient. Empty restores.
// Post-accumulate hooks are then run by whoever accumulates, through run_post_accumulate_hooks.
void set_accumulator(const Tensor& leaf, std::function<void(const Tensor& leaf, const Tensor& grad)> accumulator);
bool has_accumulator(const Tensor& leaf);
void accumulate_grad(const Tensor& leaf, const Tensor& grad);  // grad(leaf) += grad, or becomes a copy of it
void accumulate_grad(const Tensor& leaf, Tensor&& grad);       // takes `grad` over when nobody else holds it
void run_post_accumulate_hooks(const Tensor& leaf);
bool has_post_accumulate_hooks(const Tensor& leaf);
// Identity operations that tell when backward reaches them. `before`: when the gradients of these tensors are complete
// (called once, with one gradient a tensor, undefined for those that got none; not at all when none got one). Gives the
// tensors to go on with; those that need no gradient are the given ones.
std::vector<Tensor> watch_gradients(std::vector<Tensor> tensors, std::function<void(const Gradients&)> before);

// The same, each tensor by a node of its own, so that parts of a graph that share nothing may go backward one after the
// other. Calls once a backward, when it reaches the first of them; their gradients, where any come, are complete then.
std::vector<Tensor> watch_first_gradient(std::vector<Tensor> tensors, std::function<void()> reached);

// ---- backward ----
// From `roots` (scalars, or with `grads`). The graph is freed unless retained. Errors: a root that is no scalar and has
// no gradient given; nothing to differentiate; a graph freed before; a saved tensor changed in place (naming operation
// and versions).
void backward(const std::vector<Tensor>& roots, const Gradients& grads = {}, bool retain_graph = false);
bool in_backward();
// Of the running backward (the innermost), 0 when none runs: another number each time backward() is called.
std::uint64_t backward_id();
// Whether an operation that the running backward is to run differentiates with respect to this leaf; it may still come
// to no gradient.
bool backward_reaches(const Tensor& leaf);
// Runs once when the running backward (the innermost) has done its nodes, in order of queueing. Callbacks may queue
// more.
void queue_backward_callback(std::function<void()> callback);

}  // namespace lockstep
