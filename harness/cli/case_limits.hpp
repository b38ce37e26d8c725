// The budget of each rank of a case. The command line or the scenario sets it; otherwise it is the default, or less on
// a machine with little memory. And how many ranks may share a GPU.
#pragma once

#include "harness/run/rank_budget.hpp"
#include "harness/scenario/expand.hpp"

namespace lockstep::cli {

int most_ranks_of(const scenario::Case& test_case);  // over its stages

// How many ranks of all running cases may share the GPUs while this case runs among `jobs` others. 0: no bound, because
// the case runs alone or uses no GPU.
int ranks_at_once(const scenario::Case& test_case, int jobs);

run::RankLimits limits_of(const scenario::Case& test_case);
// The same for a machine with this much memory.
run::RankLimits limits_of(const scenario::Case& test_case, std::int64_t machine_bytes);

// Bytes of memory of the machine, or of the control group that limits this process.
std::int64_t machine_memory();

}  // namespace lockstep::cli
