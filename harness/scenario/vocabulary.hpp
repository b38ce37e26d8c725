// The vocabulary of the scenario language: the tables of verbs (verbs.def) and functions (functions.def), the words
// that arguments choose from (vocabulary_words.cpp), the keys of files (vocabulary_keys.cpp), and the limits. Parser,
// validator, JSON Schema, REFERENCE.md and the interpreter's dispatch all use these tables; a new verb is one row.
//
//   const VerbSpec& spec = spec_of(Verb::all_reduce);
//   spec.arguments[1].choices;               // sum mean max min product
//
// The tables are constant, and any thread may read them.
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

// The steps of a verb beside its arguments: none; `steps`; `steps` and an optional `else`; the branches under `among`.
enum class Block : std::uint8_t { none, required, with_else, among };

// The type of an argument. It decides whether the argument is literal or an expression. Literal types that may contain
// `${}`: path(s), word(s), text, choice (one of the words in the signature). Literal types without `${}`: name(s). All
// other types are expressions; `module` is an expression that builds a module, `counts` a map {family: {operation:
// count}}.
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
bool takes_list(ArgType type);  // literal types that may be a list: paths, words, names

struct ArgumentSpec {
  std::string name;
  ArgType type = ArgType::any;
  std::vector<std::string> choices;  // of type choice: the words
  NumberRange range;                 // of types integer and number
  bool alone = false;                // may be given alone, without its name
  bool optional = false;             // may be missing; no value is passed then
  std::string default_text;          // empty: none
  bool has_default() const { return !default_text.empty(); }
};

// The error message for a word that is none of the argument's choices; empty for one of them.
std::string unknown_choice(const ArgumentSpec& spec, const std::string& word);

struct VerbSpec {
  Verb id = Verb::seed;
  std::string_view name;
  Group group = Group::set_up;
  Block block = Block::none;
  std::string_view signature;
  std::string_view doc;
  std::vector<ArgumentSpec> arguments;  // empty for free names
  bool free_names = false;              // let, forward, record: any names with expressions
  int num_in_order = 0;                 // the number of arguments that may be given as a list, in order
  std::string result;                   // the kind of value that `as` names; empty: no result

  const ArgumentSpec* alone() const;  // the argument that may be given alone, or nullptr
  std::optional<std::size_t> index_of(std::string_view argument) const;
};

const std::vector<VerbSpec>& verbs();  // in the order of the enumeration
const VerbSpec& spec_of(Verb verb);
const VerbSpec* find_verb(std::string_view name);
std::string_view name_of(Verb verb);

enum class FunctionKind : std::uint8_t { plain, factory, tensor, sharded, object, in_place };
inline constexpr int num_function_kinds = 6;
// Why a call is allowed in `let`, in `forward` and in models only: `communicates` or `changes a tensor`. Else empty.
std::string_view effect_of(Function function);
std::string_view title_of(FunctionKind kind);

struct FunctionSpec {
  Function id = Function::none;
  std::string_view name;
  FunctionKind kind = FunctionKind::plain;
  std::string_view signature;
  std::string_view doc;
  int min_positional = 0;             // the smallest number of positional arguments
  int max_positional = 0;             // the largest number of positional arguments; -1: any
  std::vector<std::string> names;     // of the positional arguments; an empty name for a repeated argument
  std::vector<std::string> keywords;  // the arguments that a call may give by name
};

const std::vector<FunctionSpec>& functions();
const FunctionSpec& spec_of(Function function);
const FunctionSpec* find_function(std::string_view name);
std::string_view name_of(Function function);

// The points at which hooks run, and the argument of `hook` that each point requires.
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

// Names that every expression knows, beside parameters and matrix names: variables and element types.
const std::vector<std::string_view>& variables();
const std::vector<std::string_view>& type_names();

// The layers and models that `model:` builds, with the names of their arguments.
struct ModelSpec {
  std::string_view name;
  std::vector<std::string> arguments;  // "mult?": optional; "...": any number
  std::string_view doc;
};
const std::vector<ModelSpec>& built_in_models();

const std::vector<std::string>& families();          // data_parallel, ...
const std::vector<std::string>& collective_names();  // all_reduce, ...
const std::vector<std::string>& memory_purposes();   // parameter, ...
const std::vector<std::string>& routine_types();     // any, integer, ...
// The argument type for a routine parameter of that type.
ArgType argument_type_of(std::string_view routine_type);
const std::vector<std::string>& step_modifiers();  // as, when, raises, steps, else, among, with, place, note
const std::vector<std::string>& devices();         // cpu, sim, cuda

// The keys of a scenario file, a routine file, a model and a step, with their meaning.
struct KeySpec {
  std::string_view name;
  bool required = false;
  std::string_view doc;
};
const std::vector<KeySpec>& scenario_keys();
// The verdicts that `expect_failure` may name, FAIL first, and the keys of `evidence`.
const std::vector<std::string>& failing_verdicts();
const std::vector<std::string>& evidence_names();
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
inline constexpr int value_depth = 200;  // nesting of lists, maps and modules during a run, and of JSON that it reads
// Defaults of `timeout` and `limits`, which the scenario and the command line override.
inline constexpr double timeout_seconds = 60;     // per case
inline constexpr std::int64_t memory_mb = 2048;   // MiB per rank; less on a small machine (cli/case_limits.hpp)
inline constexpr std::int64_t output_mb = 64;     // MiB per rank of records and written files
inline constexpr std::int64_t most_mb = 1 << 20;  // the largest value of either
// Limits before launch, for each of: reading a file, evaluating its rules, tracing its plan.
inline constexpr double evaluation_seconds = 5;
inline constexpr std::int64_t evaluation_mb = 256;
}  // namespace limits

}  // namespace lockstep::scenario
