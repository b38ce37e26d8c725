// The changes between two results files: `lockstep compare OLD NEW`.
//
//   RunComparison changes = compare_runs(read_results("old.jsonl"), read_results("new.jsonl"));
//   std::cout << to_text(changes);
//   return changes.num_worse > 0 ? 1 : 0;
//
// Worse are: a worse verdict (in the order PASS, XFAIL, not run, MISSING, other unexpected ones), a missing case, less
// evidence, more collectives or bytes, a kind of collective that is no longer issued, more comparisons whose bits
// differ, fewer comparisons that require the same bits, a looser tolerance, a plan that is not judged any more, more
// collectives that a plan leaves out, a kind of collective that is not planned any more, and another difference between
// planned and observed collectives. The reverse is better, except that the absence of something never counts as better.
// A case that ran several times is worse when one repetition is worse than all repetitions of the old run. Times are
// compared only between runs of the same machine and build. They count only with `time_gates`, and only when a time
// grew by far more than the two runs differ anyway.
#pragma once

#include <string>
#include <vector>

#include "harness/report/results_file.hpp"

namespace lockstep::report {

enum class Weight { worse, better, other };
std::string_view name_of(Weight weight);

struct Change {
  Weight weight = Weight::other;
  std::string what;      // verdict, collectives, plan, bits, tolerance, evidence, memory, time, gone or new
  std::string scenario;  // "" for a change of the whole run
  std::string case_id;
  std::string text;  // "PASS -> FAIL: ..."
};

struct CompareRunsOptions {
  bool time_gates = false;  // longer times count as worse; otherwise they are only shown
  double time_ratio =
      2.0;  // a case is slower when it takes more than this times as long, relative to the drift of the run,
  double time_floor = 0.25;    // and this many seconds longer
  double overall_ratio = 1.5;  // the whole run is slower beyond this ratio
  double memory_ratio = 1.05;  // a change of the peak is shown beyond this ratio
};

struct RunComparison {
  std::string old_path;
  std::string new_path;
  std::vector<Change> changes;  // worse ones first, then better, then others; in the order of the files
  int num_compared = 0;         // cases in both files
  int num_changed = 0;          // cases in both files with a change
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
  bool allow_cut = false;  // accept an old file of a run that was cut short
};

// Reads both files, prints the changes to standard output, and returns 1 when something got worse, otherwise 0. Throws
// Error when a file cannot be read or has another schema, when the old one has no case, and when its run was cut short:
// it has no summary, or MISSING cases.
int compare_command(const std::string& old_path, const std::string& new_path, const CompareCommandOptions& options);

}  // namespace lockstep::report
