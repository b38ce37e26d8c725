#include "engine/parallel/flat_trained.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"
#include "engine/nn/state_slots.hpp"
#include "engine/parallel/flat_units.hpp"

namespace lockstep::parallel {

std::vector<std::vector<Trained>> trained_by(optim::Optimizer& optimizer) {
  const std::map<const TensorImpl*, FlatMember> members = flat_members();
  std::vector<std::vector<Trained>> groups;
  for (const optim::Group& group : optimizer.groups()) {
    auto& trained = groups.emplace_back();
    for (const optim::ParameterRef& parameter : group.parameters) {
      if (const std::string owner = owner_of_summoned(parameter.get()); !owner.empty())
        throw Error("Cannot manually unshard parameters when already unsharding parameters",
                    str("leave the summon_full_parameters that holds ", owner, " first"));
      const auto at = members.find(&parameter.get().impl());
      const FlatMember member = at == members.end() ? FlatMember() : at->second;
      trained.push_back(
          {parameter.name, member.unit, member.index, member.unit && !member.unit->has_original_parameters()});
    }
  }
  return groups;
}

std::vector<Original> originals_of(const Trained& trained) {
  if (!trained.is_chunk) return {{trained.name, trained.index}};
  const std::size_t dot = trained.name.rfind('.');
  const std::string prefix = dot == std::string::npos ? "" : trained.name.substr(0, dot + 1);
  std::vector<Original> originals;
  for (std::size_t i = 0; i < trained.unit->num_parameters(); ++i)
    originals.push_back({prefix + trained.unit->parameter_name(i), i});
  return originals;
}

namespace {

// Where parameters stand in the models of the units: (model, slot of its tree). Of a unit below another one the tree of
// the outermost counts.
class ModelOrder {
 public:
  using Place = std::pair<std::size_t, std::size_t>;

  explicit ModelOrder(std::vector<std::vector<nn::StateSlot>> trees) {
    std::stable_sort(trees.begin(), trees.end(), [](const auto& a, const auto& b) { return a.size() > b.size(); });
    for (std::size_t tree = 0; tree < trees.size(); ++tree)
      for (std::size_t i = 0; i < trees[tree].size(); ++i) {
        const nn::StateSlot& slot = trees[tree][i];
        if (slot.is_buffer) continue;
        slots_.try_emplace({slot.owner.get(), slot.index}, tree, i);
        tensors_.try_emplace(&slot.owner->parameters[slot.index].trained().impl(), tree, i);
      }
  }
  std::optional<Place> of(const Trained& trained, std::size_t index, const Tensor& tensor) const {
    if (trained.is_chunk) {
      const ParameterSlotRef& slot = trained.unit->parameter(index).slots.front();
      const auto at = slots_.find({slot.owner.lock().get(), slot.slot});
      return at == slots_.end() ? std::nullopt : std::optional(at->second);
    }
    const auto at = tensors_.find(&tensor.impl());
    return at == tensors_.end() ? std::nullopt : std::optional(at->second);
  }

 private:
  std::map<std::pair<const nn::Module*, std::size_t>, Place> slots_;
  std::map<const TensorImpl*, Place> tensors_;
};

}  // namespace

std::vector<std::vector<TrainedOriginal>> originals_in_order(optim::Optimizer& optimizer,
                                                             const std::vector<std::vector<Trained>>& groups) {
  std::vector<std::vector<TrainedOriginal>> made;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    std::vector<TrainedOriginal>& originals = made.emplace_back();
    std::vector<std::vector<nn::StateSlot>> trees;
    for (const Trained& one : groups[i]) {
      for (const Original& original : originals_of(one)) originals.push_back({&one, original});
      if (const nn::ModulePtr module = one.is_chunk ? module_of(*one.unit) : nullptr)
        trees.push_back(nn::state_slots(module));
    }
    if (trees.empty() || defect_armed(Defect::flat_state_in_order_of_units)) continue;
    const ModelOrder order(std::move(trees));
    std::map<const Trained*, Tensor> tensors;
    for (std::size_t k = 0; k < groups[i].size(); ++k)
      tensors[&groups[i][k]] = optimizer.groups()[i].parameters[k].get();
    // Models, and parameters of none, stand in the order in which the optimizer has them first.
    std::map<std::size_t, std::size_t> first;
    std::vector<std::pair<std::pair<std::size_t, std::size_t>, TrainedOriginal>> placed;
    for (std::size_t k = 0; k < originals.size(); ++k) {
      const auto place = order.of(*originals[k].trained, originals[k].original.index, tensors.at(originals[k].trained));
      if (place) first.try_emplace(place->first, k);
      placed.emplace_back(place ? std::pair(first.at(place->first), place->second) : std::pair(k, std::size_t{0}),
                          originals[k]);
    }
    std::stable_sort(placed.begin(), placed.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    for (std::size_t k = 0; k < placed.size(); ++k) originals[k] = placed[k].second;
  }
  return made;
}

}  // namespace lockstep::parallel
