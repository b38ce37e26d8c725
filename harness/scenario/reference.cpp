// scenarios/REFERENCE.md: tables from the vocabulary, prose from reference_prose.hpp.
#include "engine/core/text.hpp"
#include "harness/scenario/describe.hpp"
#include "harness/scenario/reference_prose.hpp"

namespace lockstep::scenario {

namespace {

std::string escaped(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (c == '|') out += '\\';
    out += c;
  }
  return out;
}

std::string keys_table(const std::vector<KeySpec>& keys, bool required) {
  std::string out = "| key | meaning |\n|---|---|\n";
  for (const KeySpec& key : keys) {
    out += str("| `", key.name, "`", required && key.required ? " (required)" : "", " | ", escaped(key.doc), " |\n");
  }
  return out;
}

std::string argument_text(const ArgumentSpec& argument) {
  std::string type(name_of(argument.type));
  if (argument.type == ArgType::choice) {
    type.clear();
    for (const std::string& word : argument.choices) type += str(type.empty() ? "" : "|", word);
  }
  return str(argument.alone ? "*" : "", argument.name, argument.optional ? "?" : "", ": ", type,
             argument.range.any() ? "" : str(" ", argument.range.text),
             argument.has_default() ? str(" = ", argument.default_text) : "");
}

std::string verbs_table(Group group) {
  std::string out = "\n| verb | arguments | description |\n|---|---|---|\n";
  for (const VerbSpec& spec : verbs()) {
    if (spec.group != group) continue;
    std::string arguments = spec.free_names ? "`name: any`, ..." : "";
    for (const ArgumentSpec& argument : spec.arguments) {
      arguments += str(arguments.empty() ? "" : ", ", "`", escaped(argument_text(argument)), "`");
    }
    if (spec.block == Block::required) arguments += "; `steps`";
    if (spec.block == Block::with_else) arguments += "; `steps`, `else`?";
    if (spec.block == Block::among) arguments += "; `among`";
    if (spec.id == Verb::use) arguments += "; `with`";
    if (!spec.result.empty()) arguments += str(" &rarr; ", spec.result);
    out += str("| `", spec.name, "` | ", arguments, " | ", escaped(spec.doc), " |\n");
  }
  return out;
}

std::string argument_types() {
  static constexpr std::pair<std::string_view, std::string_view> rows[] = {
      {"any", "a value of any kind"},
      {"int, num, bool",
       "an integer, a number, a boolean; a number with a range is finite unless the range says `or inf`"},
      {"list, map", "a list, a map"},
      {"tensor, tensors", "a tensor; a tensor or a list of tensors"},
      {"mesh, optimizer, observation", "the result of the verb `mesh`, `optimizer` or `observe`"},
      {"dtype", "an element type such as float32"},
      {"module", "an expression that builds a module: `MLP(8, mult=2)`"},
      {"counts", "`{family: {operation: count}}`; the counts are expressions"},
      {"path, paths", "literal: the path of a module or parameter; a path or a list of paths"},
      {"word, words, text, a\\|b", "literal: a word, a word or a list of words, a text, one of the words a and b"},
      {"name, names", "literal: a name that the verb binds or looks up; a name or a list of names"},
  };
  std::string out = "\n| type | value |\n|---|---|\n";
  for (const auto& [type, doc] : rows) out += str("| ", type, " | ", doc, " |\n");
  return out;
}

std::string functions_tables() {
  std::string out;
  for (int kind = 0; kind < num_function_kinds; ++kind) {
    out += str("\n### ", title_of(static_cast<FunctionKind>(kind)), "\n");
    if (static_cast<FunctionKind>(kind) == FunctionKind::in_place) out += prose::in_place_note;
    out += "\n| function | result |\n|---|---|\n";
    for (const FunctionSpec& spec : functions()) {
      if (spec.kind == static_cast<FunctionKind>(kind)) {
        out += str("| `", spec.name, "(", spec.signature, ")` | ", escaped(spec.doc), " |\n");
      }
    }
    if (static_cast<FunctionKind>(kind) == FunctionKind::tensor) out += prose::types_note;
    if (static_cast<FunctionKind>(kind) == FunctionKind::factory) {
      out +=
          "\nSizes are given one by one or as a list. A new tensor is on the case's device unless `device=` is given. "
          "It is "
          "float32 unless `dtype=` is given. Without it, `tensor` and `arange` of integers, `randint` and `randperm` "
          "give int64, and `tensor` and `full` of booleans give bool.\n";
    }
  }
  return out;
}

std::string hooks_table() {
  std::string out(prose::hooks_section);
  static constexpr std::string_view targets[] = {"modules", "parameters", "optimizer"};
  for (const HookPointSpec& point : hook_points()) {
    out += str("| `", point.name, "` | `", targets[static_cast<int>(point.target)], "` | ", point.doc, " |\n");
  }
  return str(out, prose::hooks_end);
}

std::string attributes_table() {
  std::string out = "| of | attribute | value |\n|---|---|---|\n";
  for (const AttributeSpec& attribute : attributes()) {
    out += str("| ", attribute.of, " | `", attribute.name, "` | ", escaped(attribute.doc), " |\n");
  }
  return out;
}

std::string models_table() {
  std::string out = "| module | description |\n|---|---|\n";
  for (const ModelSpec& model : built_in_models()) {
    std::string arguments;
    for (const std::string& argument : model.arguments) arguments += str(arguments.empty() ? "" : ", ", argument);
    out += str("| `", model.name, "(", arguments, ")` | ", escaped(model.doc), " |\n");
  }
  return out;
}

std::string words(const std::vector<std::string>& list) {
  std::string out;
  for (const std::string& word : list) out += str(out.empty() ? "`" : ", `", word, "`");
  return out;
}

std::string limits_list() {
  return str(
      "- An expression: at most ", limits::expression_characters, " characters, nested ", limits::expression_depth,
      " deep. A list or map: ", limits::list_items, " items.\n- A file: at most ", limits::file_bytes / 1024, " KiB, ",
      limits::yaml_nodes, " nodes, nested ", limits::yaml_depth, " deep, ", limits::yaml_aliases,
      " aliases.\n- A scenario: at most ", limits::cases, " cases. Routines: nested ", limits::routine_depth,
      " deep.\n- A recorded value: at most ", limits::recorded_numbers,
      " numbers.\n- While a case runs, lists, maps and modules are nested at most ", limits::value_depth,
      " deep. `limits` bounds the memory and output of a rank.\n- Before launch, reading a file and evaluating its "
      "rules may take ",
      limits::evaluation_seconds, " s and ", limits::evaluation_mb,
      " MiB for values each. A scenario file must be a regular file.\n");
}

}  // namespace

