// The interpreter of one case on one rank. It walks the steps of a stage: conditions, loops, routines, hooks and the
// scopes of their names. Its StepRunner performs each step, either on the engine or for the plan.
//
//   Interpreter interpreter(spec, stage, runner);
//   interpreter.run();
//
// It must outlive every module of the case: hooks of modules refer to it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/core/rank_context.hpp"
#include "harness/run/case_runner.hpp"
#include "harness/run/step_runner.hpp"
#include "harness/run/values/scope.hpp"

namespace lockstep::run {

// The time in nanoseconds that sites and outcomes carry.
std::int64_t now_ns();

class Interpreter {
 public:
  // Uses the rank context that is current now.
  Interpreter(const CaseSpec& spec, std::size_t stage, StepRunner& runner);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  // Runs all steps of the stage. Throws the error of a step that fails, unless the runner tolerates it.
  void run();

  // ---- for verbs and step runners ----
  void run_steps(const scenario::Steps& steps, const Scope& scope);
  // Runs the steps of a loop once. Failures and collectives carry the iteration.
  void run_iteration(const scenario::Steps& steps, const Scope& scope, std::int64_t iteration);
  // Runs steps from a hook, without recording gradients. Afterwards the step that was interrupted is current again.
  void run_hook(const scenario::Steps& steps, const Scope& scope);
  void call_routine(const scenario::Step& step, const Scope& scope);
  // Performs one step regardless of its `when` and `raises`, and binds its result.
  void perform(StepCall& call);

  const CaseSpec& spec() const { return spec_; }
  const scenario::Scenario& scenario() const { return *spec_.scenario; }
  const scenario::Case& test_case() const { return *spec_.test_case; }
  const scenario::Stage& stage() const { return scenario().stages.at(stage_); }
  std::size_t stage_index() const { return stage_; }
  Session& session() { return session_; }
  const Session& session() const { return session_; }
  RankContext& context() { return context_; }
  Scope file_scope() const { return Scope{file_frame_}; }  // the names of the scenario's file; valid after run()
  // Clears the frame when the case ends. A frame that a hook holds would otherwise hold the hook's module.
  void clear_at_end(const FramePtr& frame) { hook_frames_.push_back(frame); }

  Site site_of(const scenario::Step& step, const Scope& scope) const;
  // The step that runs, as failures and the log name it.
  struct Position {
    const scenario::Step* step = nullptr;
    Site site;
    std::string place;  // "file:line", as RankContext::place
    int scenario_line = 0;
    int iteration = -1;
  };
  Position position() const;
  void resume(const Position& position);
  const Site& current_site() const { return site_; }

 private:
  void set_up();
  void run_step(const scenario::Step& step, const Scope& scope);
  void enter(const scenario::Step& step, const Scope& scope);

  const CaseSpec& spec_;
  std::size_t stage_ = 0;
  StepRunner& runner_;
  RankContext& context_;
  Session session_;
  FramePtr file_frame_;
  std::vector<FramePtr> hook_frames_;
  const scenario::Step* step_ = nullptr;  // the step that runs
  Site site_;                             // of that step
};

}  // namespace lockstep::run
