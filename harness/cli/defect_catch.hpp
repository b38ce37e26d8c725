// Which results catch a seeded defect: the decision of the kill matrix, as pure functions of rows and cases.
//
//   DefectTally tally(info.kind);
//   tally.add(row, test_case);          // for each row of the run under the defect
//   if (tally.caught()) print(tally.catches().begin()->scenario);
//
// A defect declares the kind of check that must see it. A check of another kind, a crash, a hang, a failure outside any
// check and an invalid case do not catch it.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <tuple>

#include "engine/core/defects.hpp"
#include "harness/scenario/expand.hpp"
#include "harness/verdict/results.hpp"

namespace lockstep::cli {

// The kind of defect that the failure of a row shows:
//   value    expect, expect_equal and other expect_ verbs
//   count    expect_collectives, expect_events, plan, witness
//   order    order, plan_order
//   message  raises, and any failure at a step with `raises`
//   memory   an expect whose condition reads memory() or peak_bytes
// For an XPASS, the kind of the check that had to fail, at the line that `expect_failure` names: that check no longer
// sees the failure. Nothing for every other result, and for a failure outside any check.
std::optional<DefectKind> kind_shown_by(const verdict::CaseResult& row, const scenario::Case& test_case);

// Whether the first failure, or a later one on any rank that is no consequence of another, is of the kind.
// expect_events counts as order too, because it compares the order of events.
bool shows_kind(const verdict::CaseResult& row, const scenario::Case& test_case, DefectKind kind);

// A check that failed under a defect. `check` is the verdict where no check failed, such as CRASH.
struct Catch {
  std::string scenario;
  std::string check;
  std::string case_id{};  // of the first case that showed it; the other cases of the scenario are the same catch
  friend auto operator<=>(const Catch& a, const Catch& b) {
    return std::tie(a.scenario, a.check) <=> std::tie(b.scenario, b.check);
  }
  friend bool operator==(const Catch& a, const Catch& b) { return (a <=> b) == 0; }
};

// The results of the run under one defect.
class DefectTally {
 public:
  explicit DefectTally(DefectKind kind) : kind_(kind) {}

  // Returns whether the row catches the defect. Rows of cases that did not run (MISSING) are ignored.
  bool add(const verdict::CaseResult& row, const scenario::Case& test_case);

  bool caught() const { return !catches_.empty(); }
  const std::set<Catch>& catches() const { return catches_; }
  const std::set<Catch>& others() const { return others_; }  // unexpected results that do not catch it
  int num_run() const { return num_run_; }                   // cases

 private:
  DefectKind kind_;
  std::set<Catch> catches_, others_;
  int num_run_ = 0;
};

}  // namespace lockstep::cli
