// What changed between two results files: `lockstep compare OLD NEW`.
//
//   RunComparison changes = compare_runs(read_results("old.jsonl"), read_results("new.jsonl"));
//   std::cout << to_text(changes);
//   return changes.num_worse > 0 ? 1 : 0;
//
// Worse: a verdict that is worse (PASS, then XFAIL, then not run, then unexpected), a case that is gone, evidence lost,
// more collectives or bytes, a kind of collective that is gone, fewer comparisons with the same bits or that require
// them, and a looser tolerance. Better is the reverse, except that nothing is better for having vanished. Time is
// compared on the same machine and build only. It changes the exit code only where that is asked for (`time_gates`),
// and then when it grew by far more than the two runs differ anyway.
#pragma once

#include <string>
#include <vector>

#include "harness/report/results_file.hpp"

namespace lockstep::report {

enum class Weight { worse, better, other };
std::string_view name_of(Weight weight);

struct Change {
  Weight weight = Weight::other;
  std::string what;      // verdict, collectives, bits, tolerance, evidence, memory, time, gone, new
  std::string scenario;  // "" for a change of the whole run
  std::string case_id;
  std::string text;  // "PASS -> FAIL: ..."
};

struct CompareRunsOptions {
  bool time_gates = false;   // time that grew counts as worse; else it is shown only
  double time_ratio = 2.0;   // a case is slower when it takes more than this times as long, after the run's own drift,
  double time_floor = 0.25;  // and this many seconds more
  double overall_ratio = 1.5;  // the whole run is slower beyond this
  double memory_ratio = 1.05;  // memory is told beyond this
};

struct RunComparison {
  std::string old_path;
  std::string new_path;
  std::vector<Change> changes;  // worse ones first, then better, then others; in the order of the files
  int num_compared = 0;         // cases in both files
  int num_changed = 0;          // of which something changed
  int num_worse = 0;            // changes for the worse
  std::vector<std::string> warnings;
  int exit_code() const { return num_worse > 0 ? 1 : 0; }
};

RunComparison compare_runs(const ResultsFile& before, const ResultsFile& after, const CompareRunsOptions& options = {});
std::string to_text(const RunComparison& comparison);
std::string to_json(const RunComparison& comparison);

struct CompareCommandOptions {
  bool json = false;
  bool time_gates = false;
  bool allow_cut = false;  // takes an old file without a summary
};

// Reads both, prints to standard output, gives the exit code 0 or 1. Throws Error when a file cannot be read, has
// another schema, or when the old one has no summary.
int compare_command(const std::string& old_path, const std::string& new_path, const CompareCommandOptions& options);

}  // namespace lockstep::report
