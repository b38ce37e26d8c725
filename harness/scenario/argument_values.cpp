// Reads the values of arguments by their type: expressions, literal texts, names, paths and counts.
#include <algorithm>

#include "engine/core/text.hpp"
#include "harness/scenario/reader.hpp"

namespace lockstep::scenario {

ArgType argument_type_of(std::string_view routine_type) {
  if (routine_type == "integer") return ArgType::integer;
  if (routine_type == "number") return ArgType::number;
  if (routine_type == "boolean") return ArgType::boolean;
  if (routine_type == "text") return ArgType::text;
  if (routine_type == "tensor") return ArgType::tensor;
  if (routine_type == "modules") return ArgType::paths;
  if (routine_type == "optimizer") return ArgType::optimizer;
  if (routine_type == "mesh") return ArgType::mesh;
  if (routine_type == "list") return ArgType::list;
  if (routine_type == "map") return ArgType::map;
  return ArgType::any;
}

namespace {

// The facts about a value that are known before running: its description for messages and its possible types.
struct KnownValue {
  std::string text;
  bool integer = false;
  bool number = false;
  bool boolean = false;
  bool list = false;
  bool map = false;
};

// Nothing when only the run knows the value's type.
std::optional<KnownValue> known_value(const Expr& value) {
  KnownValue known;
  switch (value.kind) {
    case ExprKind::literal:
      known.text = value.value.is_text() ? str("the text '", value.value.as_text(), "'") : value.value.shown();
      known.integer = value.value.is_int();
      known.number = value.value.is_number();
      known.boolean = value.value.is_bool();
      return known;
    case ExprKind::list:
    case ExprKind::list_of_each:
      known.text = "a list";
      known.list = true;
      return known;
    case ExprKind::map:
    case ExprKind::map_of_each:
      known.text = "a map";
      known.map = true;
      return known;
    case ExprKind::unary:
      if (value.op != Op::not_) return std::nullopt;
      break;
    case ExprKind::binary:
      if (value.op != Op::and_ && value.op != Op::or_ && !(value.op >= Op::equal && value.op <= Op::in)) {
        return std::nullopt;
      }
      break;
    default:
      return std::nullopt;
  }
  known.text = "a condition";
  known.boolean = true;
  return known;
}

}  // namespace

std::string mismatch(const Expr& value, ArgType type) {
  const std::optional<KnownValue> known = known_value(value);
  if (!known) return {};
  const auto unless = [&](bool fits, std::string_view wanted) {
    return fits ? std::string() : str("expected ", wanted, ", got ", known->text);
  };
  switch (type) {
    case ArgType::integer:
      return unless(known->integer, "an integer");
    case ArgType::number:
      return unless(known->number, "a number");
    case ArgType::boolean:
      return unless(known->boolean, "true, false or a condition");
    case ArgType::list:
      return unless(known->list, "a list");
    case ArgType::map:
    case ArgType::counts:
      return unless(known->map, "a map");
    case ArgType::tensors:
      return unless(known->list, "a tensor or a list of them");
    case ArgType::tensor:
      return unless(false, "a tensor");
    case ArgType::mesh:
      return unless(false, "a mesh");
    case ArgType::optimizer:
      return unless(false, "an optimizer");
    case ArgType::observation:
      return unless(false, "the result of an `observe`");
    case ArgType::dtype:
      return unless(false, "a type such as float32");
    case ArgType::module:
      return unless(false, "a module such as Linear(4, 4)");
    default:
      return {};
  }
}

namespace {

// The error message for a text that cannot be a path; empty for components joined by dots, with closed brackets.
std::string path_mistake(const std::string& path) {
  if (path.empty()) return "an empty path";
  if (path.find(' ') != std::string::npos) return str("`", path, "` is not a path: it contains a space");
  bool component = false;  // whether the current component has characters
  bool bracket = false;
  for (char c : path) {
    if (c == '[') {
      if (bracket) return str("`", path, "` is not a path: `[` within `[`");
      bracket = true;
    } else if (c == ']') {
      if (!bracket) return str("`", path, "` is not a path: `]` without `[`");
      bracket = false;
    } else if (c == '(' || c == ')') {
      return str("`", path, "` is not a path; write an expression as `${...}`");
    }
    if (c == '.' && !bracket) {
      if (!component) return str("`", path, "` is not a path: it has an empty component");
      component = false;
    } else {
      component = true;
    }
  }
  if (bracket) return str("`", path, "` is not a path: a `[` is not closed");
  if (!component) return str("`", path, "` is not a path: it ends with a dot");
  return {};
}

}  // namespace

std::string unknown_choice(const ArgumentSpec& spec, const std::string& word) {
  if (std::find(spec.choices.begin(), spec.choices.end(), word) != spec.choices.end()) return {};
  std::string known;
  for (const std::string& choice : spec.choices) known += str(known.empty() ? "" : ", ", choice);
  const std::string nearest = nearest_word(word, spec.choices);
  return str("`", spec.name, "` cannot be `", word, "`; it is one of ", known,
             nearest.empty() ? "" : str("; did you mean `", nearest, "`?"));
}

void Reader::check_word(const Expr& value, const ArgumentSpec& spec) {
  if (value.kind != ExprKind::literal) return;
  const Place place{yaml_.root()->place.file, value.line, value.column};
  const std::string& word = value.value.as_text();
  if (spec.type == ArgType::choice) {
    const std::string why = unknown_choice(spec, word);
    if (!why.empty()) error(place, why);
  } else if (spec.type == ArgType::path || spec.type == ArgType::paths) {
    const std::string mistake = path_mistake(word);
    if (!mistake.empty()) error(place, mistake);
  } else if (spec.type == ArgType::name || spec.type == ArgType::names) {
    check_name(word, place);
  }
}

ExprPtr Reader::literal_list(const YamlNode& node, const ArgumentSpec& spec) {
  auto made = std::make_unique<Expr>();
  made->kind = ExprKind::list;
  made->line = node.place.line;
  made->column = node.place.column;
  if (node.items.empty()) error(node.place, str("`", spec.name, "` is empty"));
  for (const YamlPtr& item : node.items) {
    ExprPtr value = literal_text(*item, str("an item of `", spec.name, "`"));
    if (value == nullptr) return nullptr;
    check_word(*value, spec);
    made->children.push_back(std::move(value));
  }
  return made;
}

ExprPtr Reader::argument(const YamlNode& node, const ArgumentSpec& spec) {
  if (node.refused) return nullptr;
  if (is_literal(spec.type)) {
    if (node.is_list() && takes_list(spec.type)) return literal_list(node, spec);
    if (node.kind == YamlNode::Kind::null && !node.refused) {
      error(node.place, str("`", spec.name, "` has no value"));
      return nullptr;
    }
    ExprPtr value = literal_text(node, str("`", spec.name, "`"));
    if (value != nullptr) {
      const bool fixed = spec.type == ArgType::name || spec.type == ArgType::names;
      if (fixed && value->kind != ExprKind::literal) {
        error(node.place, str("`", spec.name, "` is a name and takes no `${}`"));
        return nullptr;
      }
      check_word(*value, spec);
    }
    return value;
  }
  if (node.kind == YamlNode::Kind::null && !node.refused) {
    error(node.place, str("`", spec.name, "` has no value"));
    return nullptr;
  }
  ExprPtr value = expression(node);
  if (value == nullptr) return nullptr;
  if (spec.type == ArgType::counts && node.is_map()) check_counts(node);
  const bool absent = value->kind == ExprKind::literal && value->value.is_none() && spec.optional;
  const std::string why = absent ? std::string() : mismatch(*value, spec.type);
  if (!why.empty()) {
    error(Place{node.place.file, value->line, value->column}, str("`", spec.name, "`: ", why));
  }
  return value;
}

// Checks the literal form {family: {operation: count}}.
void Reader::check_counts(const YamlNode& node) {
  for (const auto& [family, operations] : node.entries) {
    if (std::find(families().begin(), families().end(), family->text) == families().end()) {
      error(family->place, str("unknown family `", family->text, "`", suggestion(family->text, families())));
    }
    if (!operations->is_map()) {
      if (!operations->is_scalar()) error(operations->place, "counts of a family are a map from operation to count");
      continue;
    }
    for (const auto& [operation, count] : operations->entries) {
      const std::vector<std::string>& known = collective_names();
      if (std::find(known.begin(), known.end(), operation->text) == known.end()) {
        error(operation->place, str("unknown collective `", operation->text, "`", suggestion(operation->text, known)));
      }
      if (ExprPtr value = count->is_scalar() ? expression(*count) : nullptr) {
        const std::string why = mismatch(*value, ArgType::integer);
        if (!why.empty()) error(count->place, str("`", operation->text, "`: ", why));
      }
    }
  }
}

ExprPtr Reader::default_of(const ArgumentSpec& spec, const Place& place) {
  if (!spec.has_default()) return nullptr;
  if (is_literal(spec.type)) {
    SourceText source{spec.default_text, place, {}};
    return parse_text(source);
  }
  return parse_expression(spec.default_text, place);
}

}  // namespace lockstep::scenario
