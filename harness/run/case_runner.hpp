// Runs one case on one rank: performs its steps on the engine and returns the outcome with all evidence and failures.
// The launcher's rank function calls it, with the rank's context current.
//
//   launch::launch(options, [&](int rank) { return run::run_case(spec, rank); });
#pragma once

#include <memory>
#include <string>

#include "harness/run/rank_budget.hpp"
#include "harness/scenario/document.hpp"
#include "harness/scenario/expand.hpp"
#include "harness/scenario/library.hpp"
#include "harness/verdict/judge.hpp"

namespace lockstep::run {

class PlanBoard;  // trace/plan_board.hpp

struct CaseSpec {
  const scenario::Scenario* scenario = nullptr;
  const scenario::Case* test_case = nullptr;
  const scenario::Library* library = nullptr;  // routines, and the folder of `/path` arguments
  std::string case_folder;                     // the case writes its files here
  bool order_check = true;
  double collective_deadline_seconds = 10.0;
  RankLimits limits{};
  // The first part of the names of the files that trace_bits.hpp and timeline.hpp write; empty: no such file.
  std::string trace_bits{};
  std::string timeline{};
  // Shares the plan of the stage that runs among its ranks; null: each rank makes its own.
  std::shared_ptr<PlanBoard> plans{};
};

// Never throws: an error becomes a failure of the outcome. `stage` selects the steps of a staged case.
verdict::RankOutcome run_case(const CaseSpec& spec, int rank, std::size_t stage = 0);

// The expectation that the verdict compares the outcomes with: the checks that some rank must reach, except those that
// parameters exclude, and the failure that the scenario expects. Needs no launch.
verdict::Expectation expectation_of(const CaseSpec& spec);

}  // namespace lockstep::run
