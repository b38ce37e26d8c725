// The code shared by all optimizers: steps, state by parameter name, state dicts.
#include "engine/optim/optimizer.hpp"

#include <cmath>
#include <set>

#include "engine/autograd/autograd.hpp"
#include "engine/comm/process_group.hpp"
#include "engine/mesh/sharded.hpp"
#include "engine/optim/adam.hpp"
#include "engine/optim/sgd.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::optim {

namespace {

void require(bool holds, std::string_view type, const char* option, double value, const char* range) {
  if (!holds) throw Error(str(type, ": ", option, " is ", value), str("it must be ", range));
}

void check_options(std::string_view type, const Options& o) {
  require(o.lr >= 0 && std::isfinite(o.lr), type, "lr", o.lr, "0 or more, and finite");
  require(o.weight_decay >= 0 && std::isfinite(o.weight_decay), type, "weight_decay", o.weight_decay,
          "0 or more, and finite");
  require(o.momentum >= 0 && std::isfinite(o.momentum), type, "momentum", o.momentum, "0 or more, and finite");
  require(o.eps >= 0 && std::isfinite(o.eps), type, "eps", o.eps, "0 or more, and finite");
  require(o.beta1 >= 0 && o.beta1 < 1, type, "beta1", o.beta1, "at least 0 and below 1");
  require(o.beta2 >= 0 && o.beta2 < 1, type, "beta2", o.beta2, "at least 0 and below 1");
}

}  // namespace

Optimizer::ParameterState& Optimizer::state_of(const ParameterRef& parameter, const Tensor& tensor,
                                               const Options& options) {
  const auto [entry, is_new] = states_.try_emplace(parameter.name);
  if (is_new) {
    const device::PurposeScope purpose(device::Purpose::optimizer);
    create_state(tensor, entry->second, options);
  }
  return entry->second;
}

void Optimizer::step() {
  const comm::PhaseScope phase(comm::Phase::optimizer);
  const NoGrad no_grad;
  for (std::size_t i = 0; i < before_step_.size(); ++i) before_step_[i](*this);
  for (const Group& group : groups_) {
    std::vector<Item> items;
    items.reserve(group.parameters.size());
    for (const ParameterRef& parameter : group.parameters) {
      Tensor tensor = parameter.get();
      Tensor gradient = grad(tensor);
      if (!gradient.defined()) continue;
      if (gradient.dtype() != tensor.dtype())
        gradient = sharded_like(raw::cast(local_tensor(gradient), tensor.dtype()), gradient);
      if (tensor.is_sharded() && layout::has_partial(*tensor.layout()))
        throw Error(str(type(), ": `", parameter.name, "` is ", describe_sharded(tensor),
                        ": every rank would apply the step to its partial sum"),
                    "redistribute it to a replicated or sharded placement first");
      ParameterState& state = state_of(parameter, tensor, group.options);
      items.push_back({std::move(tensor), std::move(gradient), &state});
    }
    if (!items.empty()) update(items, group.options);
  }
  for (std::size_t i = 0; i < after_step_.size(); ++i) after_step_[i](*this);
  if (RankContext& rank = RankContext::current(); rank.has_service<StepObserver>())
    if (const auto& stepped = rank.service<StepObserver>().stepped) stepped(*this);
}

void Optimizer::zero_grad(bool set_to_none) {
  for (const Group& group : groups_)
    for (const ParameterRef& parameter : group.parameters) {
      const Tensor tensor = parameter.get();
      const Tensor gradient = grad(tensor);
      if (!gradient.defined()) continue;
      if (set_to_none)
        set_grad(tensor, Tensor());
      else
        raw::zero_(gradient);
    }
}

void Optimizer::init_state() {
  const NoGrad no_grad;
  for (const Group& group : groups_)
    for (const ParameterRef& parameter : group.parameters) {
      const Tensor tensor = parameter.get();
      if (requires_grad(tensor)) state_of(parameter, tensor, group.options);
    }
}

std::vector<std::pair<std::string, Tensor>> Optimizer::state_tensors() const {
  std::vector<std::pair<std::string, Tensor>> all;
  for (const Group& group : groups_)
    for (const ParameterRef& parameter : group.parameters) {
      const auto found = states_.find(parameter.name);
      if (found == states_.end()) continue;
      for (const auto& [key, tensor] : found->second.tensors) all.emplace_back(parameter.name + "/" + key, tensor);
    }
  return all;
}

