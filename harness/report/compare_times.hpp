// Comparing the times of two runs. Internal to harness/report.
#pragma once

#include "harness/report/run_sides.hpp"

namespace lockstep::report {

// Whether both runs are of the same machine and build, so that their times can be compared. Otherwise adds a warning
// per fact that differs.
bool same_machine(RunComparison& result, const verdict::RunInfo& before, const verdict::RunInfo& after);

// Adds the cases whose time changed, and the run as a whole. All cases drift together with the load of the machine and
// scatter around that drift; only a change that exceeds both is reported.
void compare_times(ChangeList& out, const Side& before, const Side& after, const CompareRunsOptions& options);

}  // namespace lockstep::report
