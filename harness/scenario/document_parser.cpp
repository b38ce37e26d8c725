#include "harness/scenario/document_parser.hpp"

#include <algorithm>

#include "engine/core/text.hpp"

namespace lockstep::scenario {

namespace {

// Whether a default fits the type of its routine parameter; `none` fits every type.
bool is_of_type(const Literal& value, std::string_view type) {
  return type == "any" || value.is_none() || (type == "integer" && value.is_int()) ||
         (type == "number" && value.is_number()) || (type == "boolean" && value.is_bool()) ||
         (type == "list" && value.is_list()) || (type == "map" && value.is_map());
}

}  // namespace

std::vector<RoutineParameter> Reader::routine_parameters(const YamlNode& node) {
  std::vector<RoutineParameter> out;
  if (!require_map(node, "`parameters`")) return out;
  for (const auto& [key, value] : node.entries) {
    RoutineParameter parameter;
    parameter.name = key->text;
    parameter.place = key->place;
    check_name(key->text, key->place);
    const YamlNode* type = value.get();
    const YamlNode* preset = nullptr;
    if (value->is_map()) {
      check_keys(*value, {"type", "default"}, "a parameter");
      type = find(*value, "type");
      preset = find(*value, "default");
      if (type == nullptr) {
        error(value->place, str("the parameter `", key->text, "` needs `type`"));
        continue;
      }
    }
    parameter.type = text(*type, str("the type of `", key->text, "`")).value_or("any");
    if (std::find(routine_types().begin(), routine_types().end(), parameter.type) == routine_types().end()) {
      error(type->place, str("unknown type `", parameter.type, "`", suggestion(parameter.type, routine_types())));
      parameter.type = "any";
    }
    if (preset != nullptr) read_default(parameter, *preset);
    out.push_back(std::move(parameter));
  }
  return out;
}

void Reader::read_default(RoutineParameter& parameter, const YamlNode& node) {
  parameter.required = false;
  if (node.is_scalar() && node.plain && node.text == "all_ranks") {
    auto mesh = std::make_unique<Expr>();
    mesh->kind = ExprKind::name;
    mesh->name = "all_ranks";
    mesh->line = node.place.line;
    mesh->column = node.place.column;
    parameter.default_value = std::move(mesh);
    return;
  }
  const std::optional<Literal> value = literal(node);
  if (!value) return;
  const bool word = argument_type_of(parameter.type) == ArgType::text && node.is_scalar();
  parameter.default_value = make_literal(word ? Literal(node.text) : *value, node.place);
  if (!word && !is_of_type(*value, parameter.type)) {
    error(node.place, str("the default of `", parameter.name, "` is not of type ", parameter.type));
  }
}

bool is_routine(const std::string& text) {
  const std::size_t routine = text.starts_with("routine:") ? 0 : text.find("\nroutine:");
  const std::size_t scenario = text.starts_with("scenario:") ? 0 : text.find("\nscenario:");
  return routine != std::string::npos && (scenario == std::string::npos || routine < scenario);
}

std::shared_ptr<Scenario> parse_scenario(const std::string& text, const std::string& file,
                                         const std::string& expected_name, Diagnostics& diagnostics,
                                         const RoutineSource& routines) {
  const YamlFile yaml(text, file, diagnostics);
  if (yaml.root() == nullptr) return nullptr;
  if (!yaml.root()->is_map()) {
    diagnostics.error(yaml.root()->place, str("a scenario must be a map, got ", kind_text(*yaml.root())));
    return nullptr;
  }
  auto scenario = std::make_shared<Scenario>();
  scenario->file = file;
  scenario->place = yaml.root()->place;
  Reader reader(yaml, diagnostics, routines);
  read_scenario(reader, *yaml.root(), expected_name, *scenario);
  check_scenario(*scenario, reader.assumed_names(), diagnostics);
  return scenario;
}

std::shared_ptr<Routine> parse_routine(const std::string& text, const std::string& file,
                                       const std::string& expected_name, Diagnostics& diagnostics,
                                       const RoutineSource& routines) {
  const YamlFile yaml(text, file, diagnostics);
  if (yaml.root() == nullptr) return nullptr;
  const YamlNode& root = *yaml.root();
  if (!root.is_map()) {
    diagnostics.error(root.place, str("a routine must be a map, got ", kind_text(root)));
    return nullptr;
  }
  auto routine = std::make_shared<Routine>();
  routine->file = file;
  routine->place = root.place;
  Reader reader(yaml, diagnostics, routines);
  reader.check_keys(root, names_of(routine_keys()), "a routine");
  for (auto [name, target] : {std::pair<std::string_view, std::string*>("routine", &routine->name),
                              std::pair<std::string_view, std::string*>("summary", &routine->summary)}) {
    const YamlNode* node = Reader::find(root, name);
    if (node == nullptr) {
      reader.error(root.place, str("a routine needs `", name, "`"));
    } else {
      *target = reader.text(*node, str("`", name, "`")).value_or("");
    }
  }
  if (!expected_name.empty() && !routine->name.empty() && routine->name != expected_name) {
    reader.error(Reader::find(root, "routine")->place,
                 str("`routine` must be the name of the file: `", expected_name, "`"));
  }
  if (const YamlNode* node = Reader::find(root, "parameters")) routine->parameters = reader.routine_parameters(*node);
  if (const YamlNode* node = Reader::find(root, "gives"); node != nullptr && reader.require_list(*node, "`gives`")) {
    for (const YamlPtr& item : node->items) {
      const std::string name = reader.name(*item, "an item of `gives`");
      if (!name.empty()) routine->gives.push_back(name);
    }
  }
  if (const YamlNode* node = Reader::find(root, "models")) routine->models = reader.models(*node);
  if (const YamlNode* node = Reader::find(root, "steps")) {
    routine->steps = reader.steps(*node, "`steps`");
  } else {
    reader.error(root.place, "a routine needs `steps`");
  }
  check_routine(*routine, reader.assumed_names(), diagnostics);
  return routine;
}

}  // namespace lockstep::scenario
