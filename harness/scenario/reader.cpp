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

}  // namespace

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
  error(place, str("`", name, "` is not a name; use lower-case letters, digits and _, with a letter first"));
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
  bool valid = true;
  if (node.is_list()) {
    made->kind = ExprKind::list;
    for (const YamlPtr& item : node.items) {
      made->children.push_back(expression(*item));
      valid = valid && made->children.back() != nullptr;
      // The pieces of an expression that an unquoted comma has split cannot be read.
      if (!valid && item->in_flow && item->plain) return nullptr;
    }
  } else {
    made->kind = ExprKind::map;
    for (const auto& [key, value] : node.entries) {
      made->children.push_back(literal_text(*key, "a key"));
      made->children.push_back(expression(*value));
      valid = valid && made->children.back() != nullptr && made->children[made->children.size() - 2] != nullptr;
      if (!valid && value->in_flow && value->plain) return nullptr;
    }
  }
  return valid ? std::move(made) : nullptr;
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

// Reads a text from the command line as a value in a file is read.
Literal parse_literal(const std::string& text) {
  Diagnostics diagnostics;
  const YamlFile yaml(text, "value", diagnostics);
  std::optional<Literal> value;
  if (yaml.root() != nullptr) value = Reader(yaml, diagnostics, nullptr).literal(*yaml.root());
  if (!diagnostics.empty()) throw Error(str("`", text, "` is not a value: ", diagnostics.sorted().front().message));
  return value.value_or(Literal());
}

}  // namespace lockstep::scenario
