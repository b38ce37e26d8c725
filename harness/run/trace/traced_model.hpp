// The modules and tensors of a dry run as the planner knows them: each has a number. The planner sees these numbers,
// the tree of modules, and sizes and types of tensors, but no module and no tensor.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <vector>

#include "engine/nn/module.hpp"
#include "harness/plan/planner.hpp"

namespace lockstep::run {

class TracedModel {
 public:
  // `on_gradient` runs when a backward has added to the gradient of a leaf.
  TracedModel(const plan::Planner& planner, std::function<void(plan::TensorId)> on_gradient)
      : planner_(planner), on_gradient_(std::move(on_gradient)) {}

  plan::ModuleId id_of(const nn::ModulePtr& module);
  plan::TensorId id_of(const Tensor& tensor);
  const nn::ModulePtr& module(plan::ModuleId id) const { return modules_[static_cast<std::size_t>(id)]; }
  // The tensor that first had this number.
  const Tensor& tensor(plan::TensorId id) const { return tensors_[static_cast<std::size_t>(id)]; }

  // From now on `tensor` has the number `id`, and the tensor that first had it does not.
  void replace(plan::TensorId id, const Tensor& tensor);

  // The tree below `root` as it is now.
  plan::Facts facts_of(const nn::ModulePtr& root);

  // The floating leaves that the current backward reaches, except those for which `is_left_out` holds.
  std::set<plan::TensorId> reached_by_backward(const std::function<bool(const Tensor&)>& is_left_out) const;

 private:
  const plan::Planner& planner_;
  std::function<void(plan::TensorId)> on_gradient_;
  std::map<const nn::Module*, plan::ModuleId> module_ids_;
  std::map<const TensorImpl*, plan::TensorId> tensor_ids_;
  // These are kept alive, so that no other object gets their address.
  std::vector<nn::ModulePtr> modules_;
  std::vector<Tensor> tensors_, replacements_;
};

}  // namespace lockstep::run
