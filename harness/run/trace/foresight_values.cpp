#include "harness/run/trace/foresight_values.hpp"

#include <algorithm>
#include <array>

#include "engine/autograd/autograd.hpp"
#include "harness/run/step_blocks.hpp"
#include "harness/run/values/evaluate.hpp"

namespace lockstep::run::foresight {

namespace {

constexpr device::Device meta{device::Kind::meta, 0};

// Attributes that steps change, or whose values on the meta device differ.
bool is_changeable(const std::string& attribute) {
  static constexpr std::array<std::string_view, 13> names = {
      "grad",    "dtype", "device", "bytes", "requires_grad",  "pinned",    "storage",
      "sharded", "local", "mesh",   "scale", "growth_tracker", "placements"};
  return std::find(names.begin(), names.end(), attribute) != names.end();
}

bool needs_a_run(const Expr& expr) {
  using scenario::Function;
  bool found = false;
  scenario::for_each_node(expr, [&found](const Expr& node) {
    if (node.kind == ExprKind::attribute) found = found || is_changeable(node.name);
    if (node.kind != ExprKind::call) return;
    const Function function = node.function;
    const bool of_modules = function == Function::parameters || function == Function::buffers ||
                            function == Function::names || function == Function::modules;
    found = found || function == Function::none ||
            (!of_modules && scenario::spec_of(function).kind != scenario::FunctionKind::plain);
  });
  return found;
}

void collect_in_hooks(const Steps& steps, std::set<std::string>& names) {
  for (const Step& step : steps) {
    if (step.verb == Verb::hook) collect_bound(step, names);
    for (const Steps* block : blocks_of(step)) collect_in_hooks(*block, names);
  }
}

}  // namespace

Session session_before_launch(const scenario::Case& one, int rank, int world_size) {
  Session session;
  session.rank = rank;
  session.world_size = world_size;
  session.device = meta;
  Names& names = session.variables;
  names["rank"] = Value(rank);
  names["world_size"] = Value(world_size);
  names["device"] = Value(one.device);
  names["device_index"] = Value(0);
  names["launch"] = Value(scenario::name_of(one.launch));
  for (std::string_view type : scenario::type_names()) names[std::string(type)] = Value(dtype_from_name(type));
  for (const auto& [name, literal] : one.parameters) session.parameters[name] = from_literal(literal);
  for (const auto& [name, literal] : one.params) session.parameters[name] = from_literal(literal);
  return session;
}

std::optional<Value> known_value(const Expr& expr, const Scope& scope) {
  if (needs_a_run(expr)) return std::nullopt;
  try {
    return evaluate(expr, scope);
  } catch (const std::exception&) {
    return std::nullopt;  // the step raises the error when it runs
  }
}

std::optional<Value> built_model(const Expr& build, const Scope& scope) {
  nn::BuildOptions options;
  options.device = meta;
  Scope building = scope;
  building.build_options = &options;
  try {
    Value module = evaluate(build, building);
    if (!module.is(Value::Kind::module)) return std::nullopt;
    return module;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

std::optional<Value> copied(std::optional<Value> value) {
  if (!value || !value->is(Value::Kind::module)) return value;
  try {
    return Value(nn::clone_module(value->as_module("of")));
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

std::vector<std::string> literal_names(const Expr* expr) {
  std::vector<std::string> names;
  if (!expr) return names;
  scenario::for_each_node(*expr, [&names](const Expr& node) {
    if (node.kind == ExprKind::literal && node.value.is_text()) names.push_back(node.value.as_text());
  });
  return names;
}

std::vector<std::string> names_bound_by(const Step& step) {
  std::vector<std::string> names;
  if (!step.as.empty()) names.push_back(step.as);
  for (const auto& [inner, outer] : step.as_names) names.push_back(outer);
  if (step.verb == Verb::let || step.verb == Verb::forward)
    for (const scenario::NamedExpr& entry : step.entries) names.push_back(entry.name);
  const bool loop = step.verb == Verb::for_each || step.verb == Verb::repeat;
  const std::vector<std::string> index = literal_names(loop ? step.argument("index") : nullptr);
  names.insert(names.end(), index.begin(), index.end());
  const bool lists = step.verb == Verb::for_each || step.verb == Verb::drop;
  const std::vector<std::string> listed =
      literal_names(lists ? step.argument(step.verb == Verb::drop ? "names" : "name") : nullptr);
  names.insert(names.end(), listed.begin(), listed.end());
  return names;
}

void collect_bound(const Step& step, std::set<std::string>& names) {
  for (std::string& name : names_bound_by(step)) names.insert(std::move(name));
  for (const Steps* block : blocks_of(step))
    for (const Step& inner : *block) collect_bound(inner, names);
}

std::set<std::string> names_bound_in_hooks(const Steps& steps) {
  std::set<std::string> names;
  collect_in_hooks(steps, names);
  return names;
}

bool contains_check(const Step& step) {
  if (step.raises || scenario::spec_of(step.verb).group == scenario::Group::checks) return true;
  const std::vector<const Steps*> blocks = blocks_and_routine_of(step);
  return std::any_of(blocks.begin(), blocks.end(),
                     [](const Steps* block) { return std::any_of(block->begin(), block->end(), contains_check); });
}

}  // namespace lockstep::run::foresight
