#include "harness/scenario/vocabulary.hpp"

#include <algorithm>
#include <array>
#include <iterator>

#include "engine/core/error.hpp"

namespace lockstep::scenario {

namespace {

struct VerbRow {
  Verb id;
  std::string_view name;
  Group group;
  Block block;
  std::string_view signature;
  std::string_view doc;
};
constexpr VerbRow verb_rows[] = {
#define LOCKSTEP_VERB(id, name, group, block, signature, doc) \
  {Verb::id, name, Group::group, Block::block, signature, doc},
#include "harness/scenario/verbs.def"
#undef LOCKSTEP_VERB
};

struct FunctionRow {
  Function id;
  std::string_view name;
  FunctionKind kind;
  std::string_view signature;
  std::string_view doc;
};
constexpr FunctionRow function_rows[] = {
#define LOCKSTEP_FUNCTION(id, name, kind, signature, doc) {Function::id, name, FunctionKind::kind, signature, doc},
#include "harness/scenario/functions.def"
#undef LOCKSTEP_FUNCTION
};

// The counts catch accidental changes of the tables. After an intended change, update the count and the interpreter.
static_assert(std::size(verb_rows) == 79,
              "verbs.def has changed: implement the verb in harness/run, then change this count");
static_assert(std::size(function_rows) == 122,
              "functions.def has changed: implement the function in harness/run, then change this count");

template <class Rows>
constexpr bool names_are_unique(const Rows& rows) {
  for (std::size_t i = 0; i < std::size(rows); ++i) {
    if (rows[i].doc.empty()) return false;
    for (std::size_t j = i + 1; j < std::size(rows); ++j) {
      if (rows[i].name == rows[j].name) return false;
    }
  }
  return true;
}
static_assert(names_are_unique(verb_rows) && names_are_unique(function_rows),
              "a name occurs twice or has no description");

std::string_view trim(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

// Splits a text at the commas outside brackets.
std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> items;
  int depth = 0;
  std::size_t start = 0;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    if (i == text.size() || (text[i] == ',' && depth == 0)) {
      if (!trim(text.substr(start, i - start)).empty()) items.push_back(trim(text.substr(start, i - start)));
      start = i + 1;
    } else if (text[i] == '[' || text[i] == '{') {
      ++depth;
    } else if (text[i] == ']' || text[i] == '}') {
      --depth;
    }
  }
  return items;
}

struct TypeName {
  std::string_view name;
  ArgType type;
};
constexpr TypeName type_table[] = {
    {"any", ArgType::any},
    {"int", ArgType::integer},
    {"num", ArgType::number},
    {"bool", ArgType::boolean},
    {"list", ArgType::list},
    {"map", ArgType::map},
    {"tensor", ArgType::tensor},
    {"tensors", ArgType::tensors},
    {"mesh", ArgType::mesh},
    {"optimizer", ArgType::optimizer},
    {"observation", ArgType::observation},
    {"dtype", ArgType::dtype},
    {"module", ArgType::module},
    {"counts", ArgType::counts},
    {"path", ArgType::path},
    {"paths", ArgType::paths},
    {"word", ArgType::word},
    {"words", ArgType::words},
    {"text", ArgType::text},
    {"choice", ArgType::choice},
    {"name", ArgType::name},
    {"names", ArgType::names},
};

ArgumentSpec parse_argument(std::string_view text) {
  ArgumentSpec spec;
  if (text.front() == '*') {
    spec.alone = true;
    text.remove_prefix(1);
  }
  const std::size_t colon = text.find(':');
  LOCKSTEP_CHECK(colon != std::string_view::npos, "argument without type: ", text);
  std::string_view name = trim(text.substr(0, colon));
  std::string_view type = trim(text.substr(colon + 1));
  const std::size_t equals = type.find('=');
  if (equals != std::string_view::npos) {
    spec.default_text = std::string(trim(type.substr(equals + 1)));
    type = trim(type.substr(0, equals));
  }
  if (name.back() == '?') {
    spec.optional = true;
    name.remove_suffix(1);
  }
  spec.name = std::string(name);
  if (type.find('|') != std::string_view::npos) {
    spec.type = ArgType::choice;
    for (std::size_t start = 0; start <= type.size();) {
      const std::size_t end = std::min(type.find('|', start), type.size());
      spec.choices.emplace_back(type.substr(start, end - start));
      start = end + 1;
    }
    return spec;
  }
  if (type.starts_with("num ") || type.starts_with("int ")) {
    spec.range = parse_range(trim(type.substr(4)));
    type = type.substr(0, 3);
  }
  for (const TypeName& entry : type_table) {
    if (entry.name == type) {
      spec.type = entry.type;
      return spec;
    }
  }
  throw InternalError("unknown argument type in the vocabulary: " + std::string(type));
}

VerbSpec parse_verb(const VerbRow& row) {
  VerbSpec spec{row.id, row.name, row.group, row.block, row.signature, row.doc, {}, false, 0, {}};
  std::string_view text = row.signature;
  const std::size_t arrow = text.find("->");
  if (arrow != std::string_view::npos) {
    spec.result = std::string(trim(text.substr(arrow + 2)));
    text = trim(text.substr(0, arrow));
  }
  if (text == "name: any, ...") {
    spec.free_names = true;
    return spec;
  }
  if (text.front() == '[') {
    const std::size_t end = text.find(']');
    spec.num_in_order = static_cast<int>(split(text.substr(1, end - 1)).size());
    text = trim(text.substr(end + 1));
  }
  for (std::string_view item : split(text)) spec.arguments.push_back(parse_argument(item));
  return spec;
}

FunctionSpec parse_function(const FunctionRow& row) {
  FunctionSpec spec{row.id, row.name, row.kind, row.signature, row.doc, 0, 0, {}, {}};
  for (std::string_view item : split(row.signature)) {
    if (item.back() == '=') {
      spec.keywords.emplace_back(item.substr(0, item.size() - 1));
    } else if (item.ends_with("...")) {
      ++spec.min_positional;
      spec.max_positional = -1;
      spec.names.emplace_back();
    } else {
      const bool optional = item.back() == '?';
      if (optional) item.remove_suffix(1);
      if (!optional) ++spec.min_positional;
      if (spec.max_positional >= 0) ++spec.max_positional;
      spec.names.emplace_back(item);
      spec.keywords.emplace_back(item);
    }
  }
  return spec;
}

}  // namespace

