#include "engine/autograd/node.hpp"

#include <optional>

#include "engine/core/defects.hpp"
#include "engine/mesh/sharded.hpp"
#include "engine/tensor/storage_state.hpp"

namespace lockstep {

// Iterative, because the recursive destruction of a long chain of nodes overflows the stack.
Node::~Node() {
  std::vector<NodePtr> released;  // each reference, because the last one to a node with several consumers comes late
  auto collect = [&released](Node& from) {
    for (Edge& edge : from.edges)
      if (edge.node) released.push_back(std::move(edge.node));
    if (from.changed) released.push_back(std::move(from.changed));
  };
  collect(*this);
  while (!released.empty()) {
    const NodePtr node = std::move(released.back());
    released.pop_back();
    if (node.use_count() == 1) collect(*node);
  }
}

bool is_unreduced(const Tensor& grad) {
  return grad.defined() && grad.is_sharded() && layout::has_partial(*grad.layout());
}

Tensor reduced_gradient(Tensor grad, const comm::AttributionPtr& attribution) {
  if (!is_unreduced(grad)) return grad;
  if (defect_armed(Defect::tensor_gradient_not_reduced)) [[unlikely]]
    return make_sharded(local_tensor(grad), layout::gradient_layout(grad.layout()));
  const comm::AttributionScope scope(attribution);
  return redistribute(grad, layout::gradient_layout(grad.layout()));
}

Tensor taking_unreduced(Tensor result) {
  if (const GradState* state = grad_state(result); state && state->node) state->node->takes_unreduced = true;
  return result;
}

void Node::require_kept() const {
  if (freed_)
    throw Error(str("backward: the graph was freed by an earlier backward (at ", name_, ")"),
                "retain the graph in the earlier backward, or compute the loss again");
  if (changed) changed->require_kept();
}

Gradients Node::run(Gradients& grads) {
  require_kept();  // a backward within a hook may have freed it since this backward began
  struct Running {
    explicit Running(Node& of) : node(of) { ++node.runs_; }
    ~Running() {
      if (--node.runs_ == 0 && node.freed_) node.function = nullptr;
    }
    Node& node;
  };
  const Running running(*this);
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
    LOCKSTEP_CHECK(same_layout(layout::gradient_layout(result[i].layout()), inputs[i].layout), "the derivative of ",
                   name_, " gave a ", result[i].is_sharded() ? "sharded" : "plain", " gradient for input ", i,
                   " in another layout");
  }
  return result;
}

Tensor Node::unpack(int i) const {
  require_kept();  // a backward within the recomputation of a saved tensor may have freed the others
  LOCKSTEP_CHECK(i >= 0 && static_cast<std::size_t>(i) < saved.size(), name_, " saved ", saved.size(),
                 " tensors and reads number ", i);
  return unpack_saved(saved[static_cast<std::size_t>(i)], name_, i, line);
}

namespace {

std::string in_line(int line) { return line > 0 ? str(" in line ", line) : std::string(); }

// By which operation, and where, if it is known.
std::string first_change(const SavedTensor& entry) {
  const AutogradRank& rank = autograd_rank();
  const InPlaceChange* first = nullptr;
  for (const InPlaceChange& change : rank.changes)
    if (change.storage.lock() == entry.tensor.storage() && change.version > entry.version &&
        (!first || change.version < first->version))
      first = &change;
  return first ? str(" by ", first->operation, in_line(first->line)) : std::string();
}

}  // namespace

Tensor unpack_saved(const SavedTensor& entry, const char* operation, int number, int line) {
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
    const std::string saved = str("backward of ", operation, in_line(line), ": tensor ", number, " that it saved",
                                  storage.owner.empty() ? std::string() : str(" (", storage.owner, ")"), ", ",
                                  name_of(entry.tensor.dtype()), " ", to_text(entry.tensor.sizes()));
    if (!storage.has_memory() && storage.state.starts_with(state_cast_to))
      throw Error(str(saved, ", was ", storage.state, " after the forward"),
                  "cast a model before its forward, or after its backward");
    throw Error(str(saved, ", was changed in place", first_change(entry), ": it was at version ", entry.version,
                    " and is at version ", storage.version()),
                "change a copy, or change it after the backward");
  }
  return entry.tensor;
}

void Node::free_saved() {
  if (changed) changed->free_saved();
  if (saved.empty()) return;  // a node without saved tensors can run again
  saved.clear();
  freed_ = true;
  if (runs_ == 0) function = nullptr;
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
