// State dicts of optimizers. The step count of a parameter is a scalar named "step" on the cpu.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/autograd/autograd.hpp"
#include "engine/core/error.hpp"
#include "engine/mesh/sharded.hpp"
#include "engine/optim/optimizer.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::optim {

namespace {

constexpr const char* step_key = "step";

Error refusal(std::string_view type, const std::string& why, const std::string& remedy) {
  return Error(str("load_state_dict into ", type, ": ", why), remedy);
}

// The number of a step count; nullopt if it is none.
std::optional<std::int64_t> step_count(const Tensor& step) {
  if (!step.defined() || step.is_sharded() || step.is_meta() || step.num_elements() != 1) return std::nullopt;
  const double value = item(step);
  constexpr double max_exact = 9007199254740992.0;  // 2^53
  if (!(value >= 0 && value <= max_exact) || value != std::floor(value)) return std::nullopt;
  return static_cast<std::int64_t>(value);
}

// Refuses a tensor that does not fit in the place of `mine`: the tensor of the state, or the parameter.
void check_form(std::string_view type, const std::string& name, const Tensor& given, const Tensor& mine) {
  if (mine.sizes() != given.sizes())
    throw refusal(type, str("`", name, "` of sizes ", to_text(given.sizes()), " into ", to_text(mine.sizes())),
                  "load the state of the same model");
  const LayoutPtr &layout = mine.layout(), &given_layout = given.layout();
  if (layout != given_layout && !(layout && given_layout && *layout == *given_layout))
    throw refusal(type,
                  str("`", name, "` is ", describe_sharded(given), ", the optimizer's is ", describe_sharded(mine)),
                  "distribute or redistribute it first");
  if (given.is_meta() && !mine.is_meta())
    throw refusal(type, str("`", name, "` is ", describe_sharded(given), ": it has no values"),
                  "give tensors on a device that has memory");
}

}  // namespace

Optimizer::StateDict Optimizer::state_dict() const {
  StateDict dict;
  for (const Group& group : groups_) {
    auto& [names, options] = dict.groups.emplace_back();
    options = group.options;
    for (const ParameterRef& parameter : group.parameters) {
      names.push_back(parameter.name);
      const auto found = states_.find(parameter.name);
      if (found == states_.end()) continue;
      std::map<std::string, Tensor> tensors = found->second.tensors;
      const double step = static_cast<double>(found->second.step);
      tensors[step_key] = full({}, step, DType::float32, device::Device{});
      dict.state.emplace_back(parameter.name, std::move(tensors));
    }
  }
  return dict;
}

void Optimizer::check_groups(const StateDict& dict) const {
  if (dict.groups.size() != groups_.size())
    throw refusal(type(),
                  str("loaded state dict has a different number of parameter groups, ", dict.groups.size(),
                      " instead of ", groups_.size()),
                  "load the state of an optimizer with the same groups");
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    check_options(type(), dict.groups[i].second);
    const auto& names = dict.groups[i].first;
    const std::set<std::string> known(names.begin(), names.end());
    std::set<std::string> mine;
    const auto refuse = [&](const char* difference, const std::string& name) {
      throw refusal(type(),
                    str("loaded state dict contains a parameter group that doesn't match the optimizer's: group ", i,
                        " of the state has ", difference, " `", name, "`"),
                    "load the state of an optimizer over the same parameters");
    };
    for (const ParameterRef& parameter : groups_[i].parameters) {
      mine.insert(parameter.name);
      if (!known.contains(parameter.name)) refuse("no parameter", parameter.name);
    }
    for (const std::string& name : names)
      if (!mine.contains(name)) refuse("another parameter", name);
  }
}

