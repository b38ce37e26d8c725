#include "harness/run/trace/traced_layouts.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

#include "engine/autograd/autograd.hpp"
#include "engine/autograd/computed.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/tensor/ops.hpp"
#include "harness/plan/layout_rules.hpp"

namespace lockstep::run {

namespace {

// The operation by which the dry run changes layouts itself.
constexpr std::string_view change_name = "planned_change";
constexpr std::string_view loss_name = "cross_entropy";

bool is_one_with_weights(std::string_view operation) {
  return operation == "linear" || operation == "layer_norm" || operation == "rms_norm";
}

struct Active {
  explicit Active(RankContext&) {}
  TracedLayouts* layouts = nullptr;
};

LayoutPtr shared(layout::ShardedLayout layout) {
  return std::make_shared<const layout::ShardedLayout>(std::move(layout));
}

}  // namespace

TracedLayouts::TracedLayouts(plan::Planner& planner, Report report)
    : planner_(planner),
      report_(std::move(report)),
      previous_(std::exchange(RankContext::current().service<Active>().layouts, this)),
      watch_([this](const char* operation, const std::vector<Tensor>& inputs,
                    const std::vector<Tensor>& results) { see(operation, inputs, results); },
             [this](const char* operation, const std::vector<Tensor>& inputs) { see_computed(operation, inputs); }) {}

TracedLayouts::~TracedLayouts() { RankContext::current().service<Active>().layouts = previous_; }

TracedLayouts* TracedLayouts::active() {
  RankContext* rank = RankContext::current_or_null();
  return rank && rank->has_service<Active>() ? rank->service<Active>().layouts : nullptr;
}

// ---- notes ----
const TracedLayouts::Note* TracedLayouts::find(const Tensor& tensor) const {
  if (entries_.empty() || !tensor.defined()) return nullptr;
  const auto at = entries_.find(tensor.storage().get());
  if (at == entries_.end()) return nullptr;
  for (const Entry& entry : at->second)
    if (!entry.storage.expired() && entry.sizes == tensor.sizes() && entry.strides == tensor.strides() &&
        entry.offset == tensor.offset())
      return &entry.note;
  return nullptr;
}

void TracedLayouts::note(const Tensor& tensor, Note note) {
  std::vector<Entry>& of_storage = entries_[tensor.storage().get()];
  std::erase_if(of_storage, [&](const Entry& entry) {
    return entry.storage.expired() ||
           (entry.sizes == tensor.sizes() && entry.strides == tensor.strides() && entry.offset == tensor.offset());
  });
  of_storage.push_back({tensor.storage(), tensor.sizes(), tensor.strides(), tensor.offset(), std::move(note)});
}

const layout::ShardedLayout* TracedLayouts::layout_of(const Tensor& tensor) const {
  if (tensor.is_sharded()) return tensor.layout().get();
  const Note* note = find(tensor);
  return note && note->layout ? &*note->layout : nullptr;
}

plan::Value TracedLayouts::value_of(const Tensor& tensor) {
  plan::Value value{tensor.sizes(), tensor.dtype(), {}};
  if (const layout::ShardedLayout* layout = layout_of(tensor)) value.layout = *layout;
  if (const Note* note = find(tensor)) {
    if (!value.layout) planner_.leave_out_tensor_parallel(note->unknown_because);
    value.open = note->open;
  }
  return value;
}

// The value of a sharded tensor whose gradient may stay partial until it is complete.
plan::Value TracedLayouts::input_value(const Tensor& tensor) {
  plan::Value value = value_of(tensor);
  if (!value.layout || value.open || !find(tensor)) return value;
  value.open = collect_gradient(tensor, *value.layout);
  note(tensor, {value.layout, {}, value.open});
  return value;
}

// The plan reduces the partial gradients of a tensor when they are complete, before the operation that made it.
plan::OpenGradientPtr TracedLayouts::collect_gradient(const Tensor& tensor, const layout::ShardedLayout& layout) {
  auto open = std::make_shared<plan::OpenGradient>();
  if (!requires_grad(tensor)) return open;
  add_hook(tensor, [this, value = plan::Value{tensor.sizes(), tensor.dtype(), layout, open}](const Tensor&) {
    if (!value.open->is_partial) return Tensor();
    report_.backward_position();
    planner_.tensor_parallel().backward(value);
    return Tensor();
  });
  return open;
}

// ---- operations ----
std::vector<Tensor> TracedLayouts::ComputedLosses::results(const char* operation, const Compute& compute) {
  is_computed = is_computed || operation == loss_name;
  return compute();
}

// A recomputation may end before it sees the results of its last operation.
void TracedLayouts::see_computed(std::string_view operation, const std::vector<Tensor>& inputs) {
  const auto is_sharded = [](const Tensor& input) { return input.defined() && input.is_sharded(); };
  const bool is_next = !sharded_.operands.empty() && sharded_.name.empty() && operation != "from_local";
  if (is_next && std::none_of(inputs.begin(), inputs.end(), is_sharded)) sharded_.name = operation;
  if (operation != loss_name || !std::exchange(losses_.is_computed, false)) return;
  if (inputs[0].is_sharded()) return;
  if (const Note* note = find(inputs[0]); note && note->layout) see_cross_entropy(inputs[0]);
}

void TracedLayouts::see(const char* operation, const std::vector<Tensor>& inputs, const std::vector<Tensor>& results) {
  if (operation == change_name || see_sharded(operation, inputs, results)) return;
  note_result(operation, inputs, results);
}

void TracedLayouts::note_result(const char* operation, const std::vector<Tensor>& inputs,
                                const std::vector<Tensor>& results) {
  const Note* unknown = nullptr;
  bool is_noted = false;
  std::vector<plan::Operand> operands;
  for (const Tensor& input : inputs) {
    if (!input.defined()) continue;
    const Note* note = find(input);
    if (note && !note->layout) unknown = note;
    is_noted = is_noted || note;
    operands.push_back({input.sizes(), note ? note->layout : std::nullopt});
  }
  if (!is_noted) return;
  std::string why;
  if (unknown) why = unknown->unknown_because;
  const auto first = std::find_if(operands.begin(), operands.end(), [](const auto& one) { return one.layout; });
  for (const Tensor& result : results) {
    if (!result.defined()) continue;
    Note note;
    if (why.empty()) note.layout = plan::layout_after(operation, operands, result.sizes());
    if (!note.layout)
      note.unknown_because = !why.empty() ? why
                                          : str("the layout after `", operation, "` of ", first->layout->text(),
                                                " in line ", RankContext::current().scenario_line, " is unknown");
    if (note.layout) note.open = collect_gradient(result, *note.layout);
    this->note(result, std::move(note));
  }
}

// An operation on sharded tensors: the engine computes it on local shards, by rules that the plan does not use. It may
// redistribute them first, unless it is local in any layout. Returns whether an operand is sharded.
bool TracedLayouts::see_sharded(std::string_view operation, const std::vector<Tensor>& inputs,
                                const std::vector<Tensor>& results) {
  for (const Tensor& input : inputs) {
    if (!input.defined() || !input.is_sharded()) continue;
    if (!sharded_.name.empty()) end_sharded(nullptr);  // the operation before it has no result
    if (plan::is_in_place(operation)) {                // the tape records it on the sharded tensor itself
      sharded_.operands.insert(sharded_.operands.begin(), input);
      sharded_.name = operation;
      end_sharded(&results.at(0));
      return true;
    }
    if (operation == "redistribute") {
      sharded_.first_forms.push_back(input);
      sharded_.redistributed.push_back(results.at(0));
    }
    if (operation == "to_local") {
      const auto at = std::find_if(sharded_.redistributed.begin(), sharded_.redistributed.end(),
                                   [&](const Tensor& made) { return made.same_as(input); });
      sharded_.operands.push_back(
          at == sharded_.redistributed.end()
              ? input
              : sharded_.first_forms[static_cast<std::size_t>(at - sharded_.redistributed.begin())]);
    }
    return true;
  }
  if (sharded_.operands.empty()) return false;
  if (operation == "from_local") {
    end_sharded(&results.at(0));
    return false;
  }
  const bool is_local = plan::is_local_operation(operation);
  if (sharded_.name.empty() || !is_local) sharded_.name = operation;
  const bool has_weights = is_one_with_weights(operation);
  if (!has_weights && (!is_local || !sharded_.first_forms.empty())) end_sharded(nullptr);
  return false;
}

void TracedLayouts::set_loss(const LossOptions& options) {
  const Note* weight = find(options.weight);
  loss_.divides_by_weights = options.reduction == Reduction::mean && (options.weight.defined() || options.ignore_index);
  loss_.shards_weight = weight && weight->layout && layout::has_shard(*weight->layout);
  unplanned_loss_.clear();
  if (weight && !weight->layout) unplanned_loss_ = weight->unknown_because;
  if (weight && weight->layout && layout::has_partial(*weight->layout))
    unplanned_loss_ = str("`cross_entropy` with the weight ", weight->layout->text());
}

// For an operation that is neither local nor known to need no collective, the plan does not know what it communicates.
// `result`: null if the operation has none, or if it ended a recomputation.
void TracedLayouts::end_sharded(const Tensor* result) {
  const ShardedOperation seen = std::exchange(sharded_, {});
  if (follow_weighted(seen, result)) return;
  if (result && requires_grad(*result)) follow_broadcast(seen, *result);
  const int line = RankContext::current().scenario_line;
  for (const Tensor& form : seen.first_forms)
    planner_.leave_out_tensor_parallel(str("an operation in line ", line, " redistributes ", form.layout()->text()));
  if (!seen.name.empty() && !plan::is_local_operation(seen.name))
    planner_.leave_out_tensor_parallel(
        str("`", seen.name, "` of ", seen.operands.front().layout()->text(), " in line ", line));
}

// Returns whether the plan knows the operation.
bool TracedLayouts::follow_weighted(const ShardedOperation& seen, const Tensor* result) {
  std::vector<layout::ShardedLayout> layouts;
  layouts.reserve(seen.operands.size());
  for (const Tensor& operand : seen.operands) layouts.push_back(*operand.layout());
  const auto reading = plan::weighted_reading(seen.name, layouts);
  if (!reading || (result && !(reading->result == *result->layout()))) return false;
  if (!result || !requires_grad(*result)) return true;
  if (reading->input_gradient_is_partial) leave_partial(seen.operands[0], *result);
  for (std::size_t i = 1; i < seen.operands.size(); ++i)
    leave_partial(seen.operands[i], *result, layouts[i].mesh, reading->partial_axes);
  return true;
}

// Backward of an element-wise operation leaves a partial gradient of an operand that is repeated along a sharded dim.
void TracedLayouts::follow_broadcast(const ShardedOperation& seen, const Tensor& result) {
  std::vector<layout::ShardedLayout> layouts;
  layouts.reserve(seen.operands.size());
  for (const Tensor& operand : seen.operands) layouts.push_back(*operand.layout());
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    if (!requires_grad(seen.operands[i])) continue;
    const std::vector<int> axes = plan::axes_of_partial_gradient(seen.name, layouts, i);
    const auto& placements = layouts[i].placements;
    const auto num_replicated = std::count_if(placements.begin(), placements.end(),
                                              [](const layout::Placement& one) { return one.is_replicate(); });
    if (axes.empty() || static_cast<std::ptrdiff_t>(axes.size()) == num_replicated)
      leave_partial(seen.operands[i], result, layouts[i].mesh, axes);
    else  // a partial gradient is reduced over all axes that replicate the operand
      planner_.leave_out_tensor_parallel(str("backward of `", seen.name, "` in line ",
                                             RankContext::current().scenario_line, " with ", layouts[i].text()));
  }
}

