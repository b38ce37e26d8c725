// `lockstep mutate`: runs scenarios with each step that brings a feature left out in turn (step_mutants.hpp), and
// reports the steps whose absence no check notices.
#pragma once

#include <string>
#include <vector>

#include "harness/cli/run_cases.hpp"
#include "harness/scenario/expand.hpp"

namespace lockstep::cli {

struct MutateOptions {
  std::vector<scenario::ExpandOptions> expand{1};  // that gave the cases
  std::string results_file;                        // JSON lines, one per step; empty: none
  RunCasesOptions run;
};

// Prints a line per step whose absence nothing notices, and a summary. The absence is noticed when the scenario is
// refused without the step, or a case that passes with it has an unexpected result. A note of the step that says
// `unseen: REASON` excuses it; an excuse for a step whose absence is noticed is wrong. Returns 0 when every absence is
// noticed or excused and every excuse is right, 130 when interrupted, otherwise 1. Throws Error when the results file
// cannot be opened, and ResourceError when the machine refuses something that the run needs.
int mutate(scenario::Library& library, const std::vector<scenario::Case>& cases, const MutateOptions& options);

}  // namespace lockstep::cli
