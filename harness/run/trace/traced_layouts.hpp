// The layouts of values in a dry run. A sharded tensor that a module returns or a step makes is a tensor of the full
// sizes there, with a note of its layout. So the modules compute as the unsharded model does, and no sharding rule of
// the engine is used. Operations pass layouts on as harness/plan/layout_rules.hpp states. Where that is unknown, the
// value is noted as unknown, with the reason, and the plan leaves out the collectives of tensor parallelism.
//
// Parameters, their gradients and tensors that steps distribute are sharded tensors of this rank's local size.
// as_noted() makes a noted value of one.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/autograd/computed.hpp"
#include "engine/autograd/watch.hpp"
#include "engine/mesh/sharded.hpp"
#include "engine/tensor/loss_options.hpp"
#include "harness/plan/layout_rules.hpp"
#include "harness/plan/planner.hpp"

namespace lockstep::run {

class TracedLayouts {
 public:
  struct Report {
    std::function<void()> position;           // before collectives of the current step or module
    std::function<void()> backward_position;  // before those of a backward
    // For a leaf whose gradient a group reduces: what reports that a use adds to it, a partial sum over the axis or a
    // full gradient. Empty for other leaves.
    std::function<std::function<void()>(const Tensor&, const std::optional<plan::Axis>&)> leaf_gradient;
  };
  TracedLayouts(plan::Planner& planner, Report report);
  ~TracedLayouts();
  TracedLayouts(const TracedLayouts&) = delete;
  TracedLayouts& operator=(const TracedLayouts&) = delete;
  // That of the dry run on this rank; null in a run.
  static TracedLayouts* active();

  // ---- notes ----
  struct Note {
    std::optional<layout::ShardedLayout> layout;  // empty: unknown
    std::string unknown_because;
    plan::OpenGradientPtr open{};
    const TensorImpl* leaf = nullptr;  // a sharded one whose partial gradients `open` collects
  };
  // Aliases have the note of their tensor. The pointer is valid until the next note.
  const Note* find(const Tensor& tensor) const;
  void note(const Tensor& tensor, Note note);
  // The value that a module gets: with the layout of the note or of the sharded tensor. The collectives are left out of
  // the plan if the layout is unknown.
  plan::Value value_of(const Tensor& tensor);
  plan::Value input_value(const Tensor& tensor);
  // The value of a sharded tensor: full sizes, and a note. A plain or noted tensor is returned as it is. `in_backward`
  // runs when the gradient of the value is complete.
  Tensor as_noted(const Tensor& tensor, std::function<void()> in_backward = {});
  // Before a sharded tensor goes into a module: the partial gradients of all its uses are reduced once, when they are
  // complete, at the leaf or the operation that made it. Watches between the two do not reduce them.
  void collect_partial(const Tensor& tensor);
  Tensor input_as_noted(const Tensor& tensor);  // after collect_partial()
  // The module whose calls own the collectives of operations.
  void set_owner(std::string owner) { owner_ = std::move(owner); }
  const std::string& owner() const { return owner_; }
  // Notes the layouts of the results of an operation on these operands: of one that autograd does not report, as it has
  // no derivative, or reports without the operands that have none.
  void note_result(const char* operation, const std::vector<Tensor>& operands, const std::vector<Tensor>& results);
  // How the scenario calls the next cross-entropy; its weight may have a note.
  void set_loss(const LossOptions& options);

  // ---- changes of layouts ----
  // The result of a change: of full sizes with a note, or the local shard as a plain tensor. Forward and backward are
  // reported to the planner.
  Tensor changed(const Tensor& tensor, plan::Change change, bool keep_sharded);
  // The functions of the language. A sharded tensor stays one.
  Tensor redistribute(const Tensor& tensor, const Placements& placements);
  Tensor full_tensor(const Tensor& tensor);
  Tensor local(const Tensor& tensor);

 private:
  // Entries of one storage: different views of it have different notes.
  struct Entry {
    std::weak_ptr<Storage> storage;
    Dims sizes, strides;
    std::int64_t offset = 0;
    Note note;
  };
  // An operation on sharded tensors, while the engine computes it on their local shards.
  struct ShardedOperation {
    std::vector<Tensor> operands;     // as given
    std::vector<Tensor> first_forms;  // of operands that the operation redistributes
    std::vector<Tensor> redistributed;
    std::string name;  // of the operation on local shards; empty until it runs
  };
  plan::OpenGradientPtr collect_gradient(const Tensor& tensor, const layout::ShardedLayout& layout);
  void see(const char* operation, const std::vector<Tensor>& inputs, const std::vector<Tensor>& results);
  void see_computed(std::string_view operation, const std::vector<Tensor>& inputs);
  bool see_sharded(std::string_view operation, const std::vector<Tensor>& inputs, const std::vector<Tensor>& results);
  void end_sharded(const Tensor* result);
  bool follow_weighted(const ShardedOperation& seen, const Tensor* result);
  void follow_broadcast(const ShardedOperation& seen, const Tensor& result);
  void leave_partial(const Tensor& operand, const Tensor& result, const layout::MeshShape& mesh,
                     const std::vector<int>& axes);
  void leave_partial(const Tensor& operand, const Tensor& result);
  void see_cross_entropy(const Tensor& logits);
  const layout::ShardedLayout* layout_of(const Tensor& tensor) const;
  // A tensor of these sizes that depends on `tensor`.
  Tensor derived(const Tensor& tensor, const Dims& sizes, std::function<void()> in_backward) const;
  void issue_forward(const Tensor& tensor, const plan::Change& change);
  Tensor redistributed(const Tensor& tensor, plan::Change change);

  // Notes whether the results of a loss were computed. A selective checkpoint that has saved them
  // repeats none of its collectives.
  struct ComputedLosses : ComputationLayer {
    ComputedLosses() : ComputationLayer(Position::outermost) {}
    std::vector<Tensor> results(const char* operation, const Compute& compute) override;
    bool is_computed = false;
  };

  plan::Planner& planner_;
  Report report_;
  std::map<const Storage*, std::vector<Entry>> entries_;
  std::string owner_;
  plan::Loss loss_;
  std::string unplanned_loss_;  // why the collectives of the loss are not planned
  ShardedOperation sharded_;
  TracedLayouts* previous_ = nullptr;
  ComputedLosses losses_;
  OperationWatch watch_;
};

}  // namespace lockstep::run