std::string_view title_of(Group group) {
  static constexpr std::array<std::string_view, num_groups> titles = {
      "Set-up", "Models", "Parallel", "Training", "Collectives", "State", "Observation", "Faults", "Control", "Checks"};
  return titles[static_cast<std::size_t>(group)];
}

std::string_view title_of(FunctionKind kind) {
  static constexpr std::array<std::string_view, num_function_kinds> titles = {
      "Plain values", "New tensors", "On tensors", "Sharded tensors", "Of objects", "In place"};
  return titles[static_cast<std::size_t>(kind)];
}

std::string_view effect_of(Function function) {
  if (function == Function::full_tensor || function == Function::redistribute) return "communicates";
  return function != Function::none && spec_of(function).kind == FunctionKind::in_place ? "changes a tensor" : "";
}

std::string_view name_of(ArgType type) {
  for (const TypeName& entry : type_table) {
    if (entry.type == type) return entry.name;
  }
  return "?";
}

bool is_literal(ArgType type) { return type >= ArgType::path; }
bool takes_list(ArgType type) { return type == ArgType::paths || type == ArgType::words || type == ArgType::names; }

const ArgumentSpec* VerbSpec::alone() const {
  for (const ArgumentSpec& argument : arguments) {
    if (argument.alone) return &argument;
  }
  return nullptr;
}

std::optional<std::size_t> VerbSpec::index_of(std::string_view argument) const {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name == argument) return i;
  }
  return std::nullopt;
}

const std::vector<VerbSpec>& verbs() {
  static const std::vector<VerbSpec> table = [] {
    std::vector<VerbSpec> specs;
    for (const VerbRow& row : verb_rows) specs.push_back(parse_verb(row));
    return specs;
  }();
  return table;
}

const VerbSpec& spec_of(Verb verb) { return verbs()[static_cast<std::size_t>(verb)]; }
std::string_view name_of(Verb verb) { return verb_rows[static_cast<std::size_t>(verb)].name; }

const VerbSpec* find_verb(std::string_view name) {
  for (const VerbSpec& spec : verbs()) {
    if (spec.name == name) return &spec;
  }
  return nullptr;
}

const std::vector<FunctionSpec>& functions() {
  static const std::vector<FunctionSpec> table = [] {
    std::vector<FunctionSpec> specs;
    for (const FunctionRow& row : function_rows) specs.push_back(parse_function(row));
    return specs;
  }();
  return table;
}

const FunctionSpec& spec_of(Function function) {
  LOCKSTEP_CHECK(function != Function::none, "no function");
  return functions()[static_cast<std::size_t>(function) - 1];
}
std::string_view name_of(Function function) {
  return function == Function::none ? std::string_view("?") : spec_of(function).name;
}

const FunctionSpec* find_function(std::string_view name) {
  for (const FunctionSpec& spec : functions()) {
    if (spec.name == name) return &spec;
  }
  return nullptr;
}

}  // namespace lockstep::scenario
