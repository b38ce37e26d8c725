#include "harness/run/trace/traced_flat_optimizers.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "engine/autograd/autograd.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/nn/state_slots.hpp"
#include "engine/tensor/ops.hpp"
#include "harness/run/trace/stand_in.hpp"

namespace lockstep::run {

namespace {

constexpr const char* step_key = "step";

// The state that an optimizer of this type makes for a tensor.
std::map<std::string, DType> keys_of(std::string_view type, const optim::Options& options, DType dtype) {
  const Tensor probe = empty({1}, dtype, device::Device{device::Kind::meta});
  set_requires_grad(probe, true);
  const auto optimizer = optim::make_optimizer(type, {{{{"p", [probe] { return probe; }}}, options}});
  optimizer->init_state();
  std::map<std::string, DType> keys;
  for (const auto& [name, tensor] : optimizer->state_tensors())
    keys.emplace(name.substr(name.find('/') + 1), tensor.dtype());
  return keys;
}

}  // namespace

// ---- parameters ----
std::vector<std::vector<TracedFlatOptimizers::Trained>> TracedFlatOptimizers::trained_by(
    const OptimizerPtr& optimizer) const {
  std::vector<std::vector<Trained>> groups;
  for (const optim::Group& group : optimizer->groups()) {
    std::vector<Trained>& trained = groups.emplace_back();
    for (const optim::ParameterRef& parameter : group.parameters) {
      const Tensor tensor = parameter.get();
      trained.push_back({parameter.name, tensor, shards_.trained_as(tensor)});
    }
  }
  return groups;
}

// "u1._flat_param" stands for "u1.l1.weight", ...
std::vector<TracedFlatOptimizers::Original> TracedFlatOptimizers::originals_of(const Trained& trained,
                                                                               std::size_t position) const {
  if (!trained.part || !trained.part->is_chunk)
    return {{trained.name, position, trained.part ? trained.part->index : 0}};
  const TracedShards::Group& group = shards_.unit(trained.part->unit);
  const std::size_t dot = trained.name.rfind('.');
  const std::string prefix = dot == std::string::npos ? "" : trained.name.substr(0, dot + 1);
  const std::vector<nn::StateSlot> slots = nn::state_slots(group.flat->modules.front());
  std::vector<Original> originals;
  for (std::size_t i = 0; i < group.parameters.size(); ++i) {
    const TracedShards::Slot& first = group.parameters[i].slots.front();
    const auto at = std::find_if(slots.begin(), slots.end(), [&](const nn::StateSlot& slot) {
      return !slot.is_buffer && slot.owner == first.owner && slot.index == first.index;
    });
    originals.push_back({prefix + at->path, position, i});
  }
  return originals;
}

// A group with a flat parameter has the order of the models before sharding: a flat parameter stands behind the
// parameters of its module. Models stand in the order in which the group names them first.
std::vector<TracedFlatOptimizers::Original> TracedFlatOptimizers::originals_in_order(
    const std::vector<Trained>& group) const {
  std::vector<Original> originals;
  std::vector<std::vector<nn::StateSlot>> models;
  for (std::size_t i = 0; i < group.size(); ++i) {
    for (Original& original : originals_of(group[i], i)) originals.push_back(std::move(original));
    if (group[i].part && group[i].part->is_chunk)
      models.push_back(nn::state_slots(shards_.unit(group[i].part->unit).flat->modules.front()));
  }
  if (models.empty()) return originals;
  // Of a unit below another one, the tree of the outermost counts.
  std::stable_sort(models.begin(), models.end(), [](const auto& a, const auto& b) { return a.size() > b.size(); });
  struct Place {
    std::size_t model = 0, position = 0;
  };
  const auto place_of = [&](const Original& original) -> std::optional<Place> {
    const Trained& trained = group[original.trained];
    for (std::size_t model = 0; model < models.size(); ++model)
      for (std::size_t at = 0; at < models[model].size(); ++at) {
        const nn::StateSlot& slot = models[model][at];
        if (slot.is_buffer) continue;
        bool is_same = slot.owner->parameters[slot.index].trained().same_as(trained.tensor);
        if (trained.part && trained.part->is_chunk) {
          const auto& first = shards_.unit(trained.part->unit).parameters[original.index].slots.front();
          is_same = slot.owner == first.owner && slot.index == first.index;
        }
        if (is_same) return Place{model, at};
      }
    return std::nullopt;
  };
  std::map<std::size_t, std::size_t> first_of_model;
  std::vector<std::pair<std::pair<std::size_t, std::size_t>, Original>> placed;
  for (std::size_t i = 0; i < originals.size(); ++i) {
    const std::optional<Place> place = place_of(originals[i]);
    if (place) first_of_model.try_emplace(place->model, i);
    placed.emplace_back(
        place ? std::pair(first_of_model.at(place->model), place->position) : std::pair(originals.size(), i),
        originals[i]);
  }
  std::stable_sort(placed.begin(), placed.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (std::size_t i = 0; i < placed.size(); ++i) originals[i] = std::move(placed[i].second);
  return originals;
}

std::vector<std::string> TracedFlatOptimizers::original_names(const OptimizerPtr& optimizer) const {
  std::vector<std::string> names;
  for (const std::vector<Trained>& group : trained_by(optimizer))
    for (Original& original : originals_in_order(group)) names.push_back(std::move(original.name));
  return names;
}

bool TracedFlatOptimizers::converts(const OptimizerPtr& optimizer) const {
  for (const std::vector<Trained>& group : trained_by(optimizer))
    for (const Trained& one : group)
      if (one.part) return shards_.unit(one.part->unit).flat->state.type != plan::StateType::local;
  return false;
}

// ---- which parameters have state ----
void TracedFlatOptimizers::note(const OptimizerPtr& optimizer, bool needs_gradient) {
  const NoGrad no_grad;
  const std::vector<std::vector<Trained>> groups = trained_by(optimizer);
  for (std::size_t i = 0; i < groups.size(); ++i)
    for (const Trained& one : groups[i]) {
      if (!one.part || !requires_grad(one.tensor)) continue;
      const TracedShards::Group& group = shards_.unit(one.part->unit);
      const TracedShards::Parameter& parameter = group.parameters[one.part->index];
      if (needs_gradient && !TracedShards::has_gradient(group, parameter)) continue;
      const bool is_divided = group.flat->settings.choices.shards || parameter.inner;
      const bool has_elements = one.part->is_chunk || !is_divided ||
                                std::find(parameter.sizes.begin(), parameter.sizes.end(), 0) == parameter.sizes.end();
      if (!has_elements) continue;
      known_[optimizer][one.name].merge(
          keys_of(optimizer->type(), optimizer->groups()[i].options, group.flat->chunk.dtype()));
    }
}

void TracedFlatOptimizers::note_step(const OptimizerPtr& optimizer) { note(optimizer, true); }
void TracedFlatOptimizers::note_init(const OptimizerPtr& optimizer) { note(optimizer, false); }

void TracedFlatOptimizers::note_local_load(const OptimizerPtr& optimizer) {
  const NoGrad no_grad;
  const optim::Optimizer::StateDict dict = optimizer->state_dict();
  const std::map<std::string, StateTensors> held(dict.state.begin(), dict.state.end());
  const std::vector<std::vector<Trained>> groups = trained_by(optimizer);
  std::map<std::string, Keys>& known = known_[optimizer];
  known.clear();
  for (std::size_t i = 0; i < groups.size(); ++i)
    for (const Trained& one : groups[i]) {
      if (!one.part) continue;
      const DType dtype = shards_.unit(one.part->unit).flat->chunk.dtype();
      if (const auto at = held.find(one.name); at != held.end()) {
        Keys& keys = known[one.name];
        for (const auto& [key, tensor] : at->second)
          if (key != step_key) keys[key] = dtype;
      } else if (one.tensor.num_elements() == 0 && requires_grad(one.tensor) && !held.empty()) {
        known[one.name] = keys_of(optimizer->type(), dict.groups[i].second, dtype);
      }
    }
}

const TracedFlatOptimizers::Keys* TracedFlatOptimizers::known(const OptimizerPtr& optimizer,
                                                              const std::string& name) const {
  const auto of_optimizer = known_.find(optimizer);
  if (of_optimizer == known_.end()) return nullptr;
  const auto at = of_optimizer->second.find(name);
  return at == of_optimizer->second.end() ? nullptr : &at->second;
}

// ---- saving ----
// One all-gather per key, in the order of the keys.
std::map<std::string, TracedFlatOptimizers::StateTensors> TracedFlatOptimizers::state_of_unit(
    const OptimizerPtr& optimizer, const std::vector<Trained>& members) {
  const TracedShards::Group& group = shards_.unit(members.front().part->unit);
  const TracedShards::FlatUnit& unit = *group.flat;
  const bool keeps = !unit.state.only_first_rank || !unit.settings.choices.shards || unit.rank == 0;
  std::map<std::string, StateTensors> state;
  Keys keys;
  for (const Trained& one : members) {
    const Keys* of_one = known(optimizer, one.name);
    if (!of_one) continue;
    keys.insert(of_one->begin(), of_one->end());
    if (!keeps) continue;
    for (const Original& original : originals_of(one, 0))
      state[original.name][step_key] = empty({}, DType::float32, stand_in(device::Device{}));
  }
  for (const auto& [key, dtype] : keys) {
    plan::Planner::FlatState gathered{unit.id, dtype};
    for (const Trained& one : members) {
      const Keys* of_one = known(optimizer, one.name);
      if (!of_one || !of_one->contains(key)) continue;
      for (const Original& original : originals_of(one, 0)) {
        const TracedShards::Parameter& parameter = group.parameters[original.index];
        if (parameter.inner) gathered.distributed.push_back(*parameter.inner);
        if (keeps) state[original.name][key] = TracedShards::state_tensor(group, parameter, dtype, unit.state);
      }
    }
    planner_.save_flat_state(gathered, unit.state.type);
  }
  return state;
}

optim::Optimizer::StateDict TracedFlatOptimizers::state_of(const OptimizerPtr& optimizer) {
  const NoGrad no_grad;
  std::vector<std::vector<Trained>> units;  // in the order of their first parameter
  for (const std::vector<Trained>& group : trained_by(optimizer))
    for (const Trained& one : group) {
      if (!one.part) continue;
      const auto at = std::find_if(units.begin(), units.end(), [&](const std::vector<Trained>& members) {
        return members.front().part->unit == one.part->unit;
      });
      (at == units.end() ? units.emplace_back() : *at).push_back(one);
    }
  std::map<std::string, StateTensors> made;
  for (const std::vector<Trained>& members : units) made.merge(state_of_unit(optimizer, members));
  return in_order(optimizer, made);
}

optim::Optimizer::StateDict TracedFlatOptimizers::state_of_first_rank(const OptimizerPtr& optimizer) const {
  const NoGrad no_grad;
  const auto scalar = [](DType dtype) { return empty({}, dtype, device::Device{device::Kind::meta}); };
  std::map<std::string, StateTensors> made;
  for (const std::vector<Trained>& group : trained_by(optimizer))
    for (const Trained& one : group) {
      const Keys* keys = one.part ? known(optimizer, one.name) : nullptr;
      if (!keys) continue;
      for (const Original& original : originals_of(one, 0)) {
        StateTensors& tensors = made[original.name];
        tensors[step_key] = scalar(DType::float32);
        for (const auto& [key, dtype] : *keys) tensors[key] = scalar(dtype);
      }
    }
  return in_order(optimizer, made);
}

// The state dict of all parameters, in the order of the originals. Those outside of units have the state that the
// optimizer holds.
optim::Optimizer::StateDict TracedFlatOptimizers::in_order(const OptimizerPtr& optimizer,
                                                           const std::map<std::string, StateTensors>& of_units) const {
  const std::vector<std::vector<Trained>> groups = trained_by(optimizer);
  const optim::Optimizer::StateDict as_held = optimizer->state_dict();
  std::map<std::string, const StateTensors*> held;
  for (const auto& [name, tensors] : as_held.state) held[name] = &tensors;
  optim::Optimizer::StateDict dict;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    auto& [names, options] = dict.groups.emplace_back();
    options = as_held.groups[i].second;
    for (const Original& original : originals_in_order(groups[i])) {
      names.push_back(original.name);
      if (!groups[i][original.trained].part) {
        if (const auto at = held.find(original.name); at != held.end())
          dict.state.emplace_back(original.name, *at->second);
      } else if (const auto at = of_units.find(original.name); at != of_units.end()) {
        dict.state.emplace_back(*at);
      }
    }
  }
  return dict;
}

// ---- loading ----
void TracedFlatOptimizers::load_state(const OptimizerPtr& optimizer, const optim::Optimizer::StateDict& dict) {
  const NoGrad no_grad;
  std::map<std::string, const StateTensors*> given;
  for (const auto& [name, tensors] : dict.state) given[name] = &tensors;
  optim::Optimizer::StateDict made;
  const std::vector<std::vector<Trained>> groups = trained_by(optimizer);
  std::map<std::string, Keys>& known = known_[optimizer];
  for (std::size_t i = 0; i < groups.size(); ++i) {
    auto& [names, options] = made.groups.emplace_back();
    if (i < dict.groups.size()) options = dict.groups[i].second;
    for (const Trained& one : groups[i]) {
      names.push_back(one.name);
      known.erase(one.name);
      const bool is_held = one.tensor.num_elements() > 0;
      StateTensors tensors;
      for (const Original& original : originals_of(one, 0)) {
        const auto at = given.find(original.name);
        if (at == given.end()) continue;
        for (const auto& [key, tensor] : *at->second) {
          if (key == step_key) {
            tensors[key] = full({}, 0.0, DType::float32, device::Device{});
            continue;
          }
          tensors[key] = zeros_like(one.tensor);
          if (!one.part) continue;
          const TracedShards::Group& group = shards_.unit(one.part->unit);
          const TracedShards::Parameter& parameter = group.parameters[original.index];
          const Dims sizes =
              parameter.inner ? layout::local_sizes(*parameter.inner, RankContext::current().rank()) : parameter.sizes;
          planner_.load_flat_state(one.part->unit, sizes, tensor.dtype(), group.flat->state.type);
          known[one.name][key] = group.flat->chunk.dtype();
        }
        if (one.part) known.try_emplace(one.name);
      }
      if (!tensors.empty() && (is_held || !one.part)) made.state.emplace_back(one.name, std::move(tensors));
    }
  }
  optimizer->load_state_dict(made);
}

void TracedFlatOptimizers::load_saved(const OptimizerPtr& optimizer, const optim::Optimizer::StateDict& saved,
                                      bool partial) {
  const NoGrad no_grad;
  const std::map<std::string, StateTensors> given(saved.state.begin(), saved.state.end());
  optim::Optimizer::StateDict after = optimizer->state_dict();
  std::map<std::string, StateTensors> held;
  if (partial) held.insert(after.state.begin(), after.state.end());
  after.state.clear();
  const std::vector<std::vector<Trained>> groups = trained_by(optimizer);
  std::map<std::string, Keys>& known = known_[optimizer];
  for (std::size_t i = 0; i < groups.size(); ++i) {
    if (i < saved.groups.size()) after.groups[i].second = saved.groups[i].second;
    for (const Trained& one : groups[i]) {
      if (!partial) known.erase(one.name);
      const auto own = held.find(one.name);
      bool has_state = own != held.end();
      StateTensors tensors;
      if (has_state)
        for (const auto& [key, tensor] : own->second)
          if (key != step_key) tensors[key] = Tensor();
      for (const Original& original : originals_of(one, 0)) {
        const auto at = given.find(original.name);
        if (at == given.end()) continue;
        has_state = true;
        tensors.insert(at->second.begin(), at->second.end());
        if (!one.part) continue;
        Keys& keys = known[one.name];
        for (const auto& [key, tensor] : at->second) keys[key] = shards_.unit(one.part->unit).flat->chunk.dtype();
      }
      const bool is_held = !one.part || one.tensor.num_elements() > 0;
      if (has_state && is_held) after.state.emplace_back(one.name, std::move(tensors));
    }
  }
  optimizer->load_state_dict(after, optim::Optimizer::Missing::kept);
}

}  // namespace lockstep::run
