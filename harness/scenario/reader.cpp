#include "harness/scenario/reader.hpp"

#include <algorithm>

#include "engine/core/text.hpp"

namespace lockstep::scenario {

namespace {

bool is_identifier(std::string_view text) {
  if (text.empty() || text[0] < 'a' || text[0] > 'z') return false;
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'; });
}

// Empty when the text can be a path: parts with a dot between them, brackets closed.
std::string path_mistake(const std::string& path) {
  if (path.empty()) return "an empty path";
  if (path.find(' ') != std::string::npos) return str("`", path, "` is no path: it has a space");
  bool part = false;
  bool bracket = false;
  for (char c : path) {
    if (c == '[') {
      if (bracket) return str("`", path, "` is no path: a `[` within `[`");
      bracket = true;
    } else if (c == ']') {
      if (!bracket) return str("`", path, "` is no path: a `]` without `[`");
      bracket = false;
    } else if (c == '(' || c == ')') {
      return str("`", path, "` is no path; an expression in its place stands in `${...}`");
    }
    if (c == '.' && !bracket) {
      if (!part) return str("`", path, "` is no path: an empty part");
      part = false;
    } else {
      part = true;
    }
  }
  if (bracket) return str("`", path, "` is no path: a `[` is not closed");
  if (!part) return str("`", path, "` is no path: an empty part at its end");
  return {};
}

}  // namespace

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

std::string mismatch(const Expr& value, ArgType type) {
  std::string got;
  bool whole = false;
  bool real = false;
  bool truth = false;
  bool list = false;
  bool map = false;
  switch (value.kind) {
    case ExprKind::literal:
      got = value.value.is_text() ? str("the text '", value.value.as_text(), "'") : value.value.shown();
      whole = value.value.is_int();
      real = value.value.is_number();
      truth = value.value.is_bool();
      break;
    case ExprKind::list:
    case ExprKind::list_of_each:
      got = "a list";
      list = true;
      break;
    case ExprKind::map:
    case ExprKind::map_of_each:
      got = "a map";
      map = true;
      break;
    case ExprKind::unary:
      if (value.op == Op::not_) {
        got = "a condition";
        truth = true;
        break;
      }
      return {};
    case ExprKind::binary:
      if (value.op == Op::and_ || value.op == Op::or_ || (value.op >= Op::equal && value.op <= Op::in)) {
        got = "a condition";
        truth = true;
        break;
      }
      return {};
    default:
      return {};
  }
  switch (type) {
    case ArgType::integer:
      return whole ? "" : str("expected an integer, got ", got);
    case ArgType::number:
      return real ? "" : str("expected a number, got ", got);
    case ArgType::boolean:
      return truth ? "" : str("expected true, false or a condition, got ", got);
    case ArgType::list:
      return list ? "" : str("expected a list, got ", got);
    case ArgType::map:
    case ArgType::counts:
      return map ? "" : str("expected a map, got ", got);
    case ArgType::tensors:
      return list ? "" : str("expected a tensor or a list of them, got ", got);
    case ArgType::tensor:
      return str("expected a tensor, got ", got);
    case ArgType::mesh:
      return str("expected a mesh, got ", got);
    case ArgType::optimizer:
      return str("expected an optimizer, got ", got);
    case ArgType::observation:
      return str("expected what an `observe` named, got ", got);
    case ArgType::dtype:
      return str("expected a type such as float32, got ", got);
    case ArgType::module:
      return str("expected a module such as Linear(4, 4), got ", got);
    default:
      return {};
  }
}

void Reader::check_keys(const YamlNode& map, const std::vector<std::string>& known, std::string_view where) {
  for (const auto& [key, value] : map.entries) {
    if (key->refused || std::find(known.begin(), known.end(), key->text) != known.end()) continue;
    error(key->place, str("unknown key `", key->text, "` in ", where, suggestion(key->text, known)));
  }
}

const YamlNode* Reader::find(const YamlNode& map, std::string_view key) {
  for (const auto& [name, value] : map.entries) {
    if (name->text == key) return value.get();
  }
  return nullptr;
}

bool Reader::require_map(const YamlNode& node, std::string_view what) {
  if (node.is_map()) return true;
  if (node.refused) return false;
  error(node.place, str(what, " must be a map, got ", kind_text(node)));
  return false;
}

bool Reader::require_list(const YamlNode& node, std::string_view what) {
  if (node.is_list()) return true;
  if (node.refused) return false;
  error(node.place, str(what, " must be a list, got ", kind_text(node)));
  return false;
}

std::optional<std::string> Reader::text(const YamlNode& node, std::string_view what) {
  if (node.refused) return std::nullopt;
  if (node.is_scalar() && !node.text.empty()) return node.text;
  error(node.place, str(what, " must be a text, got ", node.is_scalar() ? "an empty one" : kind_text(node)));
  return std::nullopt;
}

std::optional<std::int64_t> Reader::integer(const YamlNode& node, std::string_view what) {
  if (node.refused) return std::nullopt;
  if (node.is_scalar() && node.plain) {
    const std::optional<Literal> value = literal(node);
    if (!value) return std::nullopt;
    if (value->is_int()) return value->as_int();
  }
  error(node.place,
        str(what, " must be an integer, got ", node.is_scalar() ? str("`", node.text, "`") : kind_text(node)));
  return std::nullopt;
}

std::optional<double> Reader::number(const YamlNode& node, std::string_view what) {
  if (node.refused) return std::nullopt;
  if (node.is_scalar() && node.plain) {
    const std::optional<Literal> value = literal(node);
    if (!value) return std::nullopt;
    if (value->is_number()) return value->as_double();
  }
  error(node.place,
        str(what, " must be a number, got ", node.is_scalar() ? str("`", node.text, "`") : kind_text(node)));
  return std::nullopt;
}

std::vector<std::string> Reader::texts(const YamlNode& node, std::string_view what) {
  std::vector<std::string> out;
  if (!node.is_list()) {
    if (auto one = text(node, what)) out.push_back(*one);
    return out;
  }
  if (node.items.empty()) error(node.place, str(what, " must not be empty"));
  for (const YamlPtr& item : node.items) {
    if (auto one = text(*item, what)) out.push_back(*one);
  }
  return out;
}

std::optional<Literal> Reader::literal(const YamlNode& node) {
  if (node.refused) return std::nullopt;
  switch (node.kind) {
    case YamlNode::Kind::null:
      if (!node.refused) error(node.place, "a value is missing");
      return std::nullopt;
    case YamlNode::Kind::scalar:
      if (!node.plain) return Literal(node.text);
      try {
        return literal_of_scalar(node.text);
      } catch (const Error& mistake) {
        error(node.place, mistake.message());
        return std::nullopt;
      }
    case YamlNode::Kind::list: {
      LiteralList list;
      if (node.items.size() > limits::list_items) {
        error(node.place, str("a list of more than ", limits::list_items, " items"));
        return std::nullopt;
      }
      for (const YamlPtr& item : node.items) {
        std::optional<Literal> value = literal(*item);
        if (!value) return std::nullopt;
        list.push_back(std::move(*value));
      }
      return Literal(std::move(list));
    }
    case YamlNode::Kind::map: {
      LiteralMap map;
      for (const auto& [key, item] : node.entries) {
        std::optional<Literal> value = literal(*item);
        if (!value) return std::nullopt;
        map.emplace_back(key->text, std::move(*value));
      }
      return Literal(std::move(map));
    }
  }
  return std::nullopt;
}

bool Reader::check_name(const std::string& name, const Place& place) {
  static const std::vector<std::string> words = {"not", "and",  "or",    "if",   "else", "for",
                                                 "in",  "true", "false", "none", "inf"};
  if (std::find(words.begin(), words.end(), name) != words.end()) {
    error(place, str("`", name, "` is a word of the language and cannot be a name"));
    return false;
  }
  if (is_identifier(name)) return true;
  error(place, str("`", name, "` is no name: lower-case letters, digits and _ only, a letter first"));
  return false;
}

std::string Reader::name(const YamlNode& node, std::string_view what) {
  const std::optional<std::string> value = text(node, what);
  if (!value || !check_name(*value, node.place)) return {};
  return *value;
}

ExprPtr Reader::expression(const YamlNode& node) {
  if (node.refused) return nullptr;
  if (node.kind == YamlNode::Kind::null) {
    if (!node.refused) error(node.place, "a value is missing");
    return nullptr;
  }
  if (node.is_scalar()) {
    try {
      return parse_expression(yaml_.source_of(node));
    } catch (const ScenarioError& mistake) {
      const Diagnostic& found = mistake.diagnostics().front();
      std::string message = found.message;
      if (node.in_flow && node.plain && message.find("ends too soon") != std::string::npos) {
        message += "; within {} and [] an expression with a comma, bracket or brace must be quoted";
      } else if (message.starts_with("unexpected `$`")) {
        message += "; this is an expression already, so write it without `${}`";
      }
      error(found.place, message);
      return nullptr;
    }
  }
  auto made = std::make_unique<Expr>();
  made->line = node.place.line;
  made->column = node.place.column;
  bool sound = true;
  if (node.is_list()) {
    made->kind = ExprKind::list;
    for (const YamlPtr& item : node.items) {
      made->children.push_back(expression(*item));
      sound = sound && made->children.back() != nullptr;
      // What an unquoted comma has torn apart makes no sense either.
      if (!sound && item->in_flow && item->plain) return nullptr;
    }
  } else {
    made->kind = ExprKind::map;
    for (const auto& [key, value] : node.entries) {
      made->children.push_back(literal_text(*key, "a key"));
      made->children.push_back(expression(*value));
      sound = sound && made->children.back() != nullptr && made->children[made->children.size() - 2] != nullptr;
      if (!sound && value->in_flow && value->plain) return nullptr;
    }
  }
  return sound ? std::move(made) : nullptr;
}

ExprPtr Reader::literal_text(const YamlNode& node, std::string_view what) {
  if (node.refused) return nullptr;
  if (!node.is_scalar()) {
    if (!node.refused) {
      error(node.place, str(what, " must be a text, got ", kind_text(node)));
    }
    return nullptr;
  }
  try {
    return parse_text(yaml_.source_of(node));
  } catch (const ScenarioError& mistake) {
    error(mistake.diagnostics().front().place, mistake.diagnostics().front().message);
    return nullptr;
  }
}

void Reader::check_word(const Expr& value, const ArgumentSpec& spec) {
  if (value.kind != ExprKind::literal) return;
  const Place place{yaml_.root()->place.file, value.line, value.column};
  const std::string& word = value.value.as_text();
  if (spec.type == ArgType::choice) {
    if (std::find(spec.choices.begin(), spec.choices.end(), word) == spec.choices.end()) {
      std::string known;
      for (const std::string& choice : spec.choices) known += str(known.empty() ? "" : ", ", choice);
      const std::string nearest = nearest_word(word, spec.choices);
      error(place, str("`", spec.name, "` cannot be `", word, "`; it is one of ", known,
                       nearest.empty() ? "" : str("; did you mean `", nearest, "`?")));
    }
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

// {family: {operation: count}}
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

// The same reading as in files, of a text from the command line.
Literal parse_literal(const std::string& text) {
  Diagnostics diagnostics;
  const YamlFile yaml(text, "value", diagnostics);
  std::optional<Literal> value;
  if (yaml.root() != nullptr) value = Reader(yaml, diagnostics, nullptr).literal(*yaml.root());
  if (!diagnostics.empty()) throw Error(str("`", text, "` is no value: ", diagnostics.sorted().front().message));
  return value.value_or(Literal());
}

}  // namespace lockstep::scenario
