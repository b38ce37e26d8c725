// `lockstep kill-matrix`: runs scenarios under each seeded defect and reports whether a check of the kind that the
// defect declares catches it (defect_catch.hpp).
#pragma once

#include <string>
#include <vector>

#include "harness/cli/run_cases.hpp"

namespace lockstep::cli {

struct KillMatrixOptions {
  std::vector<std::string> defects;  // names; empty: all
  std::string results_file;          // JSON lines, one per defect; empty: none
  std::string earlier_results;       // of an earlier run: what caught a defect there runs first; empty: none
  bool all = false;                  // run every case under every defect, instead of stopping at the first catch
  RunCasesOptions run;
};

// Prints a line per defect and a summary. Returns 0 when each defect is caught and every case that caught one passes
// without any defect, 130 when interrupted, otherwise 1. Throws Error for an unknown defect and when a results file
// cannot be opened or read, and ResourceError when the machine refuses something that the run needs.
int kill_matrix(scenario::Library& library, const std::vector<scenario::Case>& cases, const KillMatrixOptions& options);

}  // namespace lockstep::cli
