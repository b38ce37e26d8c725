#include "harness/scenario/call_arguments.hpp"

#include <algorithm>
#include <utility>

#include "engine/core/text.hpp"

namespace lockstep::scenario {

void check_function_arguments(const Expr& call, const FunctionSpec& spec, const ReportError& report) {
  const int given = static_cast<int>(call.num_positional());
  int by_name = 0;
  for (const std::string& keyword : call.names) {
    if (std::find(spec.keywords.begin(), spec.keywords.end(), keyword) == spec.keywords.end()) {
      report(call, str("unknown argument `", keyword, "` of ", spec.name, "()", suggestion(keyword, spec.keywords)));
    }
    const auto at = std::find(spec.names.begin(), spec.names.end(), keyword);
    if (at == spec.names.end()) continue;
    ++by_name;
    if (at - spec.names.begin() < given) {
      report(call, str("the argument `", keyword, "` of ", spec.name, "() is given twice"));
    }
  }
  if (spec.max_positional >= 0 && given + by_name > spec.max_positional) {
    report(call, str(spec.name, "(", spec.signature, ") takes at most ", spec.max_positional, " argument",
                     spec.max_positional == 1 ? "" : "s", ", got ", given + by_name));
  } else if (given + by_name < spec.min_positional) {
    report(call, str(spec.name, "(", spec.signature, ") needs at least ", spec.min_positional, " argument",
                     spec.min_positional == 1 ? "" : "s", ", got ", given + by_name));
  }
}

void check_model_arguments(const Expr& call, const std::string& name, const std::vector<ModelDefinition>& models,
                           const ReportError& report) {
  std::vector<std::pair<std::string, bool>> wanted;  // names of the arguments, and whether each is required
  bool any_number = false;
  if (const ModelDefinition* model = find_model_definition(models, name)) {
    for (const ArgumentDefinition& argument : model->arguments) wanted.emplace_back(argument.name, argument.required);
  } else {
    for (const ModelSpec& spec : built_in_models()) {
      if (spec.name != name) continue;
      for (std::string argument : spec.arguments) {
        any_number = any_number || argument == "...";
        const bool optional = argument.back() == '?';
        if (optional) argument.pop_back();
        if (argument != "...") wanted.emplace_back(argument, !optional);
      }
    }
  }
  std::vector<std::string> names;
  names.reserve(wanted.size());
  for (const auto& [argument, required] : wanted) names.push_back(argument);
  if (!any_number && call.num_positional() > wanted.size()) {
    report(call, str(name, " takes at most ", wanted.size(), " arguments, got ", call.num_positional()));
  }
  for (const std::string& keyword : call.names) {
    const auto at = std::find(names.begin(), names.end(), keyword);
    if (at == names.end()) {
      report(call, str("unknown argument `", keyword, "` of ", name, suggestion(keyword, names)));
    } else if (static_cast<std::size_t>(at - names.begin()) < call.num_positional()) {
      report(call, str("the argument `", keyword, "` of ", name, " is given twice"));
    }
  }
  for (std::size_t i = call.num_positional(); i < wanted.size(); ++i) {
    const bool given = std::find(call.names.begin(), call.names.end(), wanted[i].first) != call.names.end();
    if (wanted[i].second && !given) report(call, str(name, " needs the argument `", wanted[i].first, "`"));
  }
}

const ModelDefinition* find_model_definition(const std::vector<ModelDefinition>& models, const std::string& name) {
  for (const ModelDefinition& model : models) {
    if (model.name == name) return &model;
  }
  return nullptr;
}

}  // namespace lockstep::scenario
