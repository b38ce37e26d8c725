// The budget of each rank of a case. The command line or the scenario sets it; otherwise it is the default, or less on
// a machine with little memory.
#pragma once

#include "harness/run/rank_budget.hpp"
#include "harness/scenario/expand.hpp"

namespace lockstep::cli {

run::RankLimits limits_of(const scenario::Case& test_case);
// The same for a machine with this much memory.
run::RankLimits limits_of(const scenario::Case& test_case, std::int64_t machine_bytes);

// Bytes of memory of the machine, or of the control group that limits this process.
std::int64_t machine_memory();

}  // namespace lockstep::cli