// The same over each of these axes. A group that reduces the gradient of a leaf plans it itself: it hears of each use.
void TracedLayouts::leave_partial(const Tensor& operand, const Tensor& result, const layout::MeshShape& mesh,
                                  const std::vector<int>& axes) {
  if (!requires_grad(operand)) return;
  const auto reports = [&](const std::optional<plan::Axis>& over) {
    std::function<void()> report;
    if (is_leaf(operand)) report = report_.leaf_gradient(operand, over);
    if (report)
      add_hook(result, [report](const Tensor&) {
        report();
        return Tensor();
      });
    return static_cast<bool>(report);
  };
  if (axes.empty()) reports({});
  for (const int axis : axes)
    if (!reports(plan::Axis{mesh.names()[static_cast<std::size_t>(axis)], mesh.size(axis)}))
      leave_partial(operand, result);
}

// Backward of the result leaves a partial gradient of the operand.
void TracedLayouts::leave_partial(const Tensor& operand, const Tensor& result) {
  if (!requires_grad(operand)) return;
  collect_partial(operand);
  add_hook(result, [open = find(operand)->open, owner = owner_](const Tensor&) {
    *open = {true, owner};
    return Tensor();
  });
}

void TracedLayouts::see_cross_entropy(const Tensor& logits) {
  report_.position();
  const layout::ShardedLayout& layout = *find(logits)->layout;
  if (layout::has_partial(layout)) unplanned_loss_ = str("`cross_entropy` of ", layout.text());
  if (!unplanned_loss_.empty())
    return planner_.leave_out_tensor_parallel(str(unplanned_loss_, " in line ", RankContext::current().scenario_line));
  const DType wide = size_of(logits.dtype()) == 2 ? DType::float32 : logits.dtype();
  const plan::TensorParallelPlan& plan = planner_.tensor_parallel();
  plan.issue(owner_, layout.mesh, plan::cross_entropy_movements(layout, loss_, plan.rank()), wide);
}

