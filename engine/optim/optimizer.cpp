// The code shared by all optimizers: steps and state by parameter name; optimizer_state.cpp has the state dicts.
#include "engine/optim/optimizer.hpp"

#include <atomic>
#include <cmath>
#include <set>

#include "engine/autograd/autograd.hpp"
#include "engine/autograd/grad_of_peers.hpp"
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

}  // namespace

void check_options(std::string_view type, const Options& o) {
  require(o.lr >= 0 && std::isfinite(o.lr), type, "lr", o.lr, "0 or more, and finite");
  require(o.weight_decay >= 0 && std::isfinite(o.weight_decay), type, "weight_decay", o.weight_decay,
          "0 or more, and finite");
  require(o.momentum >= 0 && std::isfinite(o.momentum), type, "momentum", o.momentum, "0 or more, and finite");
  require(o.eps >= 0 && std::isfinite(o.eps), type, "eps", o.eps, "0 or more, and finite");
  require(o.beta1 >= 0 && o.beta1 < 1, type, "beta1", o.beta1, "at least 0 and below 1");
  require(o.beta2 >= 0 && o.beta2 < 1, type, "beta2", o.beta2, "at least 0 and below 1");
}

std::uint64_t Optimizer::next_number() {
  static std::atomic<std::uint64_t> next{1};
  return next++;
}

Optimizer::ParameterState& Optimizer::state_of(const ParameterRef& parameter, const Tensor& tensor,
                                               const Options& options) {
  const auto [entry, is_new] = states_.try_emplace(parameter.name);
  if (is_new) add_state(tensor, entry->second, options);
  return entry->second;
}

void Optimizer::add_state(const Tensor& parameter, ParameterState& state, const Options& options) const {
  const device::PurposeScope purpose(device::Purpose::optimizer, &parameter.name());
  for (const auto& [key, is_needed] : state_keys(options))
    if (is_needed && !state.tensors.contains(key)) state.tensors[key] = zeros_like(parameter);
}

void Optimizer::check_fits(const ParameterRef& parameter, const Tensor& tensor, const ParameterState& state) const {
  if (tensor.is_meta() || tensor.num_elements() == 0) return;  // the update leaves it out
  for (const auto& [key, held] : state.tensors)
    if (held.dtype() != tensor.dtype() || held.sizes() != tensor.sizes())
      throw Error(str(type(), ": the state of `", parameter.name, "` does not fit: `", key, "` is ",
                      describe_sharded(held), ", the parameter is ", describe_sharded(tensor)),
                  "make a new optimizer after the model was cast or a parameter was replaced");
}

void Optimizer::step() {
  const comm::PhaseScope phase(comm::Phase::optimizer);
  const NoGrad no_grad;
  for (std::size_t i = 0; i < before_step_.size(); ++i) before_step_[i](*this);
  std::set<const TensorImpl*> seen;  // a parameter may have been tied to another one since
  for (const Group& group : groups_) {
    std::vector<Item> items;
    items.reserve(group.parameters.size());
    for (const ParameterRef& parameter : group.parameters) {
      Tensor tensor = parameter.get();
      Tensor gradient = grad(tensor);
      if (!gradient.defined() || !seen.insert(&tensor.impl()).second) continue;
      if (gradient.dtype() != tensor.dtype())
        gradient = sharded_like(raw::cast(local_tensor(gradient), tensor.dtype()), gradient);
      if (tensor.is_sharded() && layout::has_partial(*tensor.layout()))
        throw Error(str(type(), ": `", parameter.name, "` is ", describe_sharded(tensor),
                        ": every rank would apply the step to its partial sum"),
                    "redistribute it to a replicated or sharded placement first");
      ParameterState& state = state_of(parameter, tensor, group.options);
      check_fits(parameter, tensor, state);
      items.push_back({std::move(tensor), std::move(gradient), &state});
    }
    if (!items.empty()) update(items, group.options);
    // A later group may fail, and a hook after the step may clear the gradients or run a forward.
    if (RankContext& rank = RankContext::current(); rank.has_service<StepObserver>())
      if (const auto& stepped = rank.service<StepObserver>().stepped) stepped(*this, group);
  }
  for (std::size_t i = 0; i < after_step_.size(); ++i) after_step_[i](*this);
}

void Optimizer::zero_grad(bool set_to_none) {
  for (const Group& group : groups_)
    for (const ParameterRef& parameter : group.parameters) {
      const Tensor tensor = parameter.get();
      if (set_to_none) {
        set_grad(tensor, Tensor());
        continue;
      }
      forget_kept_back(tensor);
      if (const Tensor gradient = grad(tensor); gradient.defined()) raw::zero_(gradient);
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
