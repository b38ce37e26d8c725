// Recording: makes nodes of the tape from the results, inputs and saved tensors of operations.
#include <algorithm>

#include "engine/autograd/computed.hpp"
#include "engine/autograd/node.hpp"
#include "engine/autograd/watch.hpp"
#include "engine/mesh/sharded.hpp"

namespace lockstep {

Edge edge_of(const Tensor& tensor) {
  Edge edge;
  GradState* state = tensor.defined() ? grad_state(tensor) : nullptr;
  if (!state) return edge;
  if (is_stale(*state)) [[unlikely]]
    renew_history(tensor, *state);
  if (state->node) {
    edge.node = state->node;
    edge.output = state->output;
  } else if (state->requires_grad) {
    edge.leaf = tensor.impl_ptr();
  }
  return edge;
}

TensorInfo info_of(const Tensor& tensor) {
  if (!tensor.defined()) return {};
  return {tensor.sizes(), tensor.dtype(), tensor.device(), layout::gradient_layout(tensor.layout())};
}

Tensor full_gradient(const TensorInfo& info, double value) {
  const Tensor local = full(info.sizes, value, info.dtype, info.device);
  return info.layout ? make_sharded(local, info.layout) : local;
}

bool same_layout(const LayoutPtr& a, const LayoutPtr& b) { return a == b || (a && b && *a == *b); }

Tensor detach(const Tensor& tensor) {
  Tensor detached = alias(tensor);
  detached.set_name(tensor.name());
  return detached;
}

bool recording(const std::vector<Tensor>& inputs) {
  if (!grad_enabled()) return false;
  for (const Tensor& input : inputs)
    if (needs_gradient(input)) return true;
  return false;
}

// Saves an alias without history, because a saved result with history would own its own node.
SavedTensor save_tensor(const Tensor& tensor, const char* operation) {
  SavedTensor entry;
  if (!tensor.defined()) return entry;
  AutogradRank& rank = autograd_rank();
  if (rank.saved_hooks.empty()) {
    entry.tensor = detach(tensor);
    entry.version = tensor.storage()->version();
  } else {
    entry.hooks = rank.saved_hooks.back();
    rank.saving = operation;
    entry.packed = entry.hooks->pack(detach(tensor));
  }
  return entry;
}

NodePtr make_node(const char* name, const std::vector<Tensor>& inputs, BackwardFunction function) {
  // First, because the history of a view may get a node here, which belongs before this one.
  std::vector<Edge> edges;
  edges.reserve(inputs.size());
  for (const Tensor& input : inputs) edges.push_back(edge_of(input));
  auto node = std::make_shared<Node>(name, autograd_rank().next_sequence++);
  node->edges = std::move(edges);
  node->inputs.reserve(inputs.size());
  for (const Tensor& input : inputs) node->inputs.push_back(info_of(input));
  node->function = std::move(function);
  node->attribution = comm::current_attribution();
  node->line = RankContext::current().scenario_line;
  return node;
}

void attach(const Tensor& result, const NodePtr& node, int output) {
  GradState& state = make_grad_state(result);
  state.requires_grad = false;
  state.node = node;
  state.output = output;
}

namespace {

void save(Node& node, const std::vector<Tensor>& tensors) {
  node.saved.reserve(tensors.size());
  for (const Tensor& tensor : tensors) node.saved.push_back(save_tensor(tensor, node.name()));
}

bool is_one_of(const Tensor& tensor, const std::vector<Tensor>& others) {
  for (const Tensor& other : others)
    if (tensor.same_as(other)) return true;
  return false;
}

// Notes whether the result is a view of an input. A view that another layout is put over stays one of its own base.
void note_if_view(const Tensor& result, const std::vector<Tensor>& inputs, bool is_one_of_several) {
  if (!result.defined()) return;
  for (const Tensor& input : inputs) {
    if (input.storage() != result.storage()) continue;
    return note_view(result, input,
                     input.is_sharded() || result.is_sharded() ? ViewOrigin::of_other_layout
                     : !grad_enabled()                         ? ViewOrigin::without_recording
                     : is_one_of_several                       ? ViewOrigin::one_of_several
                                                               : ViewOrigin::recorded);
  }
}

// Reports an operation whose results are computed to the watch of this rank, if there is one.
void notify_computed(const char* name, const std::vector<Tensor>& inputs) {
  if (const WatchedOperations* watched = autograd_rank().watched) [[unlikely]]
    if (watched->computed) watched->computed(name, inputs);
}

// Reports an operation to the watch of this rank, if there is one.
void notify(const char* name, const std::vector<Tensor>& inputs, std::span<const Tensor> results) {
  if (const WatchedOperations* watched = autograd_rank().watched) [[unlikely]]
    watched->seen(name, inputs, {results.begin(), results.end()});
}

}  // namespace

// Callers build the lists for the call, so references would save no copy.
// NOLINTBEGIN(performance-unnecessary-value-param)
std::vector<Tensor> record_many(const char* name, std::vector<Tensor> results, std::vector<Tensor> inputs,
                                std::vector<Tensor> saved, BackwardFunction function) {
  notify_computed(name, inputs);
  if (!recording(inputs)) {
    for (const Tensor& result : results) note_if_view(result, inputs, true);
    notify(name, inputs, results);
    return results;
  }
  NodePtr node = make_node(name, inputs, std::move(function));
  save(*node, saved);
  for (std::size_t i = 0; i < results.size(); ++i) {
    Tensor& result = results[i];
    node->outputs.push_back(info_of(result));
    if (!result.defined() || !is_floating(result.dtype())) continue;
    // If an operation returns an input or a tensor with history, the new history is attached to an alias.
    if (result.impl().autograd || is_one_of(result, inputs)) result = detach(result);
    attach(result, node, static_cast<int>(i));
    note_if_view(result, inputs, true);
  }
  notify(name, inputs, results);
  return results;
}

Tensor record(const char* name, Tensor result, std::vector<Tensor> inputs, std::vector<Tensor> saved,
              BackwardFunction function, std::span<const int> order) {
  notify_computed(name, inputs);
  if (!recording(inputs)) {
    note_if_view(result, inputs, false);
    notify(name, inputs, {&result, 1});
    return result;
  }
  LOCKSTEP_CHECK(is_floating(result.dtype()), name, " records a result of type ", name_of(result.dtype()));
  NodePtr node = make_node(name, inputs, std::move(function));
  node->order = order;
  save(*node, saved);
  node->outputs.push_back(info_of(result));
  if (result.impl().autograd || is_one_of(result, inputs)) result = detach(result);
  attach(result, node, 0);
  note_if_view(result, inputs, false);
  notify(name, inputs, {&result, 1});
  return result;
}

void record_in_place(const char* name, const Tensor& tensor, std::vector<Tensor> inputs, std::vector<Tensor> saved,
                     BackwardFunction function) {
  notify_computed(name, inputs);
  require_changeable(name, tensor, inputs);
  tensor.bump_version();
  AutogradRank& rank = autograd_rank();
  rank.changes[rank.num_changes++ % rank.changes.size()] = {tensor.storage(), tensor.storage()->version(), name,
                                                            RankContext::current().scenario_line};
  if (!recording(inputs) || !is_floating(tensor.dtype())) return notify(name, inputs, {&tensor, 1});
  NodePtr node = make_node(name, inputs, std::move(function));  // the edges lead to the previous history of `tensor`
  save(*node, saved);
  node->outputs.push_back(info_of(tensor));
  attach_in_place(tensor, node, inputs);
  notify(name, inputs, {&tensor, 1});
}
// NOLINTEND(performance-unnecessary-value-param)

// Records an identity over the tensors that need a gradient and replaces them by its outputs. A change in place of an
// output bypasses the identity, so an output is no view of its input. Changes of an input of a module are refused, and
// so are those of a result that other tensors show: they would belong to a history before the identity.
std::vector<Tensor> watch_passing(std::vector<Tensor> tensors, std::function<void()> before, Watched watched) {
  if (!recording(tensors)) return tensors;
  std::vector<Tensor> inputs;
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!needs_gradient(tensors[i])) continue;
    inputs.push_back(tensors[i]);
    places.push_back(i);
  }
  // The function runs only if hooks are added to the outputs later, because hooks need the sums.
  const NodePtr node = make_node("watch_gradients", inputs,
                                 [before, count = static_cast<int>(inputs.size())](const Backward& at) -> Gradients {
                                   Gradients onward(static_cast<std::size_t>(count));
                                   for (int k = 0; k < count; ++k)
                                     if (at.has_grad(k)) onward[static_cast<std::size_t>(k)] = at.grad(k);
                                   before();
                                   return onward;
                                 });
  node->on_arrival = std::move(before);
  node->takes_unreduced = true;
  for (std::size_t k = 0; k < inputs.size(); ++k) {
    node->outputs.push_back(info_of(inputs[k]));
    Tensor result = detach(inputs[k]);
    attach(result, node, static_cast<int>(k));
    if (watched == Watched::inputs)
      note_view(result, inputs[k], ViewOrigin::input_with_hooks);
    else if (watched == Watched::shown_results || grad_state(inputs[k])->view || is_leaf(inputs[k]))
      note_view(result, inputs[k], ViewOrigin::output_with_hooks);
    tensors[places[k]] = std::move(result);
  }
  return tensors;
}

