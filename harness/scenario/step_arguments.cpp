// Reads the arguments of a step: those of its verb, and those of the routine that `use` runs.
#include <algorithm>

#include "engine/core/text.hpp"
#include "harness/scenario/reader.hpp"

namespace lockstep::scenario {

namespace {

std::string list_of(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += str(out.empty() ? "`" : ", `", word, "`");
  return out;
}

std::vector<std::string> argument_names(const VerbSpec& spec) {
  std::vector<std::string> names;
  for (const ArgumentSpec& argument : spec.arguments) names.push_back(argument.name);
  return names;
}

}  // namespace

void Reader::read_argument(Step& step, const VerbSpec& spec, std::size_t index, const YamlNode& node) {
  step.given[index] = true;
  step.arguments[index] = argument(node, spec.arguments[index]);
}

void Reader::read_arguments(Step& step, const VerbSpec& spec, const YamlNode& value) {
  if (spec.free_names) {
    read_entries(step, spec, value);
    return;
  }
  bool complete = true;
  if (value.is_map()) {
    complete = read_named_arguments(step, spec, value);
  } else if (value.is_list() && spec.num_in_order > 0) {
    if (!read_ordered_arguments(step, spec, value)) return;
  } else if (value.kind == YamlNode::Kind::null) {
    if (value.text.empty())
      error(step.place, str("`", spec.name, "` has no value; write `", spec.name, ": {}` for none"));
    return;
  } else if (const ArgumentSpec* alone = spec.alone()) {
    read_argument(step, spec, *spec.index_of(alone->name), value);
  } else {
    error(value.place, str("`", spec.name, "` takes its arguments by name: ", list_of(argument_names(spec))));
    return;
  }
  add_defaults(step, spec, complete);
}

void Reader::read_entries(Step& step, const VerbSpec& spec, const YamlNode& value) {
  if (!value.is_map() || value.entries.empty()) {
    error(value.place, str("`", spec.name, "` takes names and their expressions: {name: expression}"));
    return;
  }
  // After an unquoted comma has split an expression, the later keys may be its pieces or further names.
  bool is_split = false;
  for (const auto& [key, node] : value.entries) {
    if (is_split) {
      assumed_names_.insert(key->text);
      continue;
    }
    NamedExpr entry{key->text, key->place, nullptr};
    check_name(entry.name, key->place);
    entry.value = expression(*node);
    is_split = entry.value == nullptr && node->in_flow && node->plain;
    step.entries.push_back(std::move(entry));
  }
}

bool Reader::read_named_arguments(Step& step, const VerbSpec& spec, const YamlNode& value) {
  for (const auto& [key, node] : value.entries) {
    const std::optional<std::size_t> index = spec.index_of(key->text);
    if (!index) {
      error(key->place, str("unknown argument `", key->text, "` of `", spec.name, "`",
                            suggestion(key->text, argument_names(spec))));
      continue;
    }
    read_argument(step, spec, *index, *node);
    if (step.arguments[*index] == nullptr && node->in_flow && node->plain) return false;
  }
  return true;
}

bool Reader::read_ordered_arguments(Step& step, const VerbSpec& spec, const YamlNode& value) {
  const std::size_t wanted = static_cast<std::size_t>(spec.num_in_order);
  if (value.items.size() != wanted) {
    const bool is_split = value.items.size() > wanted && value.in_flow;
    error(value.place, str("`", spec.name, "` as a list takes ", wanted, " items, got ", value.items.size(),
                           is_split ? "; within [] an expression with a comma, bracket or brace must be quoted" : ""));
    return false;
  }
  for (std::size_t i = 0; i < wanted; ++i) read_argument(step, spec, i, *value.items[i]);
  return true;
}

void Reader::add_defaults(Step& step, const VerbSpec& spec, bool complete) {
  for (std::size_t i = 0; i < spec.arguments.size(); ++i) {
    const ArgumentSpec& argument = spec.arguments[i];
    if (step.given[i]) continue;
    if (argument.has_default()) {
      step.arguments[i] = default_of(argument, step.place);
    } else if (!argument.optional && complete) {
      error(step.place, str("`", spec.name, "` needs `", argument.name, "`"));
    }
  }
}

void Reader::read_use(Step& step, const YamlNode& node) {
  const YamlNode* with = find(node, "with");
  const YamlNode* as = find(node, "as");
  const Expr* named = step.arguments[0].get();
  if (named == nullptr) return;
  if (named->kind != ExprKind::literal) {
    error(step.place, "the name of a routine must not contain `${}`; use `choose` to select one of several");
    return;
  }
  step.routine = routines_(named->value.as_text(), Place{step.place.file, named->line, named->column});
  if (step.routine == nullptr) {
    if (as != nullptr) assume_names_of_as(*as);
    return;
  }
  if (!read_routine_arguments(step, with)) return;
  if (as != nullptr) read_routine_names(step, *as);
}

bool Reader::read_routine_arguments(Step& step, const YamlNode* with) {
  const Routine& routine = *step.routine;
  std::vector<std::string> known;
  for (const RoutineParameter& parameter : routine.parameters) known.push_back(parameter.name);
  if (with != nullptr && require_map(*with, "`with`")) {
    for (const auto& [key, value] : with->entries) {
      const RoutineParameter* parameter = routine.parameter(key->text);
      if (parameter == nullptr) {
        error(key->place,
              str("unknown argument `", key->text, "` of the routine ", routine.name, suggestion(key->text, known)));
        continue;
      }
      ArgumentSpec spec;
      spec.name = parameter->name;
      spec.type = argument_type_of(parameter->type);
      NamedExpr entry{key->text, key->place, argument(*value, spec)};
      if (entry.value == nullptr && value->in_flow && value->plain) return false;
      step.entries.push_back(std::move(entry));
    }
  }
  for (const RoutineParameter& parameter : routine.parameters) {
    const bool given = with != nullptr && with->is_map() && find(*with, parameter.name) != nullptr;
    if (parameter.required && !given) {
      error(step.place, str("the routine ", routine.name, " needs `", parameter.name, "` under `with`"));
    }
  }
  return true;
}

void Reader::read_routine_names(Step& step, const YamlNode& as) {
  const Routine& routine = *step.routine;
  if (!as.is_map()) {
    error(as.place, "with `use`, `as` is a map: {its name: my name}");
    return;
  }
  for (const auto& [key, value] : as.entries) {
    if (std::find(routine.gives.begin(), routine.gives.end(), key->text) == routine.gives.end()) {
      error(key->place,
            str("the routine ", routine.name, " gives no `", key->text, "`", suggestion(key->text, routine.gives)));
    }
    const std::string mine = name(*value, "a name under `as`");
    if (!mine.empty()) step.as_names.emplace_back(key->text, mine);
  }
}

}  // namespace lockstep::scenario
