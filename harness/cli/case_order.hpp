// The order in which the kill matrix runs cases: one that is likely to catch a defect early.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "harness/scenario/expand.hpp"

namespace lockstep::cli {

// 0 to num - 1, so ordered that the first few are spread over the whole range: the first, the last, the middle, the
// middles of both halves, ...
std::vector<int> spread_order(int num);

// One case of every scenario, then another of every scenario, and so on; within a scenario in spread_order(). For any
// parameters, ranks and device that a defect needs, an early case has them. Cases that cannot run are left out.
std::vector<scenario::Case> one_per_scenario_in_turn(const std::vector<scenario::Case>& cases);

// Copies of the cases in the order of two rankings, in turns: those that caught more defects first, since a case that
// caught one defect is likely to catch the next; and those whose scenarios have higher scores first. `num_catches` is
// keyed by the addresses of `cases`, `scores` by the names of scenarios (CaseRelevance).
std::vector<scenario::Case> likely_catchers_first(const std::vector<scenario::Case>& cases,
                                                  const std::map<const scenario::Case*, int>& num_catches,
                                                  const std::map<std::string, double>& scores);

}  // namespace lockstep::cli
