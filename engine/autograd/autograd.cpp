// The autograd state of tensors: requires_grad, gradients, hooks. Gradient mode.
#include "engine/autograd/autograd.hpp"

#include <algorithm>

#include "engine/autograd/node.hpp"
#include "engine/core/checked.hpp"
#include "engine/mesh/sharded.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep {

namespace {

std::string name_or_sizes(const Tensor& tensor) {
  return tensor.name().empty() ? str("a tensor of sizes ", to_text(tensor.sizes())) : tensor.name();
}

void require_leaf(const Tensor& tensor, const char* operation) {
  if (!is_leaf(tensor))
    throw Error(str(operation, ": ", name_or_sizes(tensor), " is the result of ", grad_fn_name(tensor), ", not a leaf"),
                "use it on a tensor without history");
}

// An uninitialized gradient, without gaps. Its dims have the stride order of a leaf without gaps, and are row-major for
// any other leaf, as in PyTorch.
Tensor empty_grad(const Tensor& leaf, const Tensor& grad) {
  device::PurposeScope purpose(device::Purpose::gradient, &leaf.name());
  Tensor made = empty(grad.sizes(), grad.dtype(), grad.device());
  if (!leaf.is_contiguous()) {
    Dims order;  // dims from the largest stride to the smallest
    for (int dim = 0; dim < leaf.num_dims(); ++dim) order.push_back(dim);
    std::stable_sort(order.begin(), order.end(), [&leaf](std::int64_t a, std::int64_t b) {
      return leaf.strides()[static_cast<int>(a)] > leaf.strides()[static_cast<int>(b)];
    });
    Dims dense(leaf.num_dims(), 0);
    std::int64_t stride = 1;
    for (int i = order.size() - 1; i >= 0; --i) {
      dense[static_cast<int>(order[i])] = stride;
      stride = bounded_product(stride, leaf.sizes()[static_cast<int>(order[i])]);
    }
    bool has_gaps = false;
    for (int dim = 0; dim < leaf.num_dims(); ++dim)
      has_gaps = has_gaps || (leaf.sizes()[dim] != 1 && leaf.strides()[dim] != dense[dim]);
    if (!has_gaps) made = as_strided(made, grad.sizes(), dense, 0);
  }
  return sharded_like(made, grad);
}

void check_gradient(const Tensor& leaf, const Tensor& grad, const char* operation,
                    GradientType type = GradientType::same) {
  if (!same_layout(grad.layout(), layout::gradient_layout(leaf.layout())))
    throw Error(str(operation, ": a gradient that is ", describe_sharded(grad), " for ", name_or_sizes(leaf),
                    ", which is ", describe_sharded(leaf)),
                "give a gradient in the layout of the tensor: distribute or redistribute it");
  const bool fits = grad.dtype() == leaf.dtype() || (type == GradientType::any_floating && is_floating(grad.dtype()));
  if (grad.sizes() != leaf.sizes() || !fits)
    throw Error(
        str(operation, ": a gradient of type ", name_of(grad.dtype()), " and sizes ", to_text(grad.sizes()), " for ",
            name_or_sizes(leaf), " of type ", name_of(leaf.dtype()), " and sizes ", to_text(leaf.sizes())),
        "give a gradient of the same type and sizes");
  if (!(grad.device() == leaf.device()))
    throw Error(str(operation, ": a gradient on ", device::to_text(grad.device()), " for ", name_or_sizes(leaf),
                    ", which is on ", device::to_text(leaf.device())),
                "move a model before its forward or after its backward, and a gradient with to()");
}

}  // namespace

bool requires_grad(const Tensor& tensor) { return needs_gradient(tensor); }

void set_requires_grad(const Tensor& tensor, bool value) {
  require_leaf(tensor, "set_requires_grad");
  if (value && !is_floating(tensor.dtype()))
    throw Error(str("set_requires_grad: ", name_or_sizes(tensor), " is of type ", name_of(tensor.dtype())),
                "only floating-point tensors have gradients");
  if (!value && !grad_state(tensor)) return;
  make_grad_state(tensor).requires_grad = value;
}

bool is_leaf(const Tensor& tensor) {
  const GradState* state = grad_state(tensor);
  return !state || !(state->node || is_stale(*state));
}

Tensor grad(const Tensor& tensor) {
  const GradState* state = tensor.defined() ? grad_state(tensor) : nullptr;
  return state ? state->grad : Tensor();
}

