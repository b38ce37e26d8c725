// What each rank of a case may use: as the command or the scenario says, else the default, less where the machine has
// less.
#pragma once

#include "harness/run/rank_budget.hpp"
#include "harness/scenario/expand.hpp"

namespace lockstep::cli {

run::RankLimits limits_of(const scenario::Case& test_case);
// The same with the machine's memory given.
run::RankLimits limits_of(const scenario::Case& test_case, std::int64_t machine_bytes);

// Of the machine, or of the control group that this process is bounded by.
std::int64_t machine_memory();

}  // namespace lockstep::cli
