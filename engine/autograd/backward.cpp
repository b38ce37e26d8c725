// The backward pass: runs the recorded nodes in one fixed order, which is the order of PyTorch's autograd.
//
// A task is a node or a leaf. It becomes ready when all edges into it are settled; an edge is settled when its gradient
// has been delivered or is known to be undefined. Ready leaves run before ready nodes, so that a parallel API can start
// reducing while backward continues. Of the ready nodes the latest recorded runs first. The inputs of a node are
// recorded before it, so nodes run in the order of decreasing sequence numbers. Leaves that become ready at one node
// have equal priority. The binary heap of the standard library orders them, as in PyTorch: the leaves of cat(a, b, c,
// d) run in the order a, c, b, d.
#include <algorithm>
#include <limits>

#include "engine/autograd/node.hpp"
#include "engine/comm/process_group.hpp"
#include "engine/mesh/sharded.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep {

namespace {

// A sum of gradients. The first gradient may have other owners, so it is not changed in place; a sum is owned by this
// pass.
struct GradientSum {
  Tensor value;
  bool owned = false;
  void add(Tensor&& grad) {
    if (!value.defined()) {
      value = std::move(grad);
    } else if (owned) {
      raw::add_(value, grad);
    } else {
      value = sharded_like(raw::add(value, grad), value);
      owned = true;
    }
  }
};

// The gradients that have arrived. Unreduced ones (node.hpp) are summed apart, so that one reduction serves all.
class IncomingGradient {
 public:
  bool any() const { return reduced_.value.defined() || unreduced_.value.defined(); }
  // `from`: the attribution of the operation that gave the gradient.
  void add(Tensor&& grad, const comm::AttributionPtr& from) {
    if (!is_unreduced(grad)) return reduced_.add(std::move(grad));
    if (unreduced_.value.defined() && !same_layout(unreduced_.value.layout(), grad.layout()))
      return reduced_.add(reduced_gradient(std::move(grad), from));
    unreduced_.add(std::move(grad));
    attribution_ = from;
  }
  // The sum; undefined if none arrived. Without `reduce` it is unreduced if all of them are.
  Tensor take(bool reduce) {
    if (!unreduced_.value.defined()) return std::move(reduced_.value);
    if (!reduce && !reduced_.value.defined()) return std::move(unreduced_.value);
    reduced_.add(reduced_gradient(std::move(unreduced_.value), attribution_));
    return std::move(reduced_.value);
  }

 private:
  GradientSum reduced_, unreduced_;
  comm::AttributionPtr attribution_;  // of the operation that gave the latest unreduced gradient
};

struct NodeTask {
  Node* node = nullptr;
  int pending = 0;                      // edges into it that are not settled
  std::vector<IncomingGradient> grads;  // one per output; empty until one arrives
  bool has_passed = false;              // for a node that passes gradients on: one has passed
};

struct LeafTask {
  std::shared_ptr<TensorImpl> leaf;
  int pending = 0;  // edges into it that are not settled
  IncomingGradient grad;
};

// Exactly one of `node` and `leaf` is set.
struct ReadyTask {
  std::uint64_t priority = 0;
  NodeTask* node = nullptr;
  LeafTask* leaf = nullptr;
  bool operator<(const ReadyTask& other) const { return priority < other.priority; }
};

class BackwardPass : public RunningBackward {
 public:
  BackwardPass(const std::vector<Tensor>& roots, const Gradients& grads, bool retain_graph);
  void run();
  bool reaches(const TensorImpl* leaf) const override;

 private:
  void list_tasks();
  NodeTask& task_of(const Node& node);
  template <class Leaves>
  static auto find_leaf(Leaves& leaves, const TensorImpl* leaf) {
    return std::lower_bound(leaves.begin(), leaves.end(), leaf,
                            [](const LeafTask& task, const TensorImpl* wanted) { return task.leaf.get() < wanted; });
  }
  // Also settles the edge; `grad` may be undefined. `from`: the attribution of the operation that gave it.
  void deliver(const Edge& edge, Tensor&& grad, const comm::AttributionPtr& from);
  void add_to(NodeTask& task, int output, Tensor&& grad, const comm::AttributionPtr& from);
  void make_ready(ReadyTask task);
  void run_ready();
  void run_node(NodeTask& task);
  void finish_leaf(LeafTask& task);

