// Runs expanded cases: launches several at once and judges the outcomes of their ranks, one row per case. `lockstep
// run` and `lockstep kill-matrix` share it.
//
//   run_cases(library, cases, {.jobs = 2}, [&](const verdict::CaseResult& row) { writer.write(row); });
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "harness/cli/case_schedules.hpp"
#include "harness/launch/hosts.hpp"
#include "harness/scenario/expand.hpp"
#include "harness/scenario/library.hpp"
#include "harness/verdict/results.hpp"

namespace lockstep::cli {

struct RunCasesOptions {
  int jobs = 1;
  bool fail_fast = false;                                     // stop after the first unexpected result
  std::function<bool(const verdict::CaseResult&)> enough{};   // stop after a result for which this holds; may be empty
  std::function<void(const scenario::Case&)> before_ranks{};  // called by each rank before its steps; may be empty
  bool order_check = true;
  bool process_per_case = false;  // otherwise a process runs several cases where that saves time (stage_launch.hpp)
  bool each_rank_plans = false;   // otherwise a plan that a rank has made serves all ranks whose log it foretells
  double collective_deadline = 10.0;
  std::string repro_suffix{};      // appended to `repro` of each row: " --defect NAME"
  std::string trace_folder{};      // for the hashes of outputs and gradients of every case; empty: not kept
  std::string timeline_folder{};   // for the timelines of the cases; empty: not kept
  std::string files_folder{};      // for the files that the cases write; empty: not kept
  std::string results_folder{};    // rows name timelines relative to it; empty: by absolute paths
  launch::Hosts* hosts = nullptr;  // on which the ranks run; this is host 0, the others follow (follow_hosts.hpp)
  ScheduleOptions schedule{};      // of cases on sim with ranks as threads
  std::string dump_folder{};       // for flight recorder dumps of unexpected results; empty: not kept
};

struct RunCasesOutcome {
  std::vector<verdict::CaseResult> results;  // in the order of their ends; MISSING for cases that did not run
  bool interrupted = false;                  // by a signal (interrupts.hpp)
  // The first error because of which the run was stopped: the machine refused something, or `on_result` threw
  // ResourceError. Empty: none.
  std::string machine_error;
};

// Runs the cases and calls `on_result` for each row as its case ends. Cases start in the given order. After a reason to
// stop, no further case starts, the cases that run are collected, and each other case gives a row with MISSING and the
// reason.
RunCasesOutcome run_cases(scenario::Library& library, const std::vector<scenario::Case>& cases,
                          const RunCasesOptions& options,
                          const std::function<void(const verdict::CaseResult&)>& on_result);

}  // namespace lockstep::cli
