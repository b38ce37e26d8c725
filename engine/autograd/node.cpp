#include "engine/autograd/node.hpp"

#include <algorithm>
#include <optional>

#include "engine/layout/placement.hpp"

namespace lockstep {

// Iterative, because the recursive destruction of a long chain of nodes overflows the stack.
Node::~Node() {
  std::vector<NodePtr> last_owned;
  auto collect = [&last_owned](std::vector<Edge>& from) {
    for (Edge& edge : from)
      if (edge.node && edge.node.use_count() == 1) last_owned.push_back(std::move(edge.node));
  };
  collect(edges);
  while (!last_owned.empty()) {
    NodePtr node = std::move(last_owned.back());
    last_owned.pop_back();
    collect(node->edges);
  }
}

Gradients Node::run(Gradients& grads) const {
  const Backward at(*this, grads);
  std::optional<comm::AttributionScope> scope;
  if (attribution) scope.emplace(attribution);
  Gradients result = function(at);
  LOCKSTEP_CHECK(result.size() == edges.size(), "the derivative of ", name_, " gave ", result.size(), " gradients for ",
                 edges.size(), " inputs");
  for (std::size_t i = 0; i < result.size(); ++i) {
    if (!result[i].defined() || !edges[i].needed()) continue;
    LOCKSTEP_CHECK(result[i].sizes() == inputs[i].sizes && result[i].dtype() == inputs[i].dtype, "the derivative of ",
                   name_, " gave ", name_of(result[i].dtype()), " ", to_text(result[i].sizes()), " for input ", i,
                   " which is ", name_of(inputs[i].dtype), " ", to_text(inputs[i].sizes));
    LOCKSTEP_CHECK(same_layout(result[i].layout(), inputs[i].layout) ||
                       (edges[i].leaf && accepts_partial(Tensor(edges[i].leaf), result[i].layout(), inputs[i].layout)),
                   "the derivative of ", name_, " gave a ", result[i].is_sharded() ? "sharded" : "plain",
                   " gradient for input ", i, " in another layout");
  }
  return result;
}

bool accepts_partial(const Tensor& leaf, const LayoutPtr& given, const LayoutPtr& wanted) {
  const GradState* state = grad_state(leaf);
  if (!state || state->node || !state->accepts_partial || !given || !layout::has_partial(*given)) return false;
  const auto sums = [](const layout::Placement& placement) {
    return !placement.is_partial() || placement.op == layout::PartialOp::sum;
  };
  return std::all_of(given->placements.begin(), given->placements.end(), sums) &&
         same_layout(layout::gradient_layout(given), wanted);
}

Tensor Node::unpack(int i) const {
  LOCKSTEP_CHECK(i >= 0 && static_cast<std::size_t>(i) < saved.size(), name_, " saved ", saved.size(),
                 " tensors and reads number ", i, freed_ ? " after they were freed" : "");
  return unpack_saved(saved[static_cast<std::size_t>(i)], name_, i);
}

Tensor unpack_saved(const SavedTensor& entry, const char* operation, int number) {
  if (entry.hooks) {
    // Held here because unpacking may destroy the entry.
    const std::shared_ptr<const SavedTensorHooks> hooks = entry.hooks;
    const PackedTensor packed = entry.packed;
    Tensor tensor = hooks->unpack(packed);
    LOCKSTEP_CHECK(tensor.defined(), "unpacking a tensor saved by ", operation, " gave none");
    return tensor;
  }
  if (entry.tensor.defined() && entry.tensor.storage()->version() != entry.version) {
    const Storage& storage = *entry.tensor.storage();
    throw Error(
        str("backward of ", operation, ": tensor ", number, " that it saved",
            storage.owner.empty() ? std::string() : str(" (", storage.owner, ")"), ", ", name_of(entry.tensor.dtype()),
            " ", to_text(entry.tensor.sizes()), ", was changed in place: it was at version ", entry.version,
            " and is at version ", storage.version()),
        "change a copy, or change it after the backward");
  }
  return entry.tensor;
}

void Node::free_saved() {
  if (saved.empty()) return;  // a node without saved tensors can run again
  saved.clear();
  function = nullptr;
  freed_ = true;
}

// ---- Backward ----
const Tensor& Backward::grad(int output) const {
  LOCKSTEP_CHECK(output >= 0 && static_cast<std::size_t>(output) < grads_.size(), node_.name(), " has ", grads_.size(),
                 " outputs");
  Tensor& slot = grads_[static_cast<std::size_t>(output)];
  if (!slot.defined()) {
    const TensorInfo& info = node_.outputs[static_cast<std::size_t>(output)];
    slot = full_gradient(info, 0.0);
  }
  return slot;
}

bool Backward::has_grad(int output) const { return grads_[static_cast<std::size_t>(output)].defined(); }
bool Backward::needs(int input) const { return node_.edges[static_cast<std::size_t>(input)].needed(); }

Tensor Backward::saved(int i) const {
  if (static_cast<std::size_t>(i) < node_.saved.size() && node_.saved[static_cast<std::size_t>(i)].hooks) {
    unpacked_.resize(node_.saved.size());
    Tensor& slot = unpacked_[static_cast<std::size_t>(i)];
    if (!slot.defined()) slot = node_.unpack(i);
    return slot;
  }
  return node_.unpack(i);
}

const Dims& Backward::sizes(int input) const { return node_.inputs[static_cast<std::size_t>(input)].sizes; }
DType Backward::dtype(int input) const { return node_.inputs[static_cast<std::size_t>(input)].dtype; }
device::Device Backward::device(int input) const { return node_.inputs[static_cast<std::size_t>(input)].device; }

}  // namespace lockstep
