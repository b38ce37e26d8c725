// The verbs of the scenario language: one C++ function per row of harness/scenario/verbs.def. The program does not link
// if a row has no function. The files of this folder group them as the rows are grouped.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "harness/run/interpreter.hpp"
#include "harness/run/values/evaluate.hpp"
#include "harness/run/values/paths.hpp"
#include "harness/scenario/vocabulary.hpp"

namespace lockstep::run {

class LiveRun;

// A step that is performed. Arguments are read by name and evaluated at each read; the value of an optional argument
// that is not given is none. Every accessor throws Error if the argument has the wrong type.
struct StepCall {
  Interpreter& in;
  const scenario::Step& step;
  const Scope& scope;
  LiveRun* live_run = nullptr;  // null in a dry run

  // The run that gathers evidence. Throws InternalError in a dry run, which must leave out the verbs that call this.
  LiveRun& live() const;
  Site site() const { return in.site_of(step, scope); }

  bool has(std::string_view name) const;                    // the step gives it, or it has a default
  bool given(std::string_view name) const;                  // the step gives it
  const scenario::Expr& expr(std::string_view name) const;  // throws Error if it is not given and has no default
  Value value(std::string_view name) const;
  bool boolean(std::string_view name) const { return value(name).as_bool(name); }
  std::int64_t integer(std::string_view name) const;  // within the range of its row in verbs.def
  double number(std::string_view name) const;
  std::optional<double> maybe_number(std::string_view name) const;
  std::optional<bool> maybe_boolean(std::string_view name) const;
  std::string text(std::string_view name) const;                // of an argument with choices: one of them
  std::vector<std::string> words(std::string_view name) const;  // empty if not given
  Tensor tensor(std::string_view name) const { return value(name).as_tensor(name); }
  List list(std::string_view name) const { return value(name).as_list(name); }
  MeshPtr mesh(std::string_view name = "mesh") const { return value(name).as_mesh(name); }
  // The modules, or parameters, that a path or a list of paths matches, each once. A path must match at least one.
  std::vector<ModuleMatch> modules(std::string_view name) const;
  std::vector<TensorMatch> parameters(std::string_view name) const;
  ModuleMatch module(std::string_view name) const;  // exactly one
  std::string source(std::string_view name) const;  // the text of the argument in the scenario
};

// Calls the function of the step's verb. Returns the value that `as` binds. Throws Error instead of std::bad_alloc.
Value run_verb(StepCall& call);

namespace verbs {
#define LOCKSTEP_VERB(id, name, group, block, signature, doc) Value id(StepCall& call);
#include "harness/scenario/verbs.def"
#undef LOCKSTEP_VERB
}  // namespace verbs

}  // namespace lockstep::run
