// `lockstep kill-matrix`: runs scenarios under each seeded defect and sees whether a check of the kind the defect
// declares catches it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "harness/cli/run_cases.hpp"

namespace lockstep::cli {

struct KillMatrixOptions {
  std::vector<std::string> defects;  // names; empty: all
  std::string results_file;          // JSON lines, one a defect; empty: none
  bool all = false;                  // every case under every defect, instead of until one has caught it
  RunCasesOptions run;
};

// The kind of defect that a failing check shows: expect_equal -> value, expect_collectives -> count, order -> order,
// raises -> message, an expect that reads bytes in use -> memory, ...; of an XPASS that of the check that had to fail;
// empty for what counts as no catch (a crash, a hang, a failure outside any check).
std::string kind_shown_by(const verdict::CaseResult& row, const scenario::Case& test_case);
// Whether that, or what failed after it by itself, is of the kind.
bool shows_kind(const verdict::CaseResult& row, const scenario::Case& test_case, std::string_view kind);

// 0 when each defect is caught by a check of its kind, and the cases that caught one hold without any; 1 else; 130 when
// interrupted.
int kill_matrix(scenario::Library& library, const std::vector<scenario::Case>& cases, const KillMatrixOptions& options);

}  // namespace lockstep::cli