void Optimizer::check_state(const std::string& parameter, const std::map<std::string, Tensor>& state,
                            const Options& options, Missing missing) const {
  const std::vector<StateKey> keys = state_keys(options);
  const std::string same_type = "load the state of an optimizer of the same type";
  for (const auto& [key, tensor] : state) {
    if (key == step_key) {
      if (!step_count(tensor))
        throw refusal(type(),
                      str("`", parameter, "/step` is no step count: ", describe_sharded(tensor),
                          tensor.defined() && !tensor.is_meta() && tensor.num_elements() == 1
                              ? str(" of value ", item(local_tensor(tensor)))
                              : ""),
                      "give a scalar that is a whole number from 0");
      continue;
    }
    if (std::none_of(keys.begin(), keys.end(), [&key = key](const StateKey& known) { return known.key == key; }))
      throw refusal(type(), str("`", parameter, "` has no state `", key, "`"), same_type);
    if (missing == Missing::kept && !tensor.defined()) continue;
    if (!tensor.defined() || !is_floating(tensor.dtype()))
      throw refusal(type(), str("`", parameter, "/", key, "` is ", describe_sharded(tensor)),
                    "give a tensor of a floating-point type");
  }
  if (missing == Missing::kept) return;
  const auto require = [&](const std::string& key) {
    if (!state.contains(key))
      throw refusal(type(), str("the state of `", parameter, "` has no `", key, "`"), same_type);
  };
  for (const StateKey& key : keys)
    if (key.is_needed) require(key.key);
  require(step_key);
}

void Optimizer::load_state_dict(const StateDict& dict, Missing missing) {
  const NoGrad no_grad;
  check_groups(dict);
  std::map<std::string, const std::map<std::string, Tensor>*> given;
  for (const auto& [name, tensors] : dict.state) given[name] = &tensors;

  std::map<std::string, Tensor> parameters;  // those with a state
  for (std::size_t i = 0; i < groups_.size(); ++i)
    for (const ParameterRef& parameter : groups_[i].parameters) {
      const auto found = given.find(parameter.name);
      if (found == given.end()) continue;
      check_state(parameter.name, *found->second, dict.groups[i].second, missing);
      const Tensor& tensor = parameters.emplace(parameter.name, parameter.get()).first->second;
      const auto held = states_.find(parameter.name);
      for (const auto& [key, value] : *found->second) {
        if (key == step_key || !value.defined()) continue;
        const bool has_own = held != states_.end() && held->second.tensors.contains(key);
        check_form(type(), str(parameter.name, "/", key), value, has_own ? held->second.tensors.at(key) : tensor);
      }
    }

  // The states after the load, with the memory of those that are new.
  std::map<std::string, ParameterState> states;
  for (std::size_t i = 0; i < groups_.size(); ++i)
    for (const ParameterRef& parameter : groups_[i].parameters) {
      const auto found = parameters.find(parameter.name);
      if (found == parameters.end()) continue;
      const std::map<std::string, Tensor>& values = *given.at(parameter.name);
      ParameterState& state = states[parameter.name];
      const Options& options = dict.groups[i].second;
      if (const auto held = states_.find(parameter.name); held != states_.end()) state = held->second;
      if (missing == Missing::kept)
        for (const StateKey& known : state_keys(options))
          if (!known.is_needed && !values.contains(known.key)) state.tensors.erase(known.key);
      add_state(found->second, state, options);
      if (missing == Missing::refused)
        std::erase_if(state.tensors, [&values](const auto& entry) { return !values.contains(entry.first); });
      const device::PurposeScope purpose(device::Purpose::optimizer);
      for (const auto& [key, value] : values)
        if (key != step_key && !state.tensors.contains(key)) state.tensors[key] = zeros_like(found->second);
      if (const auto step = values.find(step_key); step != values.end()) state.step = *step_count(step->second);
    }

  // A value may be a tensor of this state in another place, so that such values are kept before any is written.
  std::set<const Storage*> written;
  for (const auto& [name, state] : states)
    for (const auto& [key, tensor] : state.tensors) written.insert(tensor.storage().get());
  std::vector<std::pair<Tensor, Tensor>> copies;
  for (const auto& [name, state] : states)
    for (const auto& [key, value] : *given.at(name)) {
      if (key == step_key || !value.defined()) continue;
      const Tensor& to = state.tensors.at(key);
      const bool is_overwritten = !value.same_as(to) && written.contains(value.storage().get());
      copies.emplace_back(to, is_overwritten ? sharded_like(raw::clone(local_tensor(value)), value) : value);
    }

  for (std::size_t i = 0; i < groups_.size(); ++i) groups_[i].options = dict.groups[i].second;
  for (const auto& [to, value] : copies) raw::copy_(to, value);
  states_ = std::move(states);
}

}  // namespace lockstep::optim
