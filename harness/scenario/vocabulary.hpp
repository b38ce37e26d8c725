// The vocabulary of the scenario language: one table of verbs (verbs.def), one of functions (functions.def), the words
// that arguments choose from, and the limits. Parser, validator, JSON Schema, REFERENCE.md and the interpreter's
// dispatch all read it here, so that a new verb is one row.
//
//   const VerbSpec& spec = spec_of(Verb::all_reduce);
//   spec.arguments[1].choices;               // sum mean max min product
//
// Constant after first use; any thread may read it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "harness/scenario/number_range.hpp"

namespace lockstep::scenario {

enum class Verb : std::uint8_t {
#define LOCKSTEP_VERB(id, name, group, block, signature, doc) id,
#include "harness/scenario/verbs.def"
#undef LOCKSTEP_VERB
};

enum class Function : std::uint8_t {
  none,
#define LOCKSTEP_FUNCTION(id, name, kind, signature, doc) id,
#include "harness/scenario/functions.def"
#undef LOCKSTEP_FUNCTION
};

enum class Group : std::uint8_t {
  set_up,
  models,
  parallel,
  training,
  collectives,
  state,
  observation,
  faults,
  control,
  checks
};
inline constexpr int num_groups = 10;
std::string_view title_of(Group group);  // "Set-up", ...

// The steps a verb takes beside its arguments: none; `steps`; `steps` and maybe `else`; the branches under `among`.
enum class Block : std::uint8_t { none, required, with_else, among };

// What an argument is, which decides whether it is an expression. Literal: `path(s)`, `word(s)`, `text(s)`, `choice`
// (the words after the colon), with `${}` in them; `name(s)` without. All else is an expression; `module` is one that
// builds a module, `counts` a map of family to operation to count.
enum class ArgType : std::uint8_t {
  any,
  integer,
  number,
  boolean,
  list,
  map,
  tensor,
  tensors,
  mesh,
  optimizer,
  observation,
  dtype,
  module,
  counts,
  path,
  paths,
  word,
  words,
  text,
  choice,
  name,
  names,
};
std::string_view name_of(ArgType type);
bool is_literal(ArgType type);
bool takes_list(ArgType type);  // of the literal types: paths, words, names

struct ArgumentSpec {
  std::string name;
  ArgType type = ArgType::any;
  std::vector<std::string> choices;  // of a choice
  NumberRange range;                 // of an integer or a number
  bool alone = false;                // may be given alone
  bool optional = false;             // may be missing, then nothing is passed
  std::string default_text;          // empty: none
  bool has_default() const { return !default_text.empty(); }
};

struct VerbSpec {
  Verb id = Verb::seed;
  std::string_view name;
  Group group = Group::set_up;
  Block block = Block::none;
  std::string_view signature;
  std::string_view doc;
  std::vector<ArgumentSpec> arguments;  // empty when the names are free
  bool free_names = false;              // let, forward, record
  int num_in_order = 0;                 // how many arguments may be given as a list, in order
  std::string result;                   // what `as` names; empty: nothing

  const ArgumentSpec* alone() const;  // nullptr: none may be given alone
  std::optional<std::size_t> index_of(std::string_view argument) const;
};

const std::vector<VerbSpec>& verbs();  // in the order of the enumeration
const VerbSpec& spec_of(Verb verb);
const VerbSpec* find_verb(std::string_view name);
std::string_view name_of(Verb verb);

enum class FunctionKind : std::uint8_t { plain, factory, tensor, sharded, object };
inline constexpr int num_function_kinds = 5;
// Whether calling it makes collectives: then it stands in `let`, in `forward` and in models only.
bool communicates(Function function);
std::string_view title_of(FunctionKind kind);

struct FunctionSpec {
  Function id = Function::none;
  std::string_view name;
  FunctionKind kind = FunctionKind::plain;
  std::string_view signature;
  std::string_view doc;
  int min_positional = 0;             // of all that may stand by position
  int max_positional = 0;             // -1: any number
  std::vector<std::string> names;     // of the arguments by position; empty names where they repeat
  std::vector<std::string> keywords;  // that a call may use
};

const std::vector<FunctionSpec>& functions();
const FunctionSpec& spec_of(Function function);
const FunctionSpec* find_function(std::string_view name);
std::string_view name_of(Function function);

// Where a hook runs, and what its `modules`, `parameters` or `optimizer` must name.
enum class HookTarget : std::uint8_t { modules, parameters, optimizer };
struct HookPointSpec {
  std::string_view name;
  HookTarget target;
  std::string_view doc;
};
const std::vector<HookPointSpec>& hook_points();
const std::vector<std::string_view>& hook_names();  // module, parameter, inputs, named_inputs, outputs, recomputing

struct AttributeSpec {
  std::string_view of;  // "tensor", "mesh", "scaler", "observation", "setting"
  std::string_view name;
  std::string_view doc;
};
const std::vector<AttributeSpec>& attributes();

// Names that every expression knows beside parameters and matrix names: variables and type names.
const std::vector<std::string_view>& variables();
const std::vector<std::string_view>& type_names();

// Layers and models that `model:` builds, with the names of their arguments.
struct ModelSpec {
  std::string_view name;
  std::vector<std::string> arguments;  // "mult?": may be missing; "...": any number
  std::string_view doc;
};
const std::vector<ModelSpec>& built_in_models();

const std::vector<std::string>& families();          // data_parallel, ...
const std::vector<std::string>& collective_names();  // all_reduce, ...
const std::vector<std::string>& memory_purposes();   // parameter, ...
const std::vector<std::string>& routine_types();     // any, integer, ...
// What a routine's parameter of that type takes as an argument.
ArgType argument_type_of(std::string_view routine_type);
const std::vector<std::string>& step_modifiers();  // as, when, raises, steps, else, among, with, place, note
const std::vector<std::string>& devices();         // cpu, sim, cuda

// Keys of a file, of a step and of an own model, with what they mean; `required` ones must be there.
struct KeySpec {
  std::string_view name;
  bool required = false;
  std::string_view doc;
};
const std::vector<KeySpec>& scenario_keys();
const std::vector<KeySpec>& routine_keys();
const std::vector<KeySpec>& model_keys();
const std::vector<KeySpec>& modifier_keys();
std::vector<std::string> names_of(const std::vector<KeySpec>& keys);

namespace limits {
inline constexpr std::size_t expression_characters = 1000;
inline constexpr int expression_depth = 32;
inline constexpr std::size_t list_items = 10000;
inline constexpr std::size_t file_bytes = 1 << 20;
inline constexpr int yaml_depth = 32;
inline constexpr int yaml_aliases = 50;
inline constexpr int yaml_nodes = 20000;
inline constexpr std::size_t cases = 10000;
inline constexpr int routine_depth = 8;
inline constexpr std::size_t recorded_numbers = 10000;
inline constexpr int value_depth = 200;  // of lists, maps and modules while a case runs, and of JSON that it reads
// A case's budget unless the scenario or the command gives another: `timeout`, `limits`.
inline constexpr double timeout_seconds = 60;
inline constexpr std::int64_t memory_mb = 2048;   // of a rank, less where the machine has less (cli/case_limits.hpp)
inline constexpr std::int64_t output_mb = 64;     // that a rank records and writes to files
inline constexpr std::int64_t most_mb = 1 << 20;  // that either may be set to
// Of one file before launch: reading it, its rules, its plan.
inline constexpr double evaluation_seconds = 5;
inline constexpr std::int64_t evaluation_mb = 256;
}  // namespace limits

}  // namespace lockstep::scenario
