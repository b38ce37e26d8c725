// Reads typed values from a YAML tree. A mistake is reported at its exact place, and the value is omitted; no function
// throws for it. Internal to this layer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "harness/scenario/document.hpp"
#include "harness/scenario/yaml_tree.hpp"

namespace lockstep::scenario {

// Returns the routine of a name, or reports an error and returns nullptr.
using RoutineSource = std::function<std::shared_ptr<const Routine>(const std::string& name, const Place& place)>;

class Reader {
 public:
  Reader(const YamlFile& yaml, Diagnostics& diagnostics, RoutineSource routines)
      : yaml_(yaml), diagnostics_(diagnostics), routines_(std::move(routines)) {}

  void error(const Place& place, std::string message) { diagnostics_.error(place, std::move(message)); }

  // Reports the keys of the map that are not known, each with the nearest known key.
  void check_keys(const YamlNode& map, const std::vector<std::string>& known, std::string_view where);
  static const YamlNode* find(const YamlNode& map, std::string_view key);

  // Each reports an error, and returns nothing or false, when the node is of another kind. `what` names the node in the
  // message.
  bool require_map(const YamlNode& node, std::string_view what);
  bool require_list(const YamlNode& node, std::string_view what);
  std::optional<std::string> text(const YamlNode& node, std::string_view what);
  std::optional<std::int64_t> integer(const YamlNode& node, std::string_view what);
  std::optional<double> number(const YamlNode& node, std::string_view what);
  std::vector<std::string> texts(const YamlNode& node, std::string_view what);  // a text, or a list of texts
  std::optional<Literal> literal(const YamlNode& node);

  // Reports a name that cannot be bound: a reserved word, or other characters than lower-case letters, digits and `_`.
  bool check_name(const std::string& name, const Place& place);
  std::string name(const YamlNode& node, std::string_view what);

  // An expression. A YAML list or map becomes a list or map of expressions.
  ExprPtr expression(const YamlNode& node);
  // A literal text, which may contain `${}`.
  ExprPtr literal_text(const YamlNode& node, std::string_view what);
  // The value of an argument. Checks its type as far as it is known before running.
  ExprPtr argument(const YamlNode& node, const ArgumentSpec& spec);
  ExprPtr default_of(const ArgumentSpec& spec, const Place& place);

  // The names that unreadable steps would bind. Using them is no further error.
  const std::set<std::string>& assumed_names() const { return assumed_names_; }

  Steps steps(const YamlNode& node, std::string_view what);                // steps.cpp
  std::vector<ModelDefinition> models(const YamlNode& node);               // models.cpp
  std::vector<RoutineParameter> routine_parameters(const YamlNode& node);  // document_parser.cpp

 private:
  std::optional<Step> step(const YamlNode& node);
  struct StepKeys;
  StepKeys find_step_keys(const YamlNode& node);
  void report_unknown_key(const YamlNode& key, const StepKeys& keys, const YamlNode& step);
  void read_modifiers(Step& step, const VerbSpec& spec, const YamlNode& node);
  void read_blocks(Step& step, const VerbSpec& spec, const YamlNode& node);
  void read_branches(Step& step, const VerbSpec& spec, const YamlNode& node);
  void read_as(Step& step, const VerbSpec& spec, const YamlNode& node);
  void read_raises(Step& step, const YamlNode& node);

  // step_arguments.cpp. The functions that return bool return false when the rest of the arguments cannot be read, for
  // example because an unquoted comma has split an expression; missing arguments are then not reported.
  void read_arguments(Step& step, const VerbSpec& spec, const YamlNode& value);
  void read_argument(Step& step, const VerbSpec& spec, std::size_t index, const YamlNode& node);
  void read_entries(Step& step, const VerbSpec& spec, const YamlNode& value);  // let, forward, record
  bool read_named_arguments(Step& step, const VerbSpec& spec, const YamlNode& value);
  bool read_ordered_arguments(Step& step, const VerbSpec& spec, const YamlNode& value);
  void add_defaults(Step& step, const VerbSpec& spec, bool complete);
  void read_use(Step& step, const YamlNode& node);
  bool read_routine_arguments(Step& step, const YamlNode* with);
  void read_routine_names(Step& step, const YamlNode& as);

  // step_rules.cpp
  void check_rules(const Step& step, const VerbSpec& spec);
  void check_hook_target(const Step& step, const VerbSpec& spec);
  void check_memory_purposes(const Step& step);
  void check_file_name(const Step& step);
  void check_ranges(const Step& step, const VerbSpec& spec);

  // argument_values.cpp
  void check_counts(const YamlNode& node);
  ExprPtr literal_list(const YamlNode& node, const ArgumentSpec& spec);
  void check_word(const Expr& value, const ArgumentSpec& spec);

  // models.cpp
  ModelDefinition read_model(const std::string& name, const YamlNode& key, const YamlNode& node);
  void read_method(ModelDefinition& model, const YamlNode& key, const YamlNode& node);
  void check_new_input(const MethodDefinition& method, const std::string& name, const Place& place);
  void check_distinct_names(const ModelDefinition& model);
  std::vector<NamedExpr> named_expressions(const YamlNode& node, std::string_view what, bool module);
  // document_parser.cpp
  void read_default(RoutineParameter& parameter, const YamlNode& node);

  // steps.cpp: add the names that an unreadable step, a list of steps, or `as` would bind to the assumed names.
  void assume_names_of_step(const YamlNode& step);
  void assume_names_of_steps(const Steps& list);
  void assume_names_of_as(const YamlNode& as);

  const YamlFile& yaml_;
  Diagnostics& diagnostics_;
  RoutineSource routines_;
  std::set<std::string> assumed_names_;
};

// The error message for a value that cannot be of the type; empty when it can be, or when only the run knows.
std::string mismatch(const Expr& value, ArgType type);

}  // namespace lockstep::scenario
