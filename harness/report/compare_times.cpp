#include "harness/report/compare_times.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include <fmt/format.h>

#include "engine/core/text.hpp"

namespace lockstep::report {

namespace {

// A case that both runs executed with the same verdict.
struct TimedPair {
  CaseKey key;
  double before = 0.0;  // seconds
  double after = 0.0;
  double log_ratio() const { return std::log(after / before); }
};

std::vector<TimedPair> timed_pairs(const Side& before, const Side& after) {
  std::vector<TimedPair> pairs;
  for (const CaseKey& key : before.order) {
    const auto found = after.entries.find(key);
    if (found == after.entries.end()) continue;
    const SideEntry& a = before.entries.at(key);
    const SideEntry& b = found->second;
    const bool both = was_executed(a.row->status) && a.row->status == b.row->status;
    if (!both || !(a.seconds > 0) || !(b.seconds > 0) || !std::isfinite(a.seconds) || !std::isfinite(b.seconds))
      continue;
    pairs.push_back({key, a.seconds, b.seconds});
  }
  return pairs;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// The common drift of all cases and how far a case may be off it, as logarithms of ratios. Few cases show no drift.
struct Drift {
  double center = 0.0;
  double limit = 0.0;
};

Drift drift_of(const std::vector<TimedPair>& pairs, double time_ratio) {
  Drift drift{0.0, std::log(time_ratio)};
  if (pairs.size() < 8) return drift;
  std::vector<double> ratios, deviations;
  for (const TimedPair& pair : pairs) ratios.push_back(pair.log_ratio());
  drift.center = median(ratios);
  for (const double ratio : ratios) deviations.push_back(std::fabs(ratio - drift.center));
  drift.limit = std::max(drift.limit, 5 * median(deviations));
  return drift;
}

std::string times_text(double before, double after) {
  return fmt::format("{:.3g} s -> {:.3g} s, {:.3g} times", before, after, after / before);
}

std::string fact(const std::map<std::string, std::string>& facts, const char* key) {
  const auto found = facts.find(key);
  return found == facts.end() ? std::string("unknown") : found->second;
}

}  // namespace

void compare_times(ChangeList& out, const Side& before, const Side& after, const CompareRunsOptions& options) {
  const std::vector<TimedPair> pairs = timed_pairs(before, after);
  if (pairs.empty()) return;
  const auto time_change = [&](const std::string& text, bool slower) {
    if (options.time_gates) return out.growth("time", text, slower);
    out.add(Weight::other, "time", text);
  };
  const Drift drift = drift_of(pairs, options.time_ratio);
  double old_total = 0;
  double new_total = 0;
  for (const TimedPair& pair : pairs) {
    old_total += pair.before;
    new_total += pair.after;
    const double off = pair.log_ratio() - drift.center;
    const double expected = pair.before * std::exp(drift.center);
    if (std::fabs(off) <= drift.limit || std::fabs(pair.after - expected) <= options.time_floor) continue;
    out.at(pair.key);
    time_change(times_text(pair.before, pair.after), off > 0);
  }
  const bool apart = std::fabs(new_total - old_total) > options.time_floor;
  const double overall = std::log(new_total / old_total);
  if (pairs.size() >= 8 && apart && std::fabs(drift.center) > std::log(options.overall_ratio) &&
      std::fabs(overall) > std::log(options.overall_ratio)) {
    out.at({});
    time_change(str("all ", pairs.size(), " cases together: ", times_text(old_total, new_total)), overall > 0);
  }
}

bool same_machine(RunComparison& result, const verdict::RunInfo& before, const verdict::RunInfo& after) {
  bool same = true;
  const auto look = [&](const char* what, const std::string& a, const std::string& b) {
    if (a == b) return;
    same = false;
    result.warnings.push_back(str("times are not compared: ", what, " ", a, " -> ", b));
  };
  look("processor", fact(before.machine, "cpu"), fact(after.machine, "cpu"));
  look("cores", fact(before.machine, "cores"), fact(after.machine, "cores"));
  look("compiler", fact(before.build, "compiler"), fact(after.build, "compiler"));
  look("Kokkos", fact(before.build, "kokkos"), fact(after.build, "kokkos"));
  look("BLAS", fact(before.build, "blas"), fact(after.build, "blas"));
  return same;
}

}  // namespace lockstep::report
