#include "engine/state/load_parts.hpp"

#include <algorithm>

#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"
#include "engine/parallel/flat_held_state.hpp"
#include "engine/state/optimizer_values.hpp"

namespace lockstep::state {

namespace {

using StateDict = optim::Optimizer::StateDict;

constexpr auto kept = optim::Optimizer::Missing::kept;

// Loading these dicts keeps tensors and step counts, and creates or removes the state of parameters.
StateDict without_tensors(const StateDict& dict) {
  StateDict names;
  names.groups = dict.groups;
  for (const auto& [name, tensors] : dict.state) names.state.emplace_back(name, std::map<std::string, Tensor>());
  return names;
}

Tensor step_tensor(std::int64_t step) { return full({}, static_cast<double>(step), DType::float32, device::Device{}); }

}  // namespace

OptimizerLoad::OptimizerLoad(const std::string& name, optim::Optimizer& optimizer, const Index& index, bool partial)
    : name_(name), optimizer_(optimizer), before_(without_tensors(optimizer.state_dict())), after_(before_) {
  check_groups(index, partial);
  const auto originals = parallel::original_names_of(optimizer);
  StateDict present = before_;
  after_.state.clear();
  for (const auto& [names, options] : before_.groups)
    for (const std::string& parameter : names) {
      const bool had_state = std::any_of(before_.state.begin(), before_.state.end(),
                                         [&](const auto& entry) { return entry.first == parameter; });
      const std::optional<std::int64_t> step = saved_step(originals.at(parameter), index);
      if (!step) {
        if (partial && had_state) after_.state.emplace_back(parameter, std::map<std::string, Tensor>());
        if (!partial && had_state)
          for (const std::string& original : originals.at(parameter))
            removed_.push_back(optimizer_key(name, original, ""));
        continue;
      }
      if (!had_state) present.state.emplace_back(parameter, std::map<std::string, Tensor>());
      std::map<std::string, Tensor> values;
      if (!defect_armed(Defect::loaded_step_forgotten)) values["step"] = step_tensor(*step);
      after_.state.emplace_back(parameter, std::move(values));
    }
  present.groups = after_.groups;  // refused here if they are out of range
  optimizer_.load_state_dict(present, kept);
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
