// A scenario file after parsing: steps, cases and rules, with the place of each in the file.
//
//   Library library(root);                                    // harness/scenario/library.hpp
//   std::shared_ptr<const Scenario> scenario = library.load("scenarios/replicate/single_module.yaml");
//   for (const Step& step : scenario->stages[0].steps) { switch (step.verb) { ... } }
//
// A Scenario owns its steps and shares its routines. Loaded scenarios are immutable, so ranks that are threads may
// share them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "harness/scenario/diagnostics.hpp"
#include "harness/scenario/expression.hpp"
#include "harness/scenario/literal.hpp"
#include "harness/scenario/vocabulary.hpp"

namespace lockstep::scenario {

struct Routine;
struct Step;
using Steps = std::vector<Step>;

// A name and its expression: an entry of let, forward, record or `with`, or a child of a model. Lists keep the order of
// the file.
struct NamedExpr {
  std::string name;
  Place place;
  ExprPtr value;
};

struct Branch {
  Literal label;  // the YAML key as a literal: 1, true, none, text
  Place place;
  Steps steps;
};

struct Raises {
  Place place;
  ExprPtr message;    // a text; `*` matches any text
  ExprPtr when;       // nullptr: always
  ExprPtr within_ms;  // the time limit of the step in milliseconds; nullptr: none
};

struct Step {
  Verb verb = Verb::seed;
  Place place;                     // of the verb
  std::vector<ExprPtr> arguments;  // in the order of spec_of(verb).arguments; the default, or nullptr, if not given
  std::vector<bool> given;         // whether the file gives the argument
  std::vector<NamedExpr> entries;  // let, forward, record: the free names. use: the arguments under `with`
  std::string as;                  // empty: none
  std::vector<std::pair<std::string, std::string>> as_names;  // use: the routine's name, the caller's name
  ExprPtr when;                                               // nullptr: always
  std::optional<Raises> raises;
  Steps steps;
  Steps otherwise;  // `else`
  std::vector<Branch> among;
  std::string note;
  std::string call_site_name;              // `place`; empty: the step's collectives match those of the same line
  std::shared_ptr<const Routine> routine;  // of use

  // The argument of that name; nullptr when it is not given and has no default. The verb must have the argument.
  const Expr* argument(std::string_view name) const;
};

struct MethodDefinition {
  std::string name;  // "forward" or another
  Place place;
  std::vector<std::string> inputs;                       // parameters without default
  std::vector<std::pair<std::string, ExprPtr>> options;  // parameters with default
  std::vector<NamedExpr> body;                           // intermediate names, in order; the last is "return"
};

struct ArgumentDefinition {
  std::string name;
  Place place;
  bool required = false;
  ExprPtr default_value;  // nullptr when required
};

struct ModelDefinition {
  std::string name;
  Place place;
  std::vector<ArgumentDefinition> arguments;
  std::vector<NamedExpr> children;  // in registration order, like parameters and buffers
  std::vector<NamedExpr> parameters;
  std::vector<NamedExpr> buffers;
  std::vector<NamedExpr> non_persistent_buffers;  // state dicts and checkpoints leave them out
  std::vector<MethodDefinition> methods;          // including forward, whether under `forward` or under `methods`

  const MethodDefinition* method(std::string_view name) const;
};

struct RoutineParameter {
  std::string name;
  Place place;
  std::string type;  // one of routine_types()
  bool required = true;
  ExprPtr default_value;  // a literal, or the name all_ranks
};

struct Routine {
  std::string name;
  std::string summary;
  Place place;
  std::string file;
  std::vector<RoutineParameter> parameters;
  std::vector<std::string> gives;
  std::vector<ModelDefinition> models;
  Steps steps;

  const RoutineParameter* parameter(std::string_view name) const;
};

enum class Launch : std::uint8_t { process, thread };
std::string_view name_of(Launch launch);

struct Ranks {
  Place place;
  std::vector<int> world_sizes;
  std::vector<Launch> launches{Launch::process};
};

struct Mirrors {
  std::string document;
  std::string test;
  std::optional<int> number;
};

struct NamedLiteral {
  std::string name;
  Place place;
  Literal value;
};

struct MatrixValue {
  std::string label;  // the label in a labelled matrix; empty otherwise
  Literal value;      // in a labelled matrix: a map of `label` and the entries
};
struct MatrixName {
  std::string name;
  Place place;
  bool labelled = false;
  std::vector<MatrixValue> values;
};

struct Rule {  // an item of skip or expect_failure
  Place place;
  ExprPtr when;
  std::string reason;
  // Of expect_failure:
  std::optional<int> line;                       // of the failure
  std::string message;                           // of the failure (`*` matches any text); empty: any
  std::string verdict = "FAIL";                  // one of failing_verdicts()
  std::optional<int> rank;                       // of the failure
  std::optional<std::vector<std::string>> also;  // the other failures, in order
  std::string flight_recorder;                   // of its explanation (`*` matches any text); empty: any
};

struct EvidenceItem {  // of `evidence`
  std::string name;    // one of evidence_names()
  ExprPtr value;
};

enum class Bits : std::uint8_t { unstated, required, reported };

// Who chooses the order in which sums over ranks are added: the engine, with the same bits everywhere, or the library
// of the device.
enum class SumOrder : std::uint8_t { fixed, library };
std::string_view name_of(SumOrder order);
std::optional<SumOrder> sum_order_from_name(std::string_view name);

struct Stage {
  std::string name;  // empty when the file has `steps`
  Place place;
  ExprPtr world_size;  // nullptr: the world size of the case
  Steps steps;
};

struct Scenario {
  std::string name;  // "replicate/single_module"
  std::string summary;
  std::string file;  // the name of the file in places
  std::string path;  // the path that was read
  std::string call;  // the argument of `lockstep run`: the name, or the path of a file outside the library
  Place place;
  std::optional<Mirrors> mirrors;
  std::vector<std::string> see;
  Ranks ranks;
  std::vector<std::string> devices{"cpu", "sim", "cuda"};
  std::vector<NamedLiteral> parameters;
  std::vector<MatrixName> matrix;
  std::vector<Rule> skip;
  std::vector<Rule> expect_failure;
  std::vector<EvidenceItem> evidence;
  double timeout = limits::timeout_seconds;
  bool has_timeout = false;
  std::optional<double> deadline;         // of collectives, in seconds
  std::optional<std::int64_t> memory_mb;  // of `limits`, in MiB per rank
  std::optional<std::int64_t> output_mb;
  std::vector<std::string> tags;
  Bits bits = Bits::unstated;
  std::string bits_reason;  // the reason of Bits::reported
  SumOrder sum_order = SumOrder::fixed;
  std::string unplanned_reason;  // empty: the case is compared with its plan
  std::vector<ModelDefinition> models;
  bool staged = false;        // whether the file has `stages` instead of `steps`
  std::vector<Stage> stages;  // one stage without a name for `steps`

  const ModelDefinition* model(std::string_view name) const;
};

}  // namespace lockstep::scenario