void set_grad(const Tensor& tensor, const Tensor& value, GradientType type) {
  if (GradState* state = grad_state(tensor)) state->has_grad_of_peers = false;
  if (!value.defined()) {
    if (GradState* state = grad_state(tensor)) state->grad = Tensor();
    return forget_kept_back(tensor);
  }
  check_gradient(tensor, value, "set_grad", type);
  make_grad_state(tensor).grad = value;
}

const char* grad_fn_name(const Tensor& tensor) {
  GradState* state = grad_state(tensor);
  if (state && is_stale(*state)) renew_history(tensor, *state);
  return state && state->node ? state->node->name() : "";
}

// ---- gradient mode ----
bool grad_enabled() { return autograd_rank().enabled; }
GradMode::GradMode(bool enabled) : previous_(autograd_rank().enabled) { autograd_rank().enabled = enabled; }
GradMode::~GradMode() { autograd_rank().enabled = previous_; }

// ---- hooks ----
HookId add_hook(const Tensor& tensor, std::function<Tensor(const Tensor& grad)> hook) {
  if (!requires_grad(tensor))
    throw Error(str("add_hook: ", name_or_sizes(tensor), " requires no gradient, so the hook would never run"),
                "call set_requires_grad first");
  const HookId id = autograd_rank().next_hook++;
  auto shared = std::make_shared<const GradientHook>(std::move(hook));
  GradState& state = *grad_state(tensor);
  if (is_stale(state)) renew_history(tensor, state);
  if (state.node)
    state.node->hooks.push_back({id, state.output, std::move(shared)});
  else
    state.hooks.emplace_back(id, std::move(shared));
  return id;
}

HookId add_post_accumulate_hook(const Tensor& leaf, std::function<void(const Tensor& leaf)> hook) {
  require_leaf(leaf, "add_post_accumulate_hook");
  const HookId id = autograd_rank().next_hook++;
  make_grad_state(leaf).post_accumulate.emplace_back(
      id, std::make_shared<const std::function<void(const Tensor&)>>(std::move(hook)));
  return id;
}

void remove_hook(const Tensor& tensor, HookId id) {
  GradState* state = grad_state(tensor);
  if (!state) return;
  auto has_id = [id](const auto& entry) { return entry.first == id; };
  std::erase_if(state->hooks, has_id);
  std::erase_if(state->post_accumulate, has_id);
  if (state->node) std::erase_if(state->node->hooks, [id](const NodeHook& hook) { return hook.id == id; });
}

void set_accumulator(const Tensor& leaf, std::function<void(const Tensor& leaf, const Tensor& grad)> accumulator,
                     bool accepts_partial) {
  require_leaf(leaf, "set_accumulator");
  GradState& state = make_grad_state(leaf);
  state.accepts_partial = accepts_partial;
  if (accumulator)
    state.accumulator =
        std::make_shared<const std::function<void(const Tensor&, const Tensor&)>>(std::move(accumulator));
  else
    state.accumulator = nullptr;
}

bool has_accumulator(const Tensor& leaf) {
  const GradState* state = grad_state(leaf);
  return state && state->accumulator;
}

void accumulate_grad(const Tensor& leaf, const Tensor& grad) {
  check_gradient(leaf, grad, "accumulate_grad");
  GradState& state = make_grad_state(leaf);
  if (state.grad.defined()) {
    raw::add_(state.grad, grad);
    return;
  }
  Tensor made = empty_grad(leaf, grad);
  raw::copy_(made, grad);
  state.grad = std::move(made);
}

void accumulate_grad(const Tensor& leaf, Tensor&& grad) {
  const bool is_only_owner = grad.impl_ptr().use_count() == 1 && grad.storage().use_count() == 1;
  const bool same_strides = grad.is_contiguous() && grad.strides() == leaf.strides() && grad.offset() == 0;
  if (lockstep::grad(leaf).defined() || !is_only_owner || !same_strides || requires_grad(grad))
    return accumulate_grad(leaf, static_cast<const Tensor&>(grad));
  check_gradient(leaf, grad, "accumulate_grad");
  if (const device::MemoryPtr& memory = grad.storage()->memory_ptr(); memory && grad.storage()->bytes() > 0)
    device::repurpose(*memory, device::Purpose::gradient);
  make_grad_state(leaf).grad = std::move(grad);
}

bool has_post_accumulate_hooks(const Tensor& leaf) {
  const GradState* state = grad_state(leaf);
  return state && !state->post_accumulate.empty();
}

void run_post_accumulate_hooks(const Tensor& leaf) {
  const GradState* state = grad_state(leaf);
  if (!state || state->post_accumulate.empty()) return;
  const auto hooks = state->post_accumulate;  // a hook may remove itself
  for (const auto& [id, hook] : hooks) (*hook)(leaf);
}

}  // namespace lockstep