  std::vector<Edge> root_edges_;
  Gradients root_grads_;
  bool retain_graph_;
  std::vector<NodeTask> nodes_;   // in decreasing sequence, for lookup only
  std::vector<LeafTask> leaves_;  // by address, for lookup only
  std::vector<ReadyTask> ready_;  // a heap
};

// The given gradient of a root after checks; 1 for a scalar root without one.
Tensor root_gradient(std::size_t number, const Tensor& root, const Tensor& given) {
  if (!requires_grad(root))
    throw Error(str("backward: root ", number,
                    " has nothing to differentiate: no operation on a tensor that requires a "
                    "gradient was recorded for it"),
                "compute it with gradients on, from tensors that require a gradient");
  if (!given.defined()) {
    if (num_elements(global_sizes(root)) != 1)
      throw Error(str("backward: root ", number, " of sizes ", to_text(global_sizes(root)),
                      " is not a scalar and its gradient is not given"),
                  "sum it, or give its gradient");
    return full_gradient(info_of(root), 1.0);
  }
  if (!same_layout(given.layout(), layout::gradient_layout(root.layout())))
    throw Error(str("backward: the gradient given for root ", number, " is ", describe_sharded(given), ", the root is ",
                    describe_sharded(root)),
                "give a gradient in the layout of the root, replicated where the root is partial");
  if (given.sizes() != root.sizes() || given.dtype() != root.dtype())
    throw Error(str("backward: the gradient given for root ", number, " is ", name_of(given.dtype()), " ",
                    to_text(given.sizes()), ", the root is ", name_of(root.dtype()), " ", to_text(root.sizes())),
                "give a gradient of the type and sizes of the root");
  if (!(given.device() == root.device()))
    throw Error(str("backward: the gradient given for root ", number, " is on ", device::to_text(given.device()),
                    ", the root is on ", device::to_text(root.device())),
                "move the gradient to the device of the root");
  return given;
}

BackwardPass::BackwardPass(const std::vector<Tensor>& roots, const Gradients& grads, bool retain_graph)
    : retain_graph_(retain_graph) {
  if (!grads.empty() && grads.size() != roots.size())
    throw Error(str("backward: ", grads.size(), " gradients for ", roots.size(), " roots"),
                "give one gradient per root, or none");
  for (std::size_t i = 0; i < roots.size(); ++i) {
    root_grads_.push_back(root_gradient(i, roots[i], grads.empty() ? Tensor() : grads[i]));
    root_edges_.push_back(edge_of(roots[i]));
  }
}

void BackwardPass::list_tasks() {
  auto earlier = [](const Node* a, const Node* b) { return a->sequence() < b->sequence(); };
  std::vector<Node*> heap;
  std::vector<std::shared_ptr<TensorImpl>> leaf_edges;
  auto reach = [&](const Edge& edge) {
    if (edge.node) {
      heap.push_back(edge.node.get());
      std::push_heap(heap.begin(), heap.end(), earlier);
    } else if (edge.leaf) {
      leaf_edges.push_back(edge.leaf);
    }
  };
  for (const Edge& edge : root_edges_) reach(edge);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), earlier);
    Node* node = heap.back();
    heap.pop_back();
    if (!nodes_.empty() && nodes_.back().node == node) {  // another edge into it
      ++nodes_.back().pending;
      continue;
    }
    node->require_kept();
    nodes_.push_back({node, 1, {}});
    for (const Edge& edge : node->edges) reach(edge);
  }
  std::sort(leaf_edges.begin(), leaf_edges.end());
  for (auto& leaf : leaf_edges) {
    if (leaves_.empty() || leaves_.back().leaf != leaf) leaves_.push_back({std::move(leaf), 0, {}});
    ++leaves_.back().pending;
  }
}

NodeTask& BackwardPass::task_of(const Node& node) {
  return *std::lower_bound(
      nodes_.begin(), nodes_.end(), node.sequence(),
      [](const NodeTask& task, std::uint64_t sequence) { return task.node->sequence() > sequence; });
}

bool BackwardPass::reaches(const TensorImpl* leaf) const {
  const auto found = find_leaf(leaves_, leaf);
  return found != leaves_.end() && found->leaf.get() == leaf;
}

void BackwardPass::deliver(const Edge& edge, Tensor&& grad, const comm::AttributionPtr& from) {
  if (edge.node) {
    NodeTask& task = task_of(*edge.node);
    if (grad.defined()) add_to(task, edge.output, std::move(grad), from);
    if (--task.pending == 0) make_ready({edge.node->sequence(), &task, nullptr});
  } else if (edge.leaf) {
    LeafTask& task = *find_leaf(leaves_, edge.leaf.get());
    if (grad.defined()) task.grad.add(std::move(grad), from);
    if (--task.pending == 0) make_ready({std::numeric_limits<std::uint64_t>::max(), nullptr, &task});
  }
}

// A gradient passes through a watching node at once. The edges of that node are settled when the node runs.
void BackwardPass::add_to(NodeTask& task, int output, Tensor&& grad, const comm::AttributionPtr& from) {
  const auto at = static_cast<std::size_t>(output);
  if (task.node->passes_gradients_on()) {
    task.has_passed = true;
    const Edge& onward = task.node->edges[at];
    if (onward.leaf)
      find_leaf(leaves_, onward.leaf.get())->grad.add(std::move(grad), from);
    else if (onward.node)
      add_to(task_of(*onward.node), onward.output, std::move(grad), from);
    return;
  }
  if (task.grads.empty()) task.grads.resize(task.node->outputs.size());
  task.grads[at].add(std::move(grad), from);
}

void BackwardPass::make_ready(ReadyTask task) {
  ready_.push_back(task);
  std::push_heap(ready_.begin(), ready_.end());
}

void BackwardPass::run_ready() {
  while (!ready_.empty()) {
    std::pop_heap(ready_.begin(), ready_.end());
    const ReadyTask task = ready_.back();
    ready_.pop_back();
    if (task.leaf)
      finish_leaf(*task.leaf);
    else
      run_node(*task.node);
  }
}

