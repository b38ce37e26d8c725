#include "engine/autograd/selective.hpp"

#include <algorithm>
#include <array>

#include "engine/autograd/ops.hpp"
#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"
#include "engine/core/rank_context.hpp"

namespace lockstep {

namespace {

// Views have no results of their own; the others have no derivative or write into an operand.
constexpr std::array not_saved{
    "view",   "reshape", "flatten",    "transpose", "permute", "slice", "select", "expand", "squeeze", "unsqueeze",
    "split",  "chunk",   "contiguous", "detach",    "eq",      "ne",    "lt",     "le",     "gt",      "ge",
    "argmax", "add_",    "sub_",       "mul_",      "div_",    "relu_", "copy_",  "zero_",  "fill_",   "batch_norm"};

std::vector<Tensor> without_history(const std::vector<Tensor>& tensors) {
  std::vector<Tensor> aliases;
  aliases.reserve(tensors.size());
  for (const Tensor& tensor : tensors) aliases.push_back(tensor.defined() ? detach(tensor) : Tensor());
  return aliases;
}

bool equal(const Generator::State& a, const Generator::State& b) {
  return a.engine == b.engine && a.has_cached == b.has_cached;
}

}  // namespace

std::vector<std::string> saveable_operations() {
  std::vector<std::string> names;
  for (const std::string_view name : ops::operation_names)
    if (std::find(not_saved.begin(), not_saved.end(), name) == not_saved.end()) names.emplace_back(name);
  names.emplace_back("redistribute");
  return names;
}

SavePolicyFunction save_operations(std::vector<SavedOperation> operations) {
  const std::vector<std::string> known = saveable_operations();
  for (const SavedOperation& operation : operations) {
    if (std::find(known.begin(), known.end(), operation.name) == known.end()) {
      std::string all;
      for (const std::string& name : known) all += str(all.empty() ? "" : ", ", name);
      throw Error(str("checkpoint: the results of `", operation.name, "` cannot be saved"), str("name some of ", all));
    }
    if (operation.every < 1)
      throw Error(str("checkpoint: one of every ", operation.every, " results of `", operation.name, "` to save"),
                  "give a number of at least 1");
  }
  return [operations = std::move(operations)](std::string_view name, std::int64_t call) {
    for (const SavedOperation& operation : operations)
      if (operation.name == name && call % operation.every == 0) return SavePolicy::must_save;
    return SavePolicy::prefer_recompute;
  };
}

KeptResults::KeptResults(SavePolicyFunction policy, bool restore_random_state, std::string title)
    : policy_(std::move(policy)), restore_random_state_(restore_random_state), title_(std::move(title)) {}

std::vector<Tensor> KeptResults::first(const char* operation, const ComputationLayer::Compute& compute) {
  const std::size_t number = operations_[operation].calls.size();
  operations_[operation].calls.emplace_back();
  if (policy_(operation, static_cast<std::int64_t>(number)) == SavePolicy::prefer_recompute) return compute();
  const Generator& generator = RankContext::current().generator();
  const Generator::State before = generator.state();
  std::vector<Tensor> results = compute();
  Results kept{without_history(results), {}, {}};
  for (const Tensor& tensor : kept.tensors) kept.versions.push_back(tensor.defined() ? tensor.storage()->version() : 0);
  if (restore_random_state_ && !equal(before, generator.state())) kept.after = generator.state();
  operations_[operation].calls[number] = std::move(kept);
  return results;
}

std::vector<Tensor> KeptResults::again(const char* operation, const ComputationLayer::Compute& compute) {
  Calls& calls = operations_[operation];
  const std::size_t number = calls.num_again++;
  if (number >= calls.calls.size())
    throw Error(str(title_, "the recomputation calls ", operation, " more often than the forward, which called it ",
                    calls.calls.size(), " times"),
                "let the function do the same operations both times");
  const std::optional<Results>& kept = calls.calls[number];
  if (!kept || defect_armed(Defect::checkpoint_saved_computed_again)) return compute();
  require_unchanged(operation, number, *kept);
  if (kept->after && !defect_armed(Defect::checkpoint_saved_draws_nothing))
    RankContext::current().generator().set_state(*kept->after);
  return without_history(kept->tensors);
}

void KeptResults::require_unchanged(const char* operation, std::size_t number, const Results& kept) const {
  for (std::size_t i = 0; i < kept.tensors.size(); ++i) {
    const Tensor& tensor = kept.tensors[i];
    if (!tensor.defined() || tensor.storage()->version() == kept.versions[i]) continue;
    throw Error(str(title_, "the saved result of ", operation, " (call ", number, " in the region), ",
                    name_of(tensor.dtype()), " ", to_text(tensor.sizes()), ", was changed in place: it was at version ",
                    kept.versions[i], " and is at version ", tensor.storage()->version()),
                "change a copy, or let the policy recompute the operation");
  }
}

void KeptResults::begin_recomputation() {
  for (auto& [operation, calls] : operations_) calls.num_again = 0;
}

std::vector<Tensor> KeptResults::Scope::results(const char* operation, const Compute& compute) {
  if (!kept_ || !grad_enabled()) return compute();
  return recomputes_ ? kept_->again(operation, compute) : kept_->first(operation, compute);
}

}  // namespace lockstep