// ---- saved-tensor hooks ----
SavedTensorHooksScope::SavedTensorHooksScope(SavedTensorHooks hooks) {
  autograd_rank().saved_hooks.push_back(std::make_shared<const SavedTensorHooks>(std::move(hooks)));
}
SavedTensorHooksScope::~SavedTensorHooksScope() { autograd_rank().saved_hooks.pop_back(); }

std::vector<Tensor> watch_first_gradient(std::vector<Tensor> tensors, std::function<void()> reached,
                                         const std::vector<Tensor>& inputs) {
  struct Watch {
    std::function<void()> reached;
    OncePerBackward once;
  };
  const auto watch = std::make_shared<Watch>(Watch{std::move(reached), {}});
  std::vector<Watched> kinds;
  kinds.reserve(tensors.size());
  for (const Tensor& tensor : tensors) {
    const auto is_same = [&tensor](const Tensor& other) { return tensor.same_as(other); };
    const bool is_shown = std::any_of(inputs.begin(), inputs.end(), is_same) ||
                          std::count_if(tensors.begin(), tensors.end(), is_same) > 1;
    kinds.push_back(is_shown ? Watched::shown_results : Watched::results);
  }
  const auto passes = [watch] {
    if (watch->once.enter()) watch->reached();
  };
  for (std::size_t i = 0; i < tensors.size(); ++i) tensors[i] = watch_passing({tensors[i]}, passes, kinds[i])[0];
  return tensors;
}

