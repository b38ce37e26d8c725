#include "harness/cli/run_outputs.hpp"

#include <filesystem>
#include <iostream>
#include <system_error>
#include <utility>

#include <unistd.h>

#include "engine/core/error.hpp"
#include "engine/core/printable.hpp"
#include "harness/cli/interrupts.hpp"
#include "harness/cli/machine.hpp"
#include "harness/cli/standard_streams.hpp"
#include "harness/report/dumps.hpp"
#include "harness/report/junit.hpp"
#include "harness/report/page.hpp"
#include "harness/report/target.hpp"

namespace lockstep::cli {

namespace {

// The page is made from a results file. Where none is asked for, it is written beside the page.
std::string results_path_of(const RunSettings& settings) {
  if (!settings.results.empty() || settings.report.empty()) return settings.results;
  return settings.report + "/results.jsonl";
}

bool is_same_file(const std::string& one, const std::string& other) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  return fs::weakly_canonical(fs::absolute(one, ignored), ignored) ==
         fs::weakly_canonical(fs::absolute(other, ignored), ignored);
}

}  // namespace

void check_output_files(const RunSettings& settings, const std::vector<scenario::Case>& cases) {
  const std::string results = results_path_of(settings);
  if (!results.empty() && !settings.junit.empty() && is_same_file(settings.junit, results))
    throw Error(str("the results and the JUnit file are both ", printable_line(results)), "name two files");
  for (const std::string& file : {results, settings.junit})
    if (!settings.report.empty() && !file.empty() && is_same_file(file, settings.report + "/index.html"))
      throw Error(str("the page of --report would overwrite ", printable_line(file)), "name another file");
  for (const std::string& file : {results, settings.junit}) {
    std::error_code ignored;
    if (file.empty() || !std::filesystem::exists(file, ignored)) continue;
    for (const scenario::Case& one : cases)
      if (std::filesystem::equivalent(one.scenario->path, file, ignored))
        throw Error(str(printable_line(file), " is a scenario of this run; an output would overwrite it"),
                    "name another file for the output");
  }
}

int exit_code_of(const RunCasesOutcome& outcome, bool out_of_time) {
  if (out_of_time) return 124;
  if (outcome.interrupted) return 130;
  if (!outcome.machine_error.empty()) return 3;
  return verdict::exit_code_of(outcome.results);
}

namespace {
report::ConsoleOptions console_of(const RunSettings& settings, const verdict::RunInfo& info) {
  report::ConsoleOptions options =
      report::console_options(STDOUT_FILENO, report::when_from_name(settings.color),
                              report::when_from_name(settings.progress), settings.verbosity);
  if (const auto stand_in = info.machine.find("cuda"); stand_in != info.machine.end())
    options.note = str("cuda is a ", stand_in->second, "; no GPU is used");
  return options;
}
}  // namespace

RunOutputs::RunOutputs(const RunSettings& settings, verdict::RunInfo info)
    : settings_(settings),
      info_(std::move(info)),
      results_path_(results_path_of(settings)),
      console_(std::cout, console_of(settings, info_)) {
  if (!settings.junit.empty()) report::check_target(settings.junit);
  if (results_path_.empty()) return;
  writer_.emplace(results_path_);
  writer_->write(info_);
  report::clear_dumps(dump_folder());
}

std::string RunOutputs::dump_folder() const {
  return results_path_.empty() ? "" : report::dump_folder_of(results_path_);
}

void RunOutputs::begin(int num_cases) { console_.begin(num_cases); }

void RunOutputs::add(const verdict::CaseResult& row) {
  ++counts_[std::string(verdict::name_of(row.status))];
  if (row.plan_verdict && row.plan_verdict->is_judged) ++num_plans_judged_;
  if (row.plan_verdict && !row.plan_verdict->is_judged) ++plans_not_judged_[row.plan_verdict->kind()];
  planning_.add(row.planning);
  console_.finished(row);
  output_failed();  // notes the reason of a failed write while errno still holds it
  ++num_unwritten_;
  if (writer_) writer_->write(row);
  --num_unwritten_;
}

verdict::Summary RunOutputs::summary_of(const RunCasesOutcome& outcome, double seconds) const {
  verdict::Summary summary;
  summary.counts = counts_;
  summary.num_plans_judged = num_plans_judged_;
  summary.plans_not_judged = plans_not_judged_;
  summary.planning = planning_;
  summary.seconds = seconds;
  summary.exit_code = exit_code_of(outcome, out_of_time());
  return summary;
}

int RunOutputs::end(const RunCasesOutcome& outcome, double seconds) {
  verdict::Summary summary = summary_of(outcome, seconds);
  console_.end(summary, results_path_);
  if (!outcome.machine_error.empty()) complain(outcome.machine_error);
  code_ = exit_code_after_output(summary.exit_code);
  if (num_unwritten_ > 0)
    complain(str(results_path_, " lacks ", num_unwritten_, " of ", outcome.results.size(), " results"));
  if (!settings_.junit.empty()) attempt([&] { report::write_junit(settings_.junit, outcome.results, info_.started); });
  summary.exit_code = code_;
  if (writer_) attempt([&] { writer_->write(summary); });
  if (!settings_.report.empty())
    attempt([&] { report::write_page(reports_folder(), results_path_, settings_.report); });
  return code_;
}

template <class Write>
void RunOutputs::attempt(Write&& write) {
  try {
    write();
  } catch (const Error& error) {
    complain(error.what());
    if (code_ == 0 || code_ == 77) code_ = 3;
  }
}

}  // namespace lockstep::cli
