// Helpers of the tests of the verdict: outcomes of ranks, and a case with one check.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "harness/verdict/judge.hpp"

namespace lockstep::verdict::testing_support {

inline RankOutcome good(int rank) {
  RankOutcome outcome;
  outcome.rank = rank;
  outcome.evidence.comparisons = 1;
  outcome.evidence.elements = 4;
  outcome.checks_reached = {"a.yaml:9"};
  return outcome;
}

inline Failure failure(std::string message, std::int64_t time, int line = 9) {
  Failure f;
  f.check = "expect_equal";
  f.file = "a.yaml";
  f.line = line;
  f.column = 5;
  f.message = std::move(message);
  f.time_ns = time;
  return f;
}

inline RankOutcome bad(int rank, std::vector<Failure> failures) {
  RankOutcome outcome = good(rank);
  outcome.status = RankStatus::failed;
  outcome.failures = std::move(failures);
  return outcome;
}

inline RankOutcome ended(int rank, RankStatus status, std::int64_t time) {
  RankOutcome outcome;
  outcome.rank = rank;
  outcome.status = status;
  outcome.end_time_ns = time;
  outcome.last_step = StepPlace{"backward", "a.yaml", 7, 3};
  return outcome;
}

inline Expectation check_at(int line) {
  return Expectation{{{"a.yaml:" + std::to_string(line), {"expect_equal", "a.yaml", line, 5}}}, {}};
}

inline CaseResult judge_ranks(std::vector<RankOutcome> ranks, Expectation expectation = check_at(9)) {
  CaseResult blank;
  blank.scenario = "compose/a";
  blank.seconds = 0.5;
  return judge(std::move(blank), expectation, {{"", std::move(ranks)}});
}

}  // namespace lockstep::verdict::testing_support
