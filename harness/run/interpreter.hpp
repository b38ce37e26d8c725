// The interpreter of one case on one rank: walks the steps, keeps the scopes, gathers evidence and failures. Verbs
// (verbs.hpp) and checks (checks.hpp) work through it.
//
//   Interpreter interpreter(spec, rank, stage);
//   verdict::RankOutcome outcome = interpreter.run();
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "engine/core/rank_context.hpp"
#include "harness/run/case_runner.hpp"
#include "harness/run/checks/checks.hpp"
#include "harness/run/observe/timeline.hpp"
#include "harness/run/observe/trace_bits.hpp"
#include "harness/run/trace/plan_check.hpp"
#include "harness/run/values/scope.hpp"

namespace lockstep::run {

// A rank that the scenario tells to return early.
struct EarlyExit {};

class PlanTrace;  // plan_trace.hpp

class Interpreter {
 public:
  // With a trace it is the dry run that the plan is made from.
  Interpreter(const CaseSpec& spec, int rank, std::size_t stage, PlanTrace* trace = nullptr);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  verdict::RankOutcome run();  // never throws
  void trace_steps();          // of a dry run

  // ---- for verbs ----
  void run_steps(const scenario::Steps& steps, const Scope& scope);
  // The same from a hook: without recording gradients, and with the step that runs restored afterwards.
  void run_hook(const scenario::Steps& steps, const Scope& scope);
  void call_routine(const scenario::Step& step, const Scope& scope);
  // Steps of a loop: sets the iteration that failures and collectives carry.
  void run_iteration(const scenario::Steps& steps, const Scope& scope, std::int64_t iteration);

  const CaseSpec& spec() const { return spec_; }
  const scenario::Scenario& scenario() const { return *spec_.scenario; }
  const scenario::Case& test_case() const { return *spec_.test_case; }
  Session& session() { return session_; }
  RankContext& context() { return context_; }
  Checks& checks() { return checks_; }
  verdict::Evidence& evidence() { return outcome_.evidence; }
  std::int64_t num_working_steps() const { return num_working_steps_; }  // so far, those that does_work() names
  RankBudget* budget() { return budget_; }                               // null in a dry run
  void record(const std::string& name, verdict::JsonText json);
  // Before each all_reduce of a replicated module, on the stream that does the work; several hooks run in order.
  void add_before_all_reduce(const nn::ModulePtr& module, std::function<void()> hook);
  [[noreturn]] void end_by_kill();                              // hands in what is known so far, then dies of a signal
  void keep(const FramePtr& frame) { held_.push_back(frame); }  // a hook refers to it: cleared at the end of the case

  Site site_of(const scenario::Step& step, const Scope& scope) const;
  void fail(const Site& site, std::string message, bool secondary = false);

 private:
  void run_step(const scenario::Step& step, const Scope& scope);
  void perform(const scenario::Step& step, const Scope& scope);
  void trace_step(const scenario::Step& step, const Scope& scope);
  void perform_expecting_error(const scenario::Step& step, const Scope& scope);
  void enter(const scenario::Step& step, const Scope& scope);
  void set_up();
  void run_guarded();                           // the steps; what they throw becomes a failure
  void fail_from(const std::exception& error);  // at the step that runs
  void finish();                                // what is judged at the end of the case
  void judge_order();
  void judge_transport();
  void judge_plan();
  void summarise();
  void write_trace_bits() const;
  void write_timeline() const;
  bool case_has_checks_across() const;

  const CaseSpec& spec_;
  std::size_t stage_ = 0;
  RankContext& context_;
  Session session_;
  FramePtr file_frame_;
  std::vector<FramePtr> held_;
  verdict::RankOutcome outcome_;
  Checks checks_;
  std::unordered_set<std::string> reached_;
  std::map<const nn::Module*, std::shared_ptr<std::vector<std::function<void()>>>> before_all_reduce_;
  Site current_;       // of the step that runs
  LogRanges raising_;  // what steps issued that had to fail
  PlanTrace* trace_ = nullptr;
  std::unique_ptr<TraceBits> trace_bits_;  // null when none was asked for
  std::unique_ptr<Timeline> timeline_;     // the same
  RankBudget* budget_ = nullptr;           // of run()
  bool announced_ = false;
  std::int64_t num_working_steps_ = 0;
};

}  // namespace lockstep::run
