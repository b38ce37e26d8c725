// Runs one case on one rank on the engine. It performs each step with its verb's function and collects the outcome of
// the rank: failures, evidence, records. Checks that wait for values are judged when the case ends.
//
//   LiveRun live(spec, rank, stage);
//   verdict::RankOutcome outcome = live.run();
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "harness/run/case_runner.hpp"
#include "harness/run/checks/checks.hpp"
#include "harness/run/checks/launches.hpp"
#include "harness/run/delayed_kill.hpp"
#include "harness/run/interpreter.hpp"
#include "harness/run/observe/timeline.hpp"
#include "harness/run/observe/trace_bits.hpp"
#include "harness/run/step_runner.hpp"
#include "harness/run/trace/control_digest.hpp"
#include "harness/run/trace/plan_check.hpp"

namespace lockstep::run {

// The CPU time of the calling thread since it started.
double thread_cpu_seconds();

// Thrown by a rank that returns early because the scenario says so.
struct EarlyExit {};

class LiveRun final : public StepRunner {
 public:
  LiveRun(const CaseSpec& spec, int rank, std::size_t stage);

  verdict::RankOutcome run();  // never throws; once

  void prepare(Session& session) override;
  void enter(const scenario::Step& step, const Site& site) override;
  void resume(const scenario::Step& step) override;
  void begin_iteration() override {}
  Value perform(StepCall& call) override;
  void perform_expecting_error(StepCall& call) override;
  bool tolerates(const scenario::Step&, const Scope&, const Error&) override { return false; }
  std::optional<Value> routine_argument(const scenario::Expr& expr, const Scope& scope) override;
  bool allows_unbound_results() const override { return false; }

  // ---- for verbs ----
  Checks& checks() { return checks_; }
  LaunchChecks& launch_checks() { return launch_checks_; }
  verdict::Evidence& evidence() { return outcome_.evidence; }
  RankBudget& budget() { return *budget_; }
  ControlDigest& control() { return control_; }
  std::int64_t num_working_steps() const { return num_working_steps_; }  // so far; see does_work()
  // Adds a failure at `site`. `secondary`: it follows from the failure of another rank.
  void fail(const Site& site, std::string message, bool secondary = false);
  // Records a value in the results. A record of the same name is replaced.
  void record(const std::string& name, verdict::JsonText json);
  // Runs the hook before each all_reduce of a replicated module, on the stream that does the work. Several hooks of one
  // module run in the order they were added.
  void add_before_all_reduce(const nn::ModulePtr& module, std::function<void()> hook);
  // `set_flags` has set is_last_backward at these modules.
  void note_last_backward(const nn::ModulePtr& module, bool is_last);
  // Hands in the outcome collected so far, then ends the process by a signal.
  [[noreturn]] void end_by_kill();
  // The process ends so in the middle of its next steps, or after the last one. `expected: false`: without an outcome.
  void end_later_by_kill(double after_ms, bool expected);

 private:
  void run_steps_and_finish();                  // errors become failures
  void run_steps_to_end();                      // errors become failures, and peers learn that this rank has ended
  void fail_from(const std::exception& error);  // at the current step
  // Whether a raised error is the expected one, and in time: evidence, or a failure at `site`.
  void judge_raised(const Site& site, const StepCall& call, const std::string& message, const std::string& pattern,
                    double milliseconds);

  // live_run_finish.cpp: the end of the case
  void finish();
  void conclude_before_kill();  // judges the checks so far
  void judge_across(const Fail& fail_check);
  void judge_order();
  void judge_transport();
  void judge_plan();
  void judge_planned_collectives();
  void summarise();
  void write_trace_bits() const;
  void write_timeline() const;

  const CaseSpec& spec_;
  verdict::RankOutcome outcome_;
  Checks checks_;
  LaunchChecks launch_checks_;
  std::unordered_set<std::string> reached_checks_;
  std::map<const nn::Module*, std::shared_ptr<std::vector<std::function<void()>>>> before_all_reduce_;
  LogRanges expected_to_fail_;             // log entries of steps that had to raise
  std::unique_ptr<TraceBits> trace_bits_;  // null unless the spec asks for it
  std::unique_ptr<Timeline> timeline_;     // null unless the spec asks for it
  RankBudget* budget_ = nullptr;           // set during run()
  std::optional<DelayedKill> kill_;        // set by end_later_by_kill()
  bool announced_ = false;                 // peers know that this rank ended before its last step
  std::int64_t num_working_steps_ = 0;
  ControlDigest control_;
  Interpreter interpreter_;
};

}  // namespace lockstep::run
