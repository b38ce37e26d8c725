// A scenario file after parsing: what every rank does, and what must then hold, with the place of everything.
//
//   Library library(root);                                    // harness/scenario/library.hpp
//   std::shared_ptr<const Scenario> scenario = library.load("scenarios/replicate/single_module.yaml");
//   for (const Step& step : scenario->stages[0].steps) { switch (step.verb) { ... } }
//
// A Scenario owns its steps and shares its routines; all is immutable once loaded, so ranks may share it as threads.
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

// A name and its expression, in the order of the file: let, forward, record, `with`, a model's children.
struct NamedExpr {
  std::string name;
  Place place;
  ExprPtr value;
};

struct Branch {
  Literal label;  // a YAML key, read as a literal: 1, true, none, text
  Place place;
  Steps steps;
};

struct Raises {
  Place place;
  ExprPtr message;    // a text; `*` in it stands for anything
  ExprPtr when;       // nullptr: always
  ExprPtr within_ms;  // nullptr: any time
};

struct Step {
  Verb verb = Verb::seed;
  Place place;                     // of the verb
  std::vector<ExprPtr> arguments;  // as spec_of(verb).arguments; what is not given is its default, or nullptr
  std::vector<bool> given;         // which of them the file gives
  std::vector<NamedExpr> entries;  // let, forward, record: free names. use: the arguments under `with`
  std::string as;                  // empty: none
  std::vector<std::pair<std::string, std::string>> as_names;  // use: its name, my name
  ExprPtr when;                                               // nullptr: always
  std::optional<Raises> raises;
  Steps steps;
  Steps otherwise;  // `else`
  std::vector<Branch> among;
  std::string note;
  std::string meeting_place;               // `place`; empty: the step's collectives agree with those of the same line
  std::shared_ptr<const Routine> routine;  // of use

  // By name, nullptr when not given and without default. LOCKSTEP_CHECKs that the verb has it.
  const Expr* argument(std::string_view name) const;
};

struct OwnMethod {
  std::string name;  // "forward" or another
  Place place;
  std::vector<std::string> inputs;                       // without default
  std::vector<std::pair<std::string, ExprPtr>> options;  // with default
  std::vector<NamedExpr> body;                           // intermediate names, in order; the last is named "return"
};

struct OwnArgument {
  std::string name;
  Place place;
  bool required = false;
  ExprPtr default_value;  // nullptr when required
};

struct OwnModel {
  std::string name;
  Place place;
  std::vector<OwnArgument> arguments;
  std::vector<NamedExpr> children;  // in registration order, as are parameters and buffers
  std::vector<NamedExpr> parameters;
  std::vector<NamedExpr> buffers;
  std::vector<OwnMethod> methods;  // forward included, wherever it was written

  const OwnMethod* method(std::string_view name) const;
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
  std::vector<OwnModel> models;
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
  std::string label;  // of a labelled matrix; empty otherwise
  Literal value;      // of a labelled one: a map of its entries, and of `label`
};
struct MatrixName {
  std::string name;
  Place place;
  bool labelled = false;
  std::vector<MatrixValue> values;
};

struct Rule {  // of skip and expect_failure
  Place place;
  ExprPtr when;
  std::string reason;
  std::optional<int> line;  // expect_failure: where the failure must be
  std::string message;      // and what it must say (`*` for anything); empty: anything
};

enum class Bits : std::uint8_t { unstated, required, reported };

struct Stage {
  std::string name;  // empty when the file has `steps`
  Place place;
  ExprPtr world_size;  // nullptr: the case's
  Steps steps;
};

struct Scenario {
  std::string name;  // "replicate/single_module"
  std::string summary;
  std::string file;  // as places show it
  std::string path;  // where it was read from
  std::string call;  // what `lockstep run` finds it by: its name, or the path of a file outside the library
  Place place;
  std::optional<Mirrors> mirrors;
  std::vector<std::string> see;
  Ranks ranks;
  std::vector<std::string> devices{"cpu", "sim", "cuda"};
  std::vector<NamedLiteral> parameters;
  std::vector<MatrixName> matrix;
  std::vector<Rule> skip;
  std::vector<Rule> expect_failure;
  double timeout = limits::timeout_seconds;
  bool has_timeout = false;
  std::optional<std::int64_t> memory_mb;  // of `limits`, a rank's
  std::optional<std::int64_t> output_mb;
  std::vector<std::string> tags;
  Bits bits = Bits::unstated;
  std::string bits_reason;       // of reported
  std::string unplanned_reason;  // empty: the plan holds
  std::vector<OwnModel> models;
  bool staged = false;        // `stages` rather than `steps`
  std::vector<Stage> stages;  // one of no name for `steps`

  const OwnModel* model(std::string_view name) const;
};

}  // namespace lockstep::scenario