// ---- state dicts: the step count of a parameter is a scalar named "step" on the cpu ----
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
      tensors["step"] = full({}, step, DType::float32, device::Device{});
      dict.state.emplace_back(parameter.name, std::move(tensors));
    }
  }
  return dict;
}

void Optimizer::load_state_dict(const StateDict& dict) {
  std::map<std::string, const std::map<std::string, Tensor>*> given;
  for (const auto& [name, tensors] : dict.state) given[name] = &tensors;
  if (dict.groups.size() != groups_.size())
    throw Error(str("load_state_dict into ", type(), ": loaded state dict has a different number of parameter groups, ",
                    dict.groups.size(), " instead of ", groups_.size()),
                "load the state of an optimizer with the same groups");
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    check_options(type(), dict.groups[i].second);
    const auto& names = dict.groups[i].first;
    const std::set<std::string> known(names.begin(), names.end());
    for (const ParameterRef& parameter : groups_[i].parameters)
      if (!known.contains(parameter.name))
        throw Error(str("load_state_dict into ", type(),
                        ": loaded state dict contains a parameter group that doesn't match the optimizer's: group ", i,
                        " of the state has no parameter `", parameter.name, "`"),
                    "load the state of an optimizer over the same parameters");
  }
  const NoGrad no_grad;
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    groups_[i].options = dict.groups[i].second;
    for (const ParameterRef& parameter : groups_[i].parameters) {
      const auto found = given.find(parameter.name);
      if (found == given.end()) {
        states_.erase(parameter.name);
        continue;
      }
      ParameterState& state = state_of(parameter, parameter.get(), groups_[i].options);
      for (const auto& [key, tensor] : *found->second) {
        if (key == "step") {
          state.step = static_cast<std::int64_t>(item(tensor));
          continue;
        }
        const auto slot = state.tensors.find(key);
        if (slot == state.tensors.end())
          throw Error(str("load_state_dict into ", type(), ": `", parameter.name, "` has no state `", key, "`"),
                      "load the state of an optimizer of the same type");
        if (slot->second.sizes() != tensor.sizes())
          throw Error(str("load_state_dict into ", type(), ": `", parameter.name, "/", key, "` of sizes ",
                          to_text(tensor.sizes()), " into ", to_text(slot->second.sizes())),
                      "load the state of the same model");
        const auto &mine = slot->second.layout(), &given_layout = tensor.layout();
        if (mine != given_layout && !(mine && given_layout && *mine == *given_layout))
          throw Error(str("load_state_dict into ", type(), ": `", parameter.name, "/", key, "` is ",
                          describe_sharded(tensor), ", the optimizer's is ", describe_sharded(slot->second)),
                      "distribute or redistribute it first");
        raw::copy_(slot->second, tensor);
      }
    }
  }
}

// ---- construction ----
namespace {

void check_groups(std::string_view type, const std::vector<Group>& groups) {
  if (groups.empty()) throw Error(str(type, ": no parameter groups"), "give at least one");
  std::set<std::string> names;
  for (const Group& group : groups) {
    for (const ParameterRef& parameter : group.parameters)
      if (!names.insert(parameter.name).second)
        throw Error(str(type, ": parameter `", parameter.name, "` is listed more than once"),
                    "list every parameter once");
    check_options(type, group.options);
  }
  if (names.empty())
    throw Error(str(type, ": none of the ", groups.size(), " parameter groups has a parameter"), "give at least one");
}

}  // namespace

std::unique_ptr<Optimizer> make_optimizer(std::string_view type, std::vector<Group> groups) {
  check_groups(type, groups);
  if (type == "SGD") return std::make_unique<Sgd>(std::move(groups));
  if (type == "Adam") return std::make_unique<Adam>(std::move(groups));
  if (type == "AdamW") return std::make_unique<Adam>(std::move(groups), Adam::Decay::decoupled);
  throw Error(str("there is no optimizer `", type, "`"), "use SGD, Adam or AdamW");
}

Group group_of(const std::vector<nn::NamedParameter>& parameters, const Options& options) {
  Group group;
  group.options = options;
  for (const nn::NamedParameter& parameter : parameters)
    group.parameters.push_back({parameter.path, [parameter] { return parameter.trained(); }});
  return group;
}

}  // namespace lockstep::optim
