// Reads the models that a file defines: arguments, children, parameters, buffers and methods.
#include <algorithm>

#include "engine/core/text.hpp"
#include "harness/scenario/reader.hpp"

namespace lockstep::scenario {

namespace {

bool is_model_name(std::string_view text) {
  if (text.empty() || text[0] < 'A' || text[0] > 'Z') return false;
  return std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  });
}

}  // namespace

std::vector<ModelDefinition> Reader::models(const YamlNode& node) {
  std::vector<ModelDefinition> out;
  if (!require_map(node, "`models`")) return out;
  for (const auto& [key, value] : node.entries) {
    if (!is_model_name(key->text)) {
      error(key->place, str("`", key->text,
                            "` is not a name for a model; use letters, digits and _, with an upper-case letter first"));
    }
    if (require_map(*value, "a model")) out.push_back(read_model(key->text, *key, *value));
  }
  return out;
}

ModelDefinition Reader::read_model(const std::string& name, const YamlNode& key, const YamlNode& node) {
  ModelDefinition model;
  model.name = name;
  model.place = key.place;
  check_keys(node, names_of(model_keys()), "a model");
  if (const YamlNode* arguments = find(node, "arguments");
      arguments != nullptr && require_map(*arguments, "`arguments`")) {
    for (const auto& [argument, value] : arguments->entries) {
      ArgumentDefinition own{argument->text, argument->place, false, nullptr};
      check_name(own.name, argument->place);
      own.required = value->is_scalar() && value->plain && value->text == "required";
      if (!own.required) own.default_value = expression(*value);
      model.arguments.push_back(std::move(own));
    }
  }
  if (const YamlNode* children = find(node, "children"))
    model.children = named_expressions(*children, "`children`", true);
  if (const YamlNode* values = find(node, "parameters"))
    model.parameters = named_expressions(*values, "`parameters`", false);
  if (const YamlNode* values = find(node, "buffers")) model.buffers = named_expressions(*values, "`buffers`", false);
  if (const YamlNode* values = find(node, "non_persistent_buffers"))
    model.non_persistent_buffers = named_expressions(*values, "`non_persistent_buffers`", false);

  if (const YamlNode* methods = find(node, "methods"); methods != nullptr && require_map(*methods, "`methods`")) {
    for (const auto& [method, value] : methods->entries) read_method(model, *method, *value);
  }
  if (const YamlNode* forward = find(node, "forward")) {
    if (model.method("forward") != nullptr) {
      error(forward->place, "`forward` is defined under `methods` too; keep one of them");
    } else {
      YamlNode as_method;
      as_method.kind = YamlNode::Kind::scalar;
      as_method.place = forward->place;
      as_method.text = "forward(x)";
      read_method(model, as_method, *forward);
    }
  }
  if (find(node, "forward") == nullptr && find(node, "methods") == nullptr) {
    error(key.place, str("the model `", name, "` needs `forward` or `methods`"));
  }
  check_distinct_names(model);
  return model;
}

// All names of a model share one namespace, because attributes of a module must not hide each other.
void Reader::check_distinct_names(const ModelDefinition& model) {
  std::vector<std::pair<std::string, Place>> names;
  for (const ArgumentDefinition& argument : model.arguments) names.emplace_back(argument.name, argument.place);
  for (const std::vector<NamedExpr>* list :
       {&model.children, &model.parameters, &model.buffers, &model.non_persistent_buffers}) {
    for (const NamedExpr& entry : *list) names.emplace_back(entry.name, entry.place);
  }
  for (const MethodDefinition& method : model.methods) names.emplace_back(method.name, method.place);
  for (std::size_t i = 0; i < names.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (names[i].first == names[j].first) {
        error(names[i].second,
              str("the model `", model.name, "` has `", names[i].first, "` already, in line ", names[j].second.line));
        break;
      }
    }
  }
}

std::vector<NamedExpr> Reader::named_expressions(const YamlNode& node, std::string_view what, bool module) {
  std::vector<NamedExpr> out;
  if (!require_map(node, what)) return out;
  ArgumentSpec spec;
  spec.type = module ? ArgType::module : ArgType::tensor;
  for (const auto& [key, value] : node.entries) {
    // Names of children may be numbers, as in Sequential.
    const bool numbered =
        module && !key->text.empty() && key->text.find_first_not_of("0123456789") == std::string::npos;
    if (!numbered) check_name(key->text, key->place);
    spec.name = key->text;
    NamedExpr entry{key->text, key->place, argument(*value, spec)};
    if (entry.value != nullptr) {
      out.push_back(std::move(entry));
    } else if (value->in_flow && value->plain) {
      break;  // an unquoted comma has split the expression
    }
  }
  return out;
}

void Reader::check_new_input(const MethodDefinition& method, const std::string& name, const Place& place) {
  if (std::find(method.inputs.begin(), method.inputs.end(), name) != method.inputs.end())
    error(place, str("the method `", method.name, "` has two inputs `", name, "`"));
}

// Reads `name(inputs, option=default): expression`, or a map of intermediate names whose last name is `return`.
void Reader::read_method(ModelDefinition& model, const YamlNode& key, const YamlNode& node) {
  MethodDefinition method;
  method.place = key.place;
  try {
    const ExprPtr head = parse_expression(key.text, key.place);
    if (head->kind != ExprKind::call || head->children[0]->kind != ExprKind::name) {
      error(key.place, "a method is written `name(inputs, option=default): expression`");
      return;
    }
    method.name = head->children[0]->name;
    for (std::size_t i = 0; i < head->num_positional(); ++i) {
      const Expr& input = head->positional(i);
      if (input.kind != ExprKind::name) {
        error(Place{key.place.file, input.line, input.column}, "an input of a method must be a name");
        continue;
      }
      check_name(input.name, Place{key.place.file, input.line, input.column});
      check_new_input(method, input.name, Place{key.place.file, input.line, input.column});
      method.inputs.push_back(input.name);
    }
    // Each default is parsed again, because its tree belongs to `head`.
    for (std::size_t i = 0; i < head->names.size(); ++i) {
      check_name(head->names[i], key.place);
      check_new_input(method, head->names[i], key.place);
      const Expr& value = head->keyword(i);
      method.options.emplace_back(head->names[i],
                                  parse_expression(to_text(value), Place{key.place.file, value.line, value.column}));
    }
  } catch (const ScenarioError& mistake) {
    error(mistake.diagnostics().front().place, mistake.diagnostics().front().message);
    return;
  }
  check_name(method.name, key.place);
  if (node.is_map()) {
    for (const auto& [name, value] : node.entries) {
      NamedExpr entry{name->text, name->place, expression(*value)};
      if (entry.name != "return") check_name(entry.name, name->place);
      if (entry.value == nullptr && value->in_flow && value->plain) break;
      if (entry.value != nullptr) method.body.push_back(std::move(entry));
    }
    if (node.entries.empty() || node.entries.back().first->text != "return") {
      error(node.place, "the last name of a method must be `return`");
    }
    for (std::size_t i = 0; i + 1 < node.entries.size(); ++i) {
      if (node.entries[i].first->text == "return") error(node.entries[i].first->place, "`return` must be last");
    }
  } else {
    NamedExpr entry{"return", node.place, expression(node)};
    if (entry.value != nullptr) method.body.push_back(std::move(entry));
  }
  model.methods.push_back(std::move(method));
}

}  // namespace lockstep::scenario
