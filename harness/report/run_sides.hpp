// The two runs of a comparison, case by case, and the list of changes. Internal to harness/report.
#pragma once

#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "harness/report/compare_runs.hpp"

namespace lockstep::report {

using CaseKey = std::pair<std::string, std::string>;  // scenario, case

// Larger is worse: PASS 0, XFAIL 1, not run 2, MISSING 3, other unexpected verdicts 4.
int badness(verdict::Status status);
// Whether the steps of the case ran to a verdict: PASS, XFAIL or FAIL.
bool was_executed(verdict::Status status);

// One case of a run: the row to compare, which is the worst of its repetitions, all of them, and its shortest time.
struct SideEntry {
  const verdict::CaseResult* row = nullptr;
  std::vector<const verdict::CaseResult*> rows{};
  double seconds = std::numeric_limits<double>::infinity();
};

// The cases of one results file, which must outlive it.
struct Side {
  std::vector<CaseKey> order;
  std::map<CaseKey, SideEntry> entries;
  explicit Side(const ResultsFile& file);
};

// Appends changes, each to the case that at() named last.
class ChangeList {
 public:
  explicit ChangeList(RunComparison& result) : result_(result) {}
  void at(const CaseKey& key) { key_ = key; }
  void add(Weight weight, std::string what, std::string text);
  // A change of which one direction is worse and the other better.
  void growth(std::string what, const std::string& text, bool is_worse);

 private:
  RunComparison& result_;
  CaseKey key_;
};

}  // namespace lockstep::report