std::string reference() {
  std::string out = str(prose::opening, keys_table(scenario_keys(), true), prose::values_section);
  std::string types;
  for (std::string_view type : type_names()) types += str(types.empty() ? "" : " ", "`", type, "`");
  out += str("| ", types, " | element types |\n");
  out += str(prose::names_section, models_table(), prose::model_keys_section, keys_table(model_keys(), false),
             prose::model_example, keys_table(modifier_keys(), false), prose::verbs_section, argument_types());
  for (int i = 0; i < num_groups; ++i) {
    const Group group = static_cast<Group>(i);
    out += str("\n### ", title_of(group), "\n", verbs_table(group));
    if (group == Group::collectives) out += prose::collectives_note;
    if (group == Group::observation) {
      out += str(hooks_table(), "\nPurposes of memory: ", words(memory_purposes()), ".\n");
    }
    if (group == Group::control) out += prose::control_note;
    if (group == Group::checks) {
      out += str("\nFamilies of collectives: ", words(families()),
                 ". `user` contains the collectives that a scenario calls itself.\n");
    }
  }
  out += str(prose::checks_section, functions_tables(), prose::routines_section, attributes_table(),
             prose::attributes_end, keys_table(routine_keys(), true), "\nTypes of parameters: ", words(routine_types()),
             ".\n", prose::routines_end, prose::yaml_section.substr(1), limits_list());
  return out;
}

}  // namespace lockstep::scenario
