// Checkpointed regions.
//
// Each tensor that a node inside a region saves is represented by a slot. The node owns the slot and the region refers
// to it weakly, so slots of destroyed nodes are not filled. The saved-tensor hooks of the nodes own the region.
#include "engine/autograd/checkpoint.hpp"

#include <algorithm>

#include "engine/autograd/node.hpp"
#include "engine/autograd/selective.hpp"
#include "engine/core/defects.hpp"

namespace lockstep {

namespace {

class Region;

struct Slot {
  std::size_t number = 0;  // in the order of saving
  TensorInfo info;
  const char* operation = "";
  SavedTensor filled;  // set by a recomputation, until it is read
};

// Ends a recomputation once all needed tensors are saved. It is not an Error, so handlers of errors do not catch it.
struct RecomputationDone {};

class Region : public std::enable_shared_from_this<Region> {
 public:
  Region(std::function<void(const std::vector<Tensor>&)> function, const std::vector<Tensor>& inputs,
         CheckpointOptions options)
      : function_(std::move(function)), options_(std::move(options)) {
    inputs_.reserve(inputs.size());
    for (const Tensor& input : inputs) {
      inputs_.push_back(save_tensor(input, "checkpoint"));
      needs_gradient_.push_back(needs_gradient(input));
    }
    if (options_.preserve_random_state) random_ = RankContext::current().generator().state();
    if (options_.policy) kept_.emplace(options_.policy, options_.preserve_random_state, title());
  }

  KeptResults* kept() { return kept_ ? &*kept_ : nullptr; }
  // The hooks for the nodes of the first forward.
  SavedTensorHooks forward_hooks() {
    return {
        [self = shared_from_this()](const Tensor& tensor) { return self->add_slot(tensor); },
        [self = shared_from_this()](const PackedTensor& slot) { return self->read(*static_cast<Slot*>(slot.get())); }};
  }

 private:
  PackedTensor add_slot(const Tensor& tensor) {
    auto slot = std::make_shared<Slot>();
    slot->number = slots_.size();
    slot->info = info_of(tensor);
    slot->operation = autograd_rank().saving;
    if (defect_armed(Defect::checkpoint_keeps_activations)) [[unlikely]]
      slot->filled.tensor = tensor;
    slots_.push_back(slot);
    return slot;
  }

  Tensor read(Slot& slot) {
    if (filled_in_ != backward_id()) clear();
    if (!slot.filled.tensor.defined()) recompute();
    LOCKSTEP_CHECK(slot.filled.tensor.defined(), "tensor ", slot.number, " saved by ", slot.operation);
    // A slot is read once per backward. The node that reads it then owns the memory.
    const SavedTensor filled = std::move(slot.filled);
    slot.filled = {};
    return unpack_saved(filled, slot.operation, static_cast<int>(slot.number));
  }

  void recompute();
  void fill_slots(std::size_t num_wanted);
  void recompute_once(std::size_t num_wanted);
  void check(std::size_t num_saved, std::size_t num_wanted) const;
  void clear() {
    for (const auto& weak : slots_)
      if (const auto slot = weak.lock()) slot->filled = {};
    recomputed_infos_.clear();
  }
  std::string title() const {
    return options_.name.empty() ? "checkpoint: " : str("checkpoint of ", options_.name, ": ");
  }

  std::function<void(const std::vector<Tensor>&)> function_;
  CheckpointOptions options_;
  std::vector<SavedTensor> inputs_;
  std::vector<bool> needs_gradient_;
  std::optional<Generator::State> random_;
  std::optional<KeptResults> kept_;  // of a selective checkpoint
  std::vector<std::weak_ptr<Slot>> slots_;
  std::vector<TensorInfo> recomputed_infos_;  // tensors saved by the recomputation, in the order of saving
  std::uint64_t filled_in_ = 0;               // the backward for which the slots are filled
};

// Sets the generator to its state at the forward, and restores it at the end.
class RandomStateScope {
 public:
  explicit RandomStateScope(const std::optional<Generator::State>& state) {
    if (!state || defect_armed(Defect::checkpoint_random_state_not_restored)) return;
    Generator& generator = RankContext::current().generator();
    before_ = generator.state();
    generator.set_state(*state);
  }
  ~RandomStateScope() {
    if (before_) RankContext::current().generator().set_state(*before_);
  }
  RandomStateScope(const RandomStateScope&) = delete;
  RandomStateScope& operator=(const RandomStateScope&) = delete;

