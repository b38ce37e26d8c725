// The history of views that change in place, as in PyTorch's autograd.
//
// A recorded operation that changes a view changes its base. The base becomes the result of a node "copy_slices", whose
// derivative gives the gradient of the changed elements to the operation and passes the others on. The views of the
// base get a node "as_strided", which selects from the new base, when they are next used.
#include <utility>

#include "engine/autograd/node.hpp"
#include "engine/core/checked.hpp"
#include "engine/core/error.hpp"
#include "engine/mesh/sharded.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep {

namespace {

// The elements of a tensor within its storage.
struct Place {
  explicit Place(const Tensor& tensor) : sizes(tensor.sizes()), strides(tensor.strides()), offset(tensor.offset()) {}
  Dims sizes, strides;
  std::int64_t offset;
};

// A new tensor of the sizes and strides of a base. Elements between its own are not initialized.
Tensor room_like(const Place& base, const TensorInfo& info) {
  if (num_elements(base.sizes) == 0) return empty(base.sizes, info.dtype, info.device);
  std::int64_t extent = 1;
  for (int dim = 0; dim < base.sizes.size(); ++dim) extent += bounded_product(base.sizes[dim] - 1, base.strides[dim]);
  return as_strided(empty({extent}, info.dtype, info.device), base.sizes, base.strides, 0);
}

Tensor part_of(const Tensor& room, const Place& base, const Place& view) {
  return as_strided(room, view.sizes, view.strides, view.offset - base.offset);
}

bool is_expanded(const Tensor& tensor) {
  for (int dim = 0; dim < tensor.num_dims(); ++dim)
    if (tensor.strides()[dim] == 0 && tensor.sizes()[dim] > 1) return true;
  return false;
}

const char* origin_text(ViewOrigin origin) {
  switch (origin) {
    case ViewOrigin::without_recording:
      return "a view that was made with gradients off";
    case ViewOrigin::one_of_several:
      return "a view from an operation with several results";
    case ViewOrigin::of_other_layout:
      return "a view of a sharded tensor, or a sharded tensor over the memory of another tensor,";
    case ViewOrigin::input_with_hooks:
      return "an input of a module whose hooks watch its gradient";
    case ViewOrigin::output_with_hooks:
      return "a view that a module with backward hooks has returned";
    case ViewOrigin::recorded:
      break;
  }
  return "a view";
}

std::string described(const Tensor& tensor) {
  return tensor.name().empty() ? describe_sharded(tensor) : str(tensor.name(), ", ", describe_sharded(tensor));
}

bool is_trained_leaf(const GradState* state) { return state && state->requires_grad && !state->node; }

}  // namespace

void note_view(const Tensor& result, const Tensor& of, ViewOrigin origin) {
  if (result.same_as(of)) return;
  auto view = std::make_unique<ViewOf>();
  const GradState* source = grad_state(of);
  if (source && source->view) {
    view->base = source->view->base;
    view->origin = source->view->origin == ViewOrigin::recorded ? origin : source->view->origin;
  } else {
    view->base = of;
    view->origin = origin;
  }
  view->base_history = history_of(view->base);  // the source may stand for an earlier one
  make_grad_state(result).view = std::move(view);
}

void renew_history(const Tensor& tensor, GradState& state) {
  ViewOf& view = *state.view;
  if (view.origin != ViewOrigin::recorded)
    throw Error(str(described(tensor), " is ", origin_text(view.origin),
                    ", and the tensor that it shows was changed in place while recording"),
                "make the view after the change, or change a clone");
  const Tensor base = view.base;
  NodePtr node = make_node("as_strided", {base}, [at_base = Place(base), at_view = Place(tensor)](const Backward& at) {
    const Tensor grad = room_like(at_base, {at.sizes(0), at.dtype(0), at.device(0), nullptr});
    raw::zero_(grad);
    Place once = at_view;  // an element that the view repeats gets the sum of its gradients
    for (int dim = 0; dim < once.sizes.size(); ++dim)
      if (once.strides[dim] == 0 && once.sizes[dim] > 1) once.sizes[dim] = 1;
    raw::copy_(part_of(grad, at_base, once), raw::sum_to(at.grad(), once.sizes));
    return Gradients{grad};
  });
  node->outputs.push_back(info_of(tensor));
  view.base_history = history_of(base);
  attach(tensor, node, 0);
}

namespace {

void require_changeable_target(const char* operation, const Tensor& tensor, const std::vector<Tensor>& inputs) {
  const GradState* state = tensor.defined() && grad_enabled() ? grad_state(tensor) : nullptr;
  if (!state || !(recording(inputs) || (state->view && needs_gradient(state->view->base)))) return;
  const char* remedy = "change it without gradients, or change a clone";
  if (is_trained_leaf(state) && !state->view)
    throw Error(str(operation, ": ", described(tensor),
                    " is a leaf that requires a gradient and cannot be changed in place while recording"),
                remedy);
  if (!state->view) return;
  const ViewOf& view = *state->view;
  if (is_trained_leaf(state) || is_trained_leaf(grad_state(view.base)))
    throw Error(str(operation, ": ", described(tensor), " is a view of a leaf that requires a gradient",
                    view.base.name().empty() ? std::string() : str(" (", view.base.name(), ")"),
                    " and cannot be changed in place while recording"),
                remedy);
  if (view.origin != ViewOrigin::recorded)
    throw Error(str(operation, ": ", described(tensor), " is ", origin_text(view.origin),
                    " and cannot be changed in place while recording"),
                "use the operation that gives a new tensor, or change a clone");
  if (is_expanded(view.base))
    throw Error(str(operation, ": ", described(tensor), " is a view of an expanded tensor"), "change a clone");
}

}  // namespace

void require_changeable(const char* operation, const Tensor& tensor, const std::vector<Tensor>& inputs) {
  require_changeable_target(operation, tensor, inputs);
  if (recording(inputs))
    for (const Tensor& input : inputs) (void)edge_of(input);  // renews the histories of views, which may fail
}

void attach_in_place(const Tensor& tensor, const NodePtr& node, const std::vector<Tensor>& inputs) {
  GradState* state = grad_state(tensor);
  if (!state || !state->view) return attach(tensor, node, 0);
  const Tensor base = state->view->base;
  std::vector<Tensor> all = inputs;
  all.front() = base;
  NodePtr around = make_node(
      "copy_slices", all,
      [operation = node.get(), at_base = Place(base), at_view = Place(tensor)](const Backward& at) -> Gradients {
        const Tensor grad = room_like(at_base, {at.sizes(0), at.dtype(0), at.device(0), nullptr});
        raw::copy_(grad, at.grad());
        const Tensor part = part_of(grad, at_base, at_view);
        Gradients of_result = {raw::clone(part)};
        Gradients results = operation->run(of_result);
        if (!results.front().defined() || is_expanded(part))  // an expanded one takes zero_ and fill_ only
          raw::zero_(part);
        else
          raw::copy_(part, results.front());
        results.front() = grad;
        return results;
      });
  around->outputs.push_back(info_of(base));
  around->changed = node;
  attach(base, around, 0);
  renew_history(tensor, *state);
}

}  // namespace lockstep
