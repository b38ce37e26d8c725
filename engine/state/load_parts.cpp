#include "engine/state/load_parts.hpp"

#include <algorithm>
#include <set>

#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"
#include "engine/parallel/flat_held_state.hpp"
#include "engine/parallel/flat_optimizer_state.hpp"
#include "engine/state/optimizer_values.hpp"

namespace lockstep::state {

namespace {

using StateDict = optim::Optimizer::StateDict;

constexpr auto kept = optim::Optimizer::Missing::kept;

// The same names and keys with undefined tensors. Loading such dicts keeps values and step counts, and creates or
// removes the state of parameters.
StateDict without_tensors(const StateDict& dict) {
  StateDict names;
  names.groups = dict.groups;
  for (const auto& [name, tensors] : dict.state) {
    std::map<std::string, Tensor>& keys = names.state.emplace_back(name, std::map<std::string, Tensor>()).second;
    for (const auto& [key, tensor] : tensors)
      if (key != "step") keys[key] = Tensor();
  }
  return names;
}

Tensor step_tensor(std::int64_t step) { return full({}, static_cast<double>(step), DType::float32, device::Device{}); }

}  // namespace

OptimizerLoad::OptimizerLoad(const std::string& name, optim::Optimizer& optimizer, const Index& index, bool partial)
    : name_(name), optimizer_(optimizer), before_(without_tensors(optimizer.state_dict())), after_(before_) {
  check_groups(index, partial);
  const auto originals = parallel::original_names_of(optimizer);
  const std::set<std::string> elsewhere = parallel::names_elsewhere(optimizer);
  const std::map<std::string, Keys> held(before_.state.begin(), before_.state.end());
  StateDict present;
  present.groups = after_.groups;  // refused by the load below if they are out of range
  after_.state.clear();
  for (const auto& [names, options] : after_.groups)
    for (const std::string& parameter : names) {
      const auto own = held.find(parameter);
      const bool had_state = own != held.end();
      if (had_state) present.state.emplace_back(parameter, own->second);
      const std::optional<std::int64_t> step = saved_step(originals.at(parameter), index);
      if (!step) {
        if (partial && had_state) after_.state.emplace_back(parameter, own->second);
        if (!partial && had_state)
          for (const std::string& original : originals.at(parameter))
            removed_.push_back(optimizer_key(name, original, ""));
        continue;
      }
      if (!had_state && elsewhere.contains(parameter)) continue;
      Keys keys = loaded_keys(originals.at(parameter), had_state ? own->second : Keys(), options, index, partial);
      if (!had_state) present.state.emplace_back(parameter, Keys());
      present.state.back().second.insert(keys.begin(), keys.end());
      if (!defect_armed(Defect::loaded_step_forgotten)) keys["step"] = step_tensor(*step);
      after_.state.emplace_back(parameter, std::move(keys));
    }
  optimizer_.load_state_dict(present, kept);
}

// The keys that a parameter with state in the checkpoint has after the load, with undefined tensors. Those that it
// loses are removed from the tree.
OptimizerLoad::Keys OptimizerLoad::loaded_keys(const std::vector<std::string>& originals, const Keys& held,
                                               const optim::Options& options, const Index& index, bool partial) {
  Keys keys;
  for (const optim::Optimizer::StateKey& known : optimizer_.state_keys(options)) {
    const std::string& key = known.key;
    const bool is_saved = std::any_of(originals.begin(), originals.end(), [&](const std::string& original) {
      return index.tensors.contains(optimizer_key(name_, original, key));
    });
    if (is_saved || (partial && held.contains(key)))
      keys[key] = Tensor();
    else if (!known.is_needed && held.contains(key))
      for (const std::string& original : originals) removed_.push_back(optimizer_key(name_, original, key));
  }
  return keys;
}

// The step count of the parameters that a parameter of the optimizer stands for; nullopt: they have no state.
std::optional<std::int64_t> OptimizerLoad::saved_step(const std::vector<std::string>& originals,
                                                      const Index& index) const {
  std::optional<std::int64_t> step;
  for (const std::string& original : originals) {
    const std::string key = optimizer_key(name_, original, "step");
    const auto found = index.values.find(key);
    std::optional<std::int64_t> own;
    if (found != index.values.end()) own = integer_from_text(found->second, key);
    if (own && (*own < 0 || *own > std::int64_t{1} << 53))
      throw Error(str("`", key, "` is ", *own, ", which is no step count"), "restore the checkpoint from a copy");
    if (&original == &originals.front()) step = own;
    if (own != step)
      throw Error(str("`", name_, "` has one state of `", originals.front(), "` and `", original,
                      "`, and the checkpoint ", "has different step counts of them"),
                  "use the original parameters");
  }
  return step;
}

bool OptimizerLoad::removes(const std::string& key) const {
  return std::any_of(removed_.begin(), removed_.end(),
                     [&key](const std::string& prefix) { return key.starts_with(prefix); });
}

void OptimizerLoad::check_groups(const Index& index, bool partial) {
  const auto originals = parallel::original_names_of(optimizer_);
  // A key that is missing is refused by the load of all plain values.
  const auto value = [&index](const std::string& key) {
    const auto found = index.values.find(key);
    return found == index.values.end() ? nullptr : &found->second;
  };
  const std::string type_key = name_ + ".type";
  if (const std::string* type = value(type_key); type && word_from_text(*type, type_key) != optimizer_.type())
    throw Error(str("`", name_, "` is an optimizer ", optimizer_.type(), ", and the checkpoint has the state of ",
                    word_from_text(*type, type_key)),
                "load it into an optimizer of that type");
  for (std::size_t i = 0; i < after_.groups.size(); ++i) {
    const std::string key = str(name_, ".groups.", i);
    const std::string* text = value(key);
    if (!text) continue;
    auto [names, options] = group_from_text(*text, key);
    std::vector<std::string> mine;
    for (const std::string& parameter : after_.groups[i].first)
      for (const std::string& original : originals.at(parameter)) mine.push_back(original);
    std::sort(mine.begin(), mine.end());
    std::sort(names.begin(), names.end());
    if (mine != names && !partial)
      throw Error(str("group ", i, " of the optimizer `", name_, "` has ", mine.size(), " parameters, and that of the ",
                      "checkpoint ", names.size(), ", not all of the same names"),
                  "load it into an optimizer over the same parameters, with the same groups");
    if (!defect_armed(Defect::loaded_options_forgotten)) after_.groups[i].second = options;
  }
}

OptimizerLoad::~OptimizerLoad() {
  if (!is_committed_) optimizer_.load_state_dict(before_, kept);
}

void OptimizerLoad::commit() {
  optimizer_.load_state_dict(after_, kept);
  is_committed_ = true;
}

}  // namespace lockstep::state
