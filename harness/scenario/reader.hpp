// Reading typed values out of a YAML tree, with an error at the exact place for each that does not fit. Internal to
// this layer. Nothing here throws for a user's mistake: what cannot be read is reported and left out.
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

// Gives the routine of a name, or nullptr after saying why not.
using RoutineSource = std::function<std::shared_ptr<const Routine>(const std::string& name, const Place& place)>;

class Reader {
 public:
  Reader(const YamlFile& yaml, Diagnostics& diagnostics, RoutineSource routines)
      : yaml_(yaml), diagnostics_(diagnostics), routines_(std::move(routines)) {}

  void error(const Place& place, std::string message) { diagnostics_.error(place, std::move(message)); }

  // Reports keys of the map that are not known, each with the nearest known one.
  void check_keys(const YamlNode& map, const std::vector<std::string>& known, std::string_view where);
  static const YamlNode* find(const YamlNode& map, std::string_view key);

  // Each reports and gives nothing when the node is something else; `what` names it in the message.
  bool require_map(const YamlNode& node, std::string_view what);
  bool require_list(const YamlNode& node, std::string_view what);
  std::optional<std::string> text(const YamlNode& node, std::string_view what);
  std::optional<std::int64_t> integer(const YamlNode& node, std::string_view what);
  std::optional<double> number(const YamlNode& node, std::string_view what);
  std::vector<std::string> texts(const YamlNode& node, std::string_view what);  // one, or a list of them
  std::optional<Literal> literal(const YamlNode& node);

  // A lower-case name that may be bound.
  bool check_name(const std::string& name, const Place& place);
  std::string name(const YamlNode& node, std::string_view what);

  // An expression; a YAML list or map there becomes a list or map of expressions.
  ExprPtr expression(const YamlNode& node);
  // A literal text with `${}`.
  ExprPtr literal_text(const YamlNode& node, std::string_view what);
  // A value of the argument's type; checks what can be told before running.
  ExprPtr argument(const YamlNode& node, const ArgumentSpec& spec);
  ExprPtr default_of(const ArgumentSpec& spec, const Place& place);

  // Names that some step would bind if it could be read.
  const std::set<std::string>& excused() const { return excused_; }

  Steps steps(const YamlNode& node, std::string_view what);                // steps.cpp
  std::vector<OwnModel> models(const YamlNode& node);                      // models.cpp
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

  // step_arguments.cpp. The functions that return bool return false where an unquoted comma has split the text: what is
  // missing then is not reported.
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
  void check_counts(const YamlNode& node);
  ExprPtr literal_list(const YamlNode& node, const ArgumentSpec& spec);
  void check_word(const Expr& value, const ArgumentSpec& spec);
  OwnModel own_model(const std::string& name, const YamlNode& key, const YamlNode& node);
  void own_method(OwnModel& model, const YamlNode& key, const YamlNode& node);
  std::vector<NamedExpr> named_expressions(const YamlNode& node, std::string_view what, bool module);

  void read_default(RoutineParameter& parameter, const YamlNode& node);

  void excuse(const YamlNode& step);
  void excuse_bound(const Steps& list);
  void excuse_names(const YamlNode& as);

  const YamlFile& yaml_;
  Diagnostics& diagnostics_;
  RoutineSource routines_;
  std::set<std::string> excused_;
};

// Why a value known before running cannot be of the type; empty when it can.
std::string mismatch(const Expr& value, ArgType type);

}  // namespace lockstep::scenario
