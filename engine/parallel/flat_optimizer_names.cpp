// The names of an optimizer's parameters and their positions in its groups.
#include <map>

#include "engine/core/error.hpp"
#include "engine/parallel/flat_optimizer_state.hpp"

namespace lockstep::parallel {

namespace {

OptimizerState renamed(const OptimizerState& state, const std::map<std::string, std::string>& names) {
  OptimizerState made;
  for (const auto& [name, tensors] : state.state) made.state.emplace_back(names.at(name), tensors);
  for (const auto& [of_group, options] : state.groups) {
    auto& group = made.groups.emplace_back();
    for (const std::string& name : of_group) group.first.push_back(names.at(name));
    group.second = options;
  }
  return made;
}

}  // namespace

OptimizerState keyed_by_position(const OptimizerState& state) {
  std::map<std::string, std::string> names;
  for (const auto& [of_group, options] : state.groups)
    for (const std::string& name : of_group) names.emplace(name, std::to_string(names.size()));
  for (const auto& [name, tensors] : state.state)
    if (!names.contains(name))
      throw Error(str("the state of `", name, "` belongs to no group of the state dict"), "give a complete state dict");
  return renamed(state, names);
}

OptimizerState keyed_by_name(const OptimizerState& state, const std::vector<std::string>& known) {
  std::map<std::string, std::string> names;
  for (std::size_t i = 0; i < known.size(); ++i) names.emplace(std::to_string(i), known[i]);
  const auto check = [&](const std::string& position) {
    if (!names.contains(position))
      throw Error(str("the state dict has the parameter `", position, "`, the optimizer positions 0 to ",
                      known.empty() ? 0 : known.size() - 1),
                  "give the state of an optimizer over the same parameters, by position");
  };
  for (const auto& [name, tensors] : state.state) check(name);
  for (const auto& [of_group, options] : state.groups)
    for (const std::string& name : of_group) check(name);
  return renamed(state, names);
}

}  // namespace lockstep::parallel
