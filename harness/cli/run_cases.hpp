// Running expanded cases: launches them, several at once, and turns what the ranks leave into rows. `lockstep run` and
// `lockstep kill-matrix` share it.
//
//   run_cases(library, cases, {.jobs = 2}, [&](const verdict::CaseResult& row) { writer.write(row); });
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "harness/scenario/expand.hpp"
#include "harness/scenario/library.hpp"
#include "harness/verdict/results.hpp"

namespace lockstep::cli {

struct RunCasesOptions {
  int jobs = 1;
  bool fail_fast = false;                                    // stop after the first unexpected result
  std::function<bool(const verdict::CaseResult&)> enough{};  // stop after a result of which this holds; may be empty
  bool order_check = true;
  double collective_deadline = 10.0;
  std::string repro_suffix{};     // appended to each row's repro: " --defect NAME"
  std::string trace_folder{};     // where the bits of every case are kept, as hashes; empty: nowhere
  std::string timeline_folder{};  // where the timelines of the cases go; empty: none are kept
  std::string results_folder{};   // from where rows name their timelines; empty: they name them absolutely
  std::string dump_folder{};      // where flight recorder dumps of hung, crashed and failed cases go; empty: none
};

struct RunCasesOutcome {
  std::vector<verdict::CaseResult> results;  // in the order they ended; MISSING ones for what was not run
  bool interrupted = false;                  // by a signal (interrupts.hpp)
  // The machine lacked something that the run needs, or `on_result` threw ResourceError: the first such error. The run
  // was stopped.
  std::string machine_error;
};

RunCasesOutcome run_cases(scenario::Library& library, const std::vector<scenario::Case>& cases,
                          const RunCasesOptions& options,
                          const std::function<void(const verdict::CaseResult&)>& on_result);

}  // namespace lockstep::cli
