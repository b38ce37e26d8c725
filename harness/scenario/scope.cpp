#include "harness/scenario/scope.hpp"

#include <algorithm>

#include "engine/core/text.hpp"

namespace lockstep::scenario {

namespace {

// The variables that have a value before launch.
const std::vector<std::string> launch_names = {"world_size", "launch", "device"};

}  // namespace

bool Scope::is_known(const std::string& name) const {
  if (barred.contains(name)) return false;
  return known.contains(name) || (in_hook && later.contains(name));
}

Scope base_scope(const std::vector<std::string>& constants) {
  Scope scope;
  for (std::string_view name : variables()) scope.known.emplace(name);
  for (std::string_view name : type_names()) scope.fixed.emplace(name);
  for (const std::string& name : launch_names) scope.fixed.insert(name);
  for (const std::string& name : constants) scope.fixed.insert(name);
  scope.known.insert(scope.fixed.begin(), scope.fixed.end());
  scope.cannot_bind = scope.known;
  return scope;
}

std::vector<std::string> loop_names(const Step& step) {
  std::vector<std::string> names;
  const auto take = [&](const Expr* expr) {
    if (expr == nullptr) return;
    for_each_node(*expr, [&](const Expr& node) {
      if (node.kind == ExprKind::literal && node.value.is_text()) names.push_back(node.value.as_text());
    });
  };
  if (step.verb == Verb::for_each) take(step.argument("name"));
  if (step.verb == Verb::for_each || step.verb == Verb::repeat) take(step.argument("index"));
  return names;
}

void collect_bound_names(const Steps& list, std::map<std::string, Place>& bound, std::set<std::string>* again) {
  const auto bind = [&](const std::string& name, const Place& place) {
    if (!bound.try_emplace(name, place).second && again != nullptr) again->insert(name);
  };
  for (const Step& step : list) {
    if (step.verb == Verb::let || step.verb == Verb::forward) {
      for (const NamedExpr& entry : step.entries) bind(entry.name, entry.place);
    }
    if (!step.as.empty()) bind(step.as, step.place);
    for (const auto& [its, mine] : step.as_names) bind(mine, step.place);
    for (const std::string& name : loop_names(step)) bind(name, step.place);
    collect_bound_names(step.steps, bound, again);
    collect_bound_names(step.otherwise, bound, again);
    for (const Branch& branch : step.among) collect_bound_names(branch.steps, bound, again);
  }
}

void bind_name(const std::string& name, const Place& place, Scope& scope, Diagnostics& diagnostics) {
  if (scope.cannot_bind.contains(name)) {
    const bool fixed = std::find(variables().begin(), variables().end(), name) != variables().end();
    const bool type = std::find(type_names().begin(), type_names().end(), name) != type_names().end();
    diagnostics.error(place, str("`", name, "` is a ",
                                 fixed  ? "variable"
                                 : type ? "type"
                                        : "parameter or matrix name",
                                 " and cannot be bound"));
    return;
  }
  scope.known.insert(name);
  scope.barred.erase(name);
}

void report_unknown_name(const std::string& name, const Place& place, const Scope& scope, Diagnostics& diagnostics) {
  if (scope.barred.contains(name)) {
    diagnostics.error(place, str("a hook looks up `", name,
                                 "` when it runs, after the loop has changed it; bind its value to another name "
                                 "with `let`"));
    return;
  }
  const auto later = scope.later.find(name);
  if (later != scope.later.end()) {
    diagnostics.error(place, str("`", name, "` is used before it is bound; line ", later->second.line, " binds it"));
    return;
  }
  std::vector<std::string> known(scope.known.begin(), scope.known.end());
  for (const auto& [other, where] : scope.later) known.push_back(other);
  const std::string near = nearest_word(name, known);
  diagnostics.error(place, str("unknown name `", name, "`",
                               near.empty() ? "; no earlier step binds it" : str("; did you mean `", near, "`?")));
}

}  // namespace lockstep::scenario