// ---- computations ----
ComputationLayer::ComputationLayer(Position position) {
  auto& layers = autograd_rank().computation_layers;
  layers.insert(position == Position::outermost ? layers.begin() : layers.end(), this);
}

ComputationLayer::~ComputationLayer() { std::erase(autograd_rank().computation_layers, this); }

namespace {

std::vector<Tensor> through(std::span<ComputationLayer* const> layers, const char* operation,
                            const ComputationLayer::Compute& compute) {
  if (layers.empty()) return compute();
  return layers.back()->results(operation,
                                [&] { return through(layers.first(layers.size() - 1), operation, compute); });
}

}  // namespace

bool has_computation_layers() { return !autograd_rank().computation_layers.empty(); }

std::vector<Tensor> through_layers(const char* operation, const ComputationLayer::Compute& compute) {
  return through(autograd_rank().computation_layers, operation, compute);
}

class ComputationCount::Layer : public ComputationLayer {
 public:
  Layer() : ComputationLayer(Position::outermost) {}
  std::vector<Tensor> results(const char* operation, const Compute& compute) override {
    ++counts[operation];
    return compute();
  }
  std::map<std::string, std::int64_t> counts;
};

ComputationCount::ComputationCount() : layer_(std::make_unique<Layer>()) {}
ComputationCount::~ComputationCount() = default;
const std::map<std::string, std::int64_t>& ComputationCount::counts() const { return layer_->counts; }

// ---- operations ----
OperationWatch::OperationWatch(SeenOperation seen, ComputedOperation computed)
    : functions_{std::move(seen), std::move(computed)},
      previous_(std::exchange(autograd_rank().watched, &functions_)) {}

OperationWatch::~OperationWatch() { autograd_rank().watched = previous_; }

}  // namespace lockstep