// ---- changes of layouts ----
Tensor TracedLayouts::derived(const Tensor& tensor, const Dims& sizes, std::function<void()> in_backward) const {
  return record(change_name.data(), empty(sizes, tensor.dtype(), tensor.device()), {tensor}, {},
                [in_backward = std::move(in_backward), like = detach(tensor)](const Backward&) -> Gradients {
                  if (in_backward) in_backward();
                  const Tensor local = empty(like.sizes(), like.dtype(), like.device());
                  return {like.is_sharded() ? make_sharded(local, layout::gradient_layout(like.layout())) : local};
                });
}

Tensor TracedLayouts::as_noted(const Tensor& tensor, std::function<void()> in_backward) {
  if (!tensor.is_sharded()) return tensor;
  Tensor made = derived(tensor, tensor.layout()->sizes, std::move(in_backward));
  note(made, {*tensor.layout(), {}});
  return made;
}

void TracedLayouts::collect_partial(const Tensor& tensor) {
  if (!tensor.is_sharded() || !requires_grad(tensor)) return;
  const layout::ShardedLayout& layout = *tensor.layout();
  const TensorImpl* leaf = is_leaf(tensor) ? &tensor.impl() : nullptr;
  const Note* known = find(tensor);
  if (known && known->layout && *known->layout == layout && (!leaf || known->leaf == leaf)) return;
  note(tensor, {layout, {}, collect_gradient(tensor, layout), leaf});
}

