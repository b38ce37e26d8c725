// The outputs of a run: the results file, the console, JUnit and the page. An output that fails leaves the others
// intact.
//
//   RunOutputs outputs(settings, info);
//   outputs.begin(num_cases);
//   outputs.add(row);  ...
//   return outputs.end(outcome, seconds);
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "harness/cli/run_cases.hpp"
#include "harness/cli/run_settings.hpp"
#include "harness/report/console.hpp"
#include "harness/report/results_file.hpp"
#include "harness/scenario/expand.hpp"

namespace lockstep::cli {

// The exit code of a run: 124 after the time-out of the whole run, 130 after a signal, 3 when the machine lacked
// something, otherwise the code of the results (verdict::exit_code_of).
int exit_code_of(const RunCasesOutcome& outcome, bool out_of_time);

// Throws Error when two of the results file, the JUnit file and the page of a run are one file, or when the results
// file or the JUnit file is the file of a case.
void check_output_files(const RunSettings& settings, const std::vector<scenario::Case>& cases);

class RunOutputs {
 public:
  // Opens the results file and removes the dumps of an earlier run beside it. `settings` must outlive the outputs.
  // Throws Error or ResourceError when the results file cannot be written.
  RunOutputs(const RunSettings& settings, verdict::RunInfo info);

  // The results file; REPORT/results.jsonl where only the page was asked for, and empty where neither was.
  const std::string& results_path() const { return results_path_; }
  std::string dump_folder() const;  // empty without a results file
  void begin(int num_cases);
  // Throws ResourceError when the row does not fit in the results file.
  void add(const verdict::CaseResult& row);
  // Writes the summary to every output, then JUnit and the page. Returns the exit code of the program: a failed output
  // turns 0 and 77 into 3.
  int end(const RunCasesOutcome& outcome, double seconds);

 private:
  template <class Write>
  void attempt(Write&& write);
  verdict::Summary summary_of(const RunCasesOutcome& outcome, double seconds) const;

  const RunSettings& settings_;
  verdict::RunInfo info_;
  std::string results_path_;
  report::Console console_;
  std::optional<report::ResultsWriter> writer_;
  std::map<std::string, int> counts_;  // of cases, by status
  int num_plans_judged_ = 0;
  std::map<std::string, int> plans_not_judged_;  // by kind of reason
  verdict::PlanningCost planning_;
  std::size_t num_unwritten_ = 0;  // results that are not in the results file
  int code_ = 0;
};

}  // namespace lockstep::cli
