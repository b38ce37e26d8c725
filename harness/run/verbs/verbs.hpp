// The verbs of the language, one C++ function a row of harness/scenario/verbs.def: a row without its function does not
// link. They are grouped by file as the rows are.
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

// A step that runs: its arguments by name, evaluated when asked for. What is missing without a default is none.
struct StepCall {
  Interpreter& in;
  const scenario::Step& step;
  const Scope& scope;
  LiveRun* live_run = nullptr;  // null in a dry run

  // The run that gathers evidence. Throws InternalError in a dry run, which must leave out the verbs that call this.
  LiveRun& live() const;
  Site site() const { return in.site_of(step, scope); }

  bool has(std::string_view name) const;                    // given, or with a default
  bool given(std::string_view name) const;                  // in the file, not by default
  const scenario::Expr& expr(std::string_view name) const;  // throws Error when it is missing
  Value value(std::string_view name) const;
  bool boolean(std::string_view name) const { return value(name).as_bool(name); }
  std::int64_t integer(std::string_view name) const;  // in the range of its row in verbs.def, as number()
  double number(std::string_view name) const;
  std::optional<double> maybe_number(std::string_view name) const;
  std::optional<bool> maybe_boolean(std::string_view name) const;
  std::string text(std::string_view name) const { return value(name).as_text(name); }
  std::vector<std::string> words(std::string_view name) const;  // empty when missing
  Tensor tensor(std::string_view name) const { return value(name).as_tensor(name); }
  List list(std::string_view name) const { return value(name).as_list(name); }
  MeshPtr mesh(std::string_view name = "mesh") const { return value(name).as_mesh(name); }
  std::vector<ModuleAt> modules(std::string_view name) const;  // of a path or paths; each once
  std::vector<TensorAt> parameters(std::string_view name) const;
  ModuleAt module(std::string_view name) const;     // exactly one
  std::string source(std::string_view name) const;  // the argument as it is written
};

// Gives what `as` names.
Value run_verb(StepCall& call);

namespace verbs {
#define LOCKSTEP_VERB(id, name, group, block, signature, doc) Value id(StepCall& call);
#include "harness/scenario/verbs.def"
#undef LOCKSTEP_VERB
}  // namespace verbs

}  // namespace lockstep::run