 private:
  std::optional<Generator::State> before_;
};

class RecomputationScope {
 public:
  RecomputationScope() { ++autograd_rank().recomputations; }
  ~RecomputationScope() { --autograd_rank().recomputations; }
  RecomputationScope(const RecomputationScope&) = delete;
  RecomputationScope& operator=(const RecomputationScope&) = delete;
};

void Region::recompute() {
  clear();
  filled_in_ = backward_id();
  AutogradRank& rank = autograd_rank();
  if (!rank.running.empty())
    rank.running.back()->at_end.emplace_back([weak = weak_from_this()] {
      if (const auto region = weak.lock()) region->clear();
    });
  std::size_t num_wanted = slots_.size();  // up to the last slot that a node owns
  while (num_wanted > 0 && slots_[num_wanted - 1].expired()) --num_wanted;
  try {
    fill_slots(num_wanted);
    check(recomputed_infos_.size(), num_wanted);
  } catch (...) {
    clear();
    throw;
  }
}

void Region::fill_slots(std::size_t num_wanted) {
  recompute_once(num_wanted);
  if (defect_armed(Defect::checkpoint_recomputes_twice)) [[unlikely]]
    recompute_once(num_wanted);
}

void Region::recompute_once(std::size_t num_wanted) {
  recomputed_infos_.clear();
  // Inputs are unpacked first, because that may recompute an outer region.
  std::vector<Tensor> inputs;
  inputs.reserve(inputs_.size());
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    const Tensor saved = unpack_saved(inputs_[i], "checkpoint", static_cast<int>(i));
    Tensor input = saved.defined() ? detach(saved) : Tensor();
    if (needs_gradient_[i]) set_requires_grad(input, true);
    inputs.push_back(std::move(input));
  }
  const RecomputationScope scope;
  const RandomStateScope random(random_);
  if (options_.before_recomputing) options_.before_recomputing();
  const GradMode recording(true);
  if (kept_) kept_->begin_recomputation();
  const KeptResults::Scope keeping(kept(), true);
  const SavedTensorHooksScope hooks(
      {[this, num_wanted](const Tensor& tensor) -> PackedTensor {
         const std::size_t number = recomputed_infos_.size();
         recomputed_infos_.push_back(info_of(tensor));
         if (number < num_wanted)
           if (const auto slot = slots_[number].lock()) {
             slot->filled.tensor = tensor;
             slot->filled.version = tensor.storage()->version();
           }
         if (number + 1 == num_wanted) throw RecomputationDone{};
         // A backward inside the function reads it through the unpack hook.
         return std::make_shared<Tensor>(tensor);
       },
       [](const PackedTensor& packed) { return *static_cast<const Tensor*>(packed.get()); }});
  try {
    function_(inputs);
  } catch (const RecomputationDone&) {  // of this region: its hooks are the innermost
  }
}

void Region::check(std::size_t num_saved, std::size_t num_wanted) const {
  if (num_saved < num_wanted)
    throw Error(
        str(title(),
            "A different number of tensors was saved during the original forward and recomputation. The forward "
            "saved ",
            slots_.size(), ", of which the first ", num_wanted, " are needed, the recomputation ", num_saved),
        "let the function do the same operations both times");
  if (options_.determinism == DeterminismCheck::none) return;
  std::string differences;
  for (std::size_t i = 0; i < num_wanted; ++i) {
    const auto slot = slots_[i].lock();
    if (!slot) continue;
    const TensorInfo& before = slot->info;
    const TensorInfo& now = recomputed_infos_[i];
    if (before.sizes == now.sizes && before.dtype == now.dtype && before.device == now.device) continue;
    auto text = [](const TensorInfo& info) {
      return str(name_of(info.dtype), " ", to_text(info.sizes), " on ", to_text(info.device));
    };
    differences += str("\n  tensor ", i, ", saved by ", slot->operation, ": ", text(before), " in the forward, ",
                       text(now), " in the recomputation");
  }
  if (differences.empty()) return;
  throw Error(
      str(title(), "Recomputed values for the following tensors have different metadata than during the forward pass.",
          differences),
      "let the function do the same operations, on inputs and parameters of the same sizes and types, both times");
}

}  // namespace

void run_checkpointed(const std::function<void()>& first, std::function<void(const std::vector<Tensor>&)> again,
                      const std::vector<Tensor>& inputs, const CheckpointOptions& options) {
  if (!grad_enabled()) {  // no saved tensors
    first();
    return;
  }
  const auto region = std::make_shared<Region>(std::move(again), inputs, options);
  const SavedTensorHooksScope hooks(region->forward_hooks());
  std::optional<KeptResults::Scope> keeping;
  if (region->kept()) keeping.emplace(region->kept(), false);
  first();
}

bool recomputing() { return recomputation_depth() > 0; }
int recomputation_depth() { return autograd_rank().recomputations; }

}  // namespace lockstep