Tensor TracedLayouts::input_as_noted(const Tensor& tensor) {
  collect_partial(tensor);
  Tensor made = as_noted(tensor);
  const Note* source = tensor.is_sharded() ? find(tensor) : nullptr;
  if (source && source->open) note(made, {*tensor.layout(), {}, source->open});
  return made;
}

Tensor TracedLayouts::changed(const Tensor& tensor, plan::Change change, bool keep_sharded) {
  const bool is_noted = find(tensor) != nullptr;
  const layout::ShardedLayout to = change.result_layout();
  issue_forward(tensor, change);
  if (is_noted && keep_sharded && change.from == to && change.gradient == plan::gradient_placements(to.placements))
    return tensor;
  if (keep_sharded) change.result = std::make_shared<plan::OpenGradient>();
  const Dims sizes = keep_sharded ? to.sizes : layout::local_sizes(to, planner_.tensor_parallel().rank());
  Tensor made = derived(tensor, sizes, [this, change] {
    report_.backward_position();
    planner_.tensor_parallel().backward(change);
  });
  if (keep_sharded) note(made, {to, {}, change.result});
  return made;
}

// A selective checkpoint that saves redistributions does not repeat them in a recomputation.
void TracedLayouts::issue_forward(const Tensor& tensor, const plan::Change& change) {
  if (change.from.placements == change.to) return;
  (void)computed("redistribute", [&] {
    report_.position();
    planner_.tensor_parallel().forward(change);
    return tensor;
  });
}

Tensor TracedLayouts::redistributed(const Tensor& tensor, plan::Change change) {
  issue_forward(tensor, change);
  change.result = std::make_shared<plan::OpenGradient>();
  const LayoutPtr to = shared(change.result_layout());
  const Tensor local =
      empty(layout::local_sizes(*to, planner_.tensor_parallel().rank()), tensor.dtype(), tensor.device());
  Tensor made = record(
      change_name.data(), make_sharded(local, to), {tensor}, {},
      [this, change, like = detach(tensor)](const Backward&) -> Gradients {
        report_.backward_position();
        planner_.tensor_parallel().backward(change);
        return {make_sharded(empty(like.sizes(), like.dtype(), like.device()), layout::gradient_layout(like.layout()))};
      });
  note(made, {*to, {}, change.result});
  return made;
}

Tensor TracedLayouts::redistribute(const Tensor& tensor, const Placements& placements) {
  const plan::Value value = value_of(tensor);
  if (!value.layout) return lockstep::redistribute(tensor, placements);                 // throws: the tensor is plain
  const layout::ShardedLayout to = layout::with_placements(*value.layout, placements);  // throws if they do not fit
  if (tensor.is_sharded() && to == *value.layout) return tensor;
  const plan::Change change = plan::TensorParallelPlan::by_step(owner_, *value.layout, placements, value.dtype);
  return tensor.is_sharded() ? redistributed(tensor, change) : changed(tensor, change, true);
}

Tensor TracedLayouts::full_tensor(const Tensor& tensor) {
  const plan::Value value = value_of(tensor);
  if (!value.layout) return tensor;
  const Placements replicated(value.layout->placements.size());
  return changed(tensor, plan::TensorParallelPlan::by_step(owner_, *value.layout, replicated, value.dtype), false);
}

Tensor TracedLayouts::local(const Tensor& tensor) {
  if (tensor.is_sharded() && !recording({tensor})) return local_tensor(tensor);
  if (tensor.is_sharded()) return derived(tensor, tensor.sizes(), {});
  const Note* note = find(tensor);
  if (!note || !note->layout) return tensor;
  return changed(tensor,
                 plan::TensorParallelPlan::by_step(owner_, *note->layout, note->layout->placements, tensor.dtype()),
                 false);
}

}  // namespace lockstep::run
