// Running one case on one rank: interprets the steps against the engine and gathers what is observed. Called by the
// launcher's rank function, with the rank's context current; every failure ends up in the outcome.
//
//   launch::launch(options, [&](int rank) { return run::run_case(spec, rank); });
#pragma once

#include <string>

#include "harness/run/rank_budget.hpp"
#include "harness/scenario/document.hpp"
#include "harness/scenario/expand.hpp"
#include "harness/scenario/library.hpp"
#include "harness/verdict/judge.hpp"

namespace lockstep::run {

struct CaseSpec {
  const scenario::Scenario* scenario = nullptr;
  const scenario::Case* test_case = nullptr;
  const scenario::Library* library = nullptr;  // routines, and the folder that `/path` arguments are read from
  std::string case_folder;                     // the case's own folder for files it writes
  bool order_check = true;
  double collective_deadline_seconds = 10.0;
  RankLimits limits{};
  std::string trace_bits{};  // where this case's trace goes (trace_bits.hpp), without what ends the name; empty: none
  std::string timeline{};    // where this case's timeline goes (timeline.hpp), without what ends the name; empty: none
};

// Never throws. For a staged case `stage` picks the steps.
verdict::RankOutcome run_case(const CaseSpec& spec, int rank, std::size_t stage = 0);

// What the verdict holds the outcomes against: the checks that some rank must reach (those that parameters rule out
// left out, worked out before launch) and the failure that the scenario expects.
verdict::Expectation expectation_of(const CaseSpec& spec);

}  // namespace lockstep::run