void BackwardPass::run_node(NodeTask& task) {
  Node& node = *task.node;
  if (task.grads.empty()) {                  // no gradient arrived, or all were passed on: settle its edges
    if (task.has_passed) node.on_arrival();  // it has saved nothing that could be freed
    for (const Edge& edge : node.edges) deliver(edge, Tensor(), nullptr);
    return;
  }
  Gradients grads;
  grads.reserve(task.grads.size());
  const bool reduces = !node.takes_unreduced || !node.hooks.empty();
  for (IncomingGradient& incoming : task.grads) grads.push_back(incoming.take(reduces));
  task.grads = {};
  if (!node.hooks.empty()) {
    const std::vector<NodeHook> hooks = node.hooks;  // a hook may remove itself
    for (const NodeHook& hook : hooks) {
      Tensor& grad = grads[static_cast<std::size_t>(hook.output)];
      if (!grad.defined()) continue;
      if (Tensor changed = (*hook.hook)(grad); changed.defined()) grad = std::move(changed);
    }
  }
  Gradients results = node.run(grads);
  grads.clear();  // so that a gradient that is passed on unchanged has one owner
  if (!retain_graph_) node.free_saved();
  for (std::size_t i = 0; i < results.size(); ++i) {
    const std::size_t at = node.order.empty() ? i : static_cast<std::size_t>(node.order[i]);
    if (node.edges[at].needed()) deliver(node.edges[at], std::move(results[at]), node.attribution);
  }
}

void BackwardPass::finish_leaf(LeafTask& task) {
  if (!task.grad.any()) return;
  const Tensor leaf(task.leaf);
  GradState& state = make_grad_state(leaf);
  Tensor grad = task.grad.take(!state.accepts_partial || !state.hooks.empty());
  if (!state.hooks.empty()) {
    const auto hooks = state.hooks;
    for (const auto& [hook_id, hook] : hooks)
      if (Tensor changed = (*hook)(grad); changed.defined()) grad = std::move(changed);
  }
  if (const auto accumulator = state.accumulator) {
    (*accumulator)(leaf, grad);
    return;
  }
  if (!requires_grad(leaf)) return;  // frozen since the forward
  accumulate_grad(leaf, std::move(grad));
  run_post_accumulate_hooks(leaf);
}

void BackwardPass::run() {
  list_tasks();
  for (std::size_t i = 0; i < root_edges_.size(); ++i) deliver(root_edges_[i], std::move(root_grads_[i]), nullptr);
  run_ready();
}

// Registers a running backward with the rank.
class RunningScope {
 public:
  explicit RunningScope(RunningBackward& backward) : backward_(backward) {
    backward.id = autograd_rank().next_backward++;
    autograd_rank().running.push_back(&backward);
  }
  ~RunningScope() {
    autograd_rank().running.pop_back();
    for (const auto& function : backward_.at_end) function();
  }
  RunningScope(const RunningScope&) = delete;
  RunningScope& operator=(const RunningScope&) = delete;

 private:
  RunningBackward& backward_;
};

}  // namespace

void backward(const std::vector<Tensor>& roots, const Gradients& grads, bool retain_graph) {
  const comm::PhaseScope phase(comm::Phase::backward);
  const NoGrad no_grad;
  BackwardPass pass(roots, grads, retain_graph);
  const RunningScope scope(pass);
  pass.run();
  for (std::size_t i = 0; i < pass.callbacks.size(); ++i) {
    const auto callback = std::move(pass.callbacks[i]);  // it may queue further ones, which reallocates the list
    callback();
  }
}

bool in_backward() { return !autograd_rank().running.empty(); }

std::uint64_t backward_id() {
  const AutogradRank& rank = autograd_rank();
  return rank.running.empty() ? 0 : rank.running.back()->id;
}

std::uint64_t outermost_backward_id() {
  const AutogradRank& rank = autograd_rank();
  return rank.running.empty() ? 0 : rank.running.front()->id;
}

bool backward_runs(std::uint64_t id) {
  const AutogradRank& rank = autograd_rank();
  return std::any_of(rank.running.begin(), rank.running.end(),
                     [id](const RunningBackward* backward) { return backward->id == id; });
}

bool OncePerBackward::enter() {
  std::erase_if(called_in_, [](std::uint64_t id) { return !backward_runs(id); });
  const std::uint64_t id = backward_id();
  if (std::find(called_in_.begin(), called_in_.end(), id) != called_in_.end()) return false;
  called_in_.push_back(id);
  return true;
}

bool backward_reaches(const Tensor& leaf) {
  const AutogradRank& rank = autograd_rank();
  return !rank.running.empty() && rank.running.back()->reaches(&leaf.impl());
}

void queue_backward_callback(std::function<void()> callback) {
  AutogradRank& rank = autograd_rank();
  if (rank.running.empty())
    throw Error("queue_backward_callback: no backward is running", "queue it from a hook that backward calls");
  rank.running.back()->callbacks.push_back(std::move(callback));
}

}  // namespace lockstep
