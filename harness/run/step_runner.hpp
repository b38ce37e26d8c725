// How the steps of a case are performed. The Interpreter walks the steps and hands each one to its StepRunner. There
// are two implementations:
//
//   LiveRun  (live_run.hpp)         performs the steps on the engine and gathers evidence
//   DryRun   (trace/dry_run.hpp)    follows the steps on stand-in devices and reports them to the planner
#pragma once

#include <optional>

#include "harness/run/checks/checks.hpp"
#include "harness/run/values/scope.hpp"
#include "harness/scenario/document.hpp"

namespace lockstep::run {

struct StepCall;  // verbs/verbs.hpp

class StepRunner {
 public:
  StepRunner() = default;
  virtual ~StepRunner() = default;
  StepRunner(const StepRunner&) = delete;
  StepRunner& operator=(const StepRunner&) = delete;

  // Prepares the rank's context before the first step, and sets `session.is_dry_run`.
  virtual void prepare(Session& session) = 0;
  // A step begins, before its `when` is evaluated.
  virtual void enter(const scenario::Step& step, const Site& site) = 0;
  // A step continues after the steps of a hook ran within it.
  virtual void resume(const scenario::Step& step) = 0;
  // An iteration of a loop begins.
  virtual void begin_iteration() = 0;

  // Performs one step, dispatched by its verb. Returns the value that `as` binds.
  virtual Value perform(StepCall& call) = 0;
  // Performs one step that must raise an error.
  virtual void perform_expecting_error(StepCall& call) = 0;
  // Whether the walk continues after `error` left a step.
  virtual bool tolerates(const scenario::Step& step, const Scope& scope, const Error& error) = 0;

  // The value that a `use` step gives to a parameter of its routine. Empty if only a run knows the value: then the
  // parameter stays unbound.
  virtual std::optional<Value> routine_argument(const scenario::Expr& expr, const Scope& scope) = 0;
  // Whether a name stays unbound in the caller if the routine that returns it did not bind it. Otherwise that is an
  // error.
  virtual bool allows_unbound_results() const = 0;
};

}  // namespace lockstep::run
