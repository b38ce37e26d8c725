#include "harness/cli/run_command.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include <sys/time.h>
#include <unistd.h>

#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"
#include "harness/cli/interrupts.hpp"
#include "harness/cli/machine.hpp"
#include "harness/cli/run_cases.hpp"
#include "harness/cli/standard_streams.hpp"
#include "harness/cli/watched.hpp"
#include "harness/report/compare_traces.hpp"
#include "harness/report/console.hpp"
#include "harness/report/dumps.hpp"
#include "harness/report/junit.hpp"
#include "harness/report/page.hpp"
#include "harness/report/results_file.hpp"
#include "harness/report/timeline.hpp"
#include "harness/run/trace/foresight.hpp"

namespace lockstep::cli {

namespace {

// Every file that is wrong in itself is told, not only the first.
std::vector<std::shared_ptr<const scenario::Scenario>> load_all(scenario::Library& library,
                                                                const std::vector<std::string>& what) {
  std::vector<std::shared_ptr<const scenario::Scenario>> scenarios;
  std::string errors;
  for (const std::string& path : library.find(what)) {
    try {
      scenarios.push_back(library.load(path));
    } catch (const scenario::ScenarioError& error) {
      errors += str(errors.empty() ? "" : "\n", error.what());
    }
  }
  if (!errors.empty()) throw Error(errors, "");
  return scenarios;
}

// Those that lie outside the folder of scenarios.
std::vector<std::string> own_files(const scenario::Library& library, const std::vector<std::string>& what) {
  std::vector<std::string> files;
  if (what.empty()) return files;
  std::error_code error;
  const std::filesystem::path root = std::filesystem::weakly_canonical(library.root(), error);
  for (const std::string& path : library.find(what)) {
    const std::filesystem::path below = std::filesystem::weakly_canonical(path, error).lexically_relative(root);
    if (below.empty() || *below.begin() == "..") files.push_back(path);
  }
  return files;
}

using CaseName = std::pair<std::string, std::string>;  // scenario, case

std::vector<verdict::CaseResult> failed_in(const std::string& results) {
  std::vector<verdict::CaseResult> failed = report::read_results(results).cases;
  std::erase_if(failed, [](const verdict::CaseResult& row) { return !verdict::is_unexpected(row.status); });
  if (failed.empty()) throw Error(str("nothing failed in ", results), "leave --failed out to run all");
  return failed;
}

// The scenarios of these rows, as `lockstep run` takes them: by name those below the root, by file all others.
std::vector<std::string> scenarios_of(const std::vector<verdict::CaseResult>& rows, const std::string& root) {
  const std::string folder = std::filesystem::weakly_canonical(root).filename().string();
  std::set<std::string> what;
  for (const verdict::CaseResult& row : rows) {
    const bool is_own = !row.file.empty() && row.file != str(folder, "/", row.scenario, ".yaml");
    what.insert(is_own ? row.file : row.scenario);
  }
  return {what.begin(), what.end()};
}

std::vector<std::string> devices_of_build() { return {"cpu", "sim"}; }

void start_clock(double seconds) {
  if (seconds <= 0.0) return;
  itimerval timer = {};
  timer.it_value.tv_sec = static_cast<time_t>(seconds);
  timer.it_value.tv_usec = static_cast<suseconds_t>((seconds - std::floor(seconds)) * 1e6);
  setitimer(ITIMER_REAL, &timer, nullptr);
}

// The options that change how a case runs, for the command that runs it again. Case and --set stand there already.
std::string switches_of(const RunSettings& settings) {
  std::string text;
  if (!settings.defect.empty()) text += " --defect " + settings.defect;
  if (!settings.order_check) text += " --no-order-check";
  if (settings.collective_deadline != RunSettings().collective_deadline)
    text += str(" --deadline ", settings.collective_deadline);
  if (settings.expand.timeout) text += str(" --timeout ", *settings.expand.timeout);
  return text;
}

}  // namespace

std::vector<scenario::Case> cases_of(scenario::Library& library, const RunSettings& settings) {
  scenario::ExpandOptions expand = settings.expand;
  expand.available_devices = devices_of_build();
  std::vector<verdict::CaseResult> failed;
  if (!settings.failed.empty()) failed = failed_in(settings.failed);
  const bool by_failed = !failed.empty() && settings.what.empty();
  const std::vector<std::string> what = by_failed ? scenarios_of(failed, library.root()) : settings.what;
  const auto checked_cases = [&](const std::vector<std::string>& of) {
    std::vector<scenario::Case> cases = scenario::expand_all(load_all(library, of), expand);
    scenario::Diagnostics wrong;
    run::check_before_launch(cases, wrong);
    if (!wrong.empty()) throw scenario::ScenarioError(wrong);
    return cases;
  };
  // A user's own files may be anything: first in a child, then here, where the ranks are forked from.
  if (const std::vector<std::string> own = own_files(library, what); !own.empty())
    try_in_child([&] { checked_cases(own); });
  std::vector<scenario::Case> cases = checked_cases(what);
  if (!failed.empty()) {
    std::set<CaseName> names;
    for (const verdict::CaseResult& row : failed) names.insert({row.scenario, row.case_id});
    std::erase_if(cases, [&](const scenario::Case& one) { return !names.contains({one.scenario->name, one.id}); });
  }
  const std::size_t count = cases.size();
  for (int i = 1; i < settings.repeat; ++i) {
    for (std::size_t j = 0; j < count; ++j) cases.push_back(cases[j]);
  }
  return cases;
}

namespace {

// Where the results of a run go: the results file, the console, JUnit and the page. An output that fails leaves the
// others whole.
class Outputs {
 public:
  Outputs(const RunSettings& settings, verdict::RunInfo info)
      : settings_(settings),
        info_(std::move(info)),
        // The page is made from a results file; without one asked for, it lies beside the page.
        results_path_(!settings.results.empty() || settings.report.empty() ? settings.results
                                                                           : settings.report + "/results.jsonl"),
        console_(std::cout, report::console_options(STDOUT_FILENO, report::when_from_name(settings.color),
                                                    report::when_from_name(settings.progress), settings.verbosity)) {
    if (results_path_.empty()) return;
    writer_.emplace(results_path_);
    writer_->write(info_);
    report::clear_dumps(dump_folder());
  }

  const std::string& results_path() const { return results_path_; }
  std::string dump_folder() const { return results_path_.empty() ? "" : report::dump_folder_of(results_path_); }
  void begin(int num_cases) { console_.begin(num_cases); }

  // Throws ResourceError when the row does not fit in the results file.
  void add(const verdict::CaseResult& row) {
    ++counts_[std::string(verdict::name_of(row.status))];
    if (row.plan_verdict && row.plan_verdict->is_judged) ++num_plans_judged_;
    if (row.plan_verdict && !row.plan_verdict->is_judged) ++plans_not_judged_[row.plan_verdict->kind()];
    console_.finished(row);
    output_failed();
    ++num_unwritten_;
    if (writer_) writer_->write(row);
    --num_unwritten_;
  }

  // The summary everywhere, then the page; returns the exit code.
  int end(const RunCasesOutcome& outcome, double seconds) {
    verdict::Summary summary;
    summary.counts = counts_;
    summary.num_plans_judged = num_plans_judged_;
    summary.plans_not_judged = plans_not_judged_;
    summary.seconds = seconds;
    summary.exit_code = out_of_time()                    ? 124
                        : outcome.interrupted            ? 130
                        : !outcome.machine_error.empty() ? 3
                                                         : verdict::exit_code_of(outcome.results);
    console_.end(summary, results_path_);
    if (!outcome.machine_error.empty()) complain(outcome.machine_error);
    code_ = exit_code_after_output(summary.exit_code);
    if (num_unwritten_ > 0)
      complain(str(results_path_, " lacks ", num_unwritten_, " of ", outcome.results.size(), " results"));
    if (!settings_.junit.empty())
      attempt([&] { report::write_junit(settings_.junit, outcome.results, info_.started); });
    summary.exit_code = code_;
    if (writer_) attempt([&] { writer_->write(summary); });
    if (!settings_.report.empty())
      attempt([&] { report::write_page(reports_folder(), results_path_, settings_.report); });
    return code_;
  }

 private:
  // An output that fails makes a good exit code a 3.
  template <class Output>
  void attempt(Output&& output) {
    try {
      output();
    } catch (const Error& error) {
      complain(error.what());
      if (code_ == 0 || code_ == 77) code_ = 3;
    }
  }

  const RunSettings& settings_;
  verdict::RunInfo info_;
  std::string results_path_;
  report::Console console_;
  std::optional<report::ResultsWriter> writer_;
  std::map<std::string, int> counts_;
  int num_plans_judged_ = 0;
  std::map<std::string, int> plans_not_judged_;
  std::size_t num_unwritten_ = 0;  // results that the results file lacks
  int code_ = 0;
};

verdict::RunInfo info_of(const RunSettings& settings) {
  verdict::RunInfo info;
  info.version = version();
  info.started = utc_now();
  info.command = settings.command;
  info.build = build_facts();
  info.machine = machine_facts();
  return info;
}

}  // namespace

int run_command(const RunSettings& settings) {
  const auto begin = std::chrono::steady_clock::now();
  const Defect defect = settings.defect.empty() ? Defect::none : defect_from_name(settings.defect);
  scenario::Library library(scenarios_folder());
  const std::vector<scenario::Case> cases = cases_of(library, settings);
  catch_interrupts();
  Outputs outputs(settings, info_of(settings));
  if (!settings.trace_bits.empty()) report::clear_traces(settings.trace_bits);
  if (!settings.timeline.empty()) report::clear_timelines(settings.timeline);
  start_clock(settings.run_timeout);
  arm_defect(defect);
  RunCasesOptions options;
  options.jobs = settings.jobs > 0 ? settings.jobs : default_jobs();
  options.fail_fast = settings.fail_fast;
  options.order_check = settings.order_check;
  options.collective_deadline = settings.collective_deadline;
  options.repro_suffix = switches_of(settings);
  options.dump_folder = outputs.dump_folder();
  options.trace_folder = settings.trace_bits;
  options.timeline_folder = settings.timeline;
  if (!outputs.results_path().empty())
    options.results_folder = std::filesystem::absolute(outputs.results_path()).parent_path().string();
  outputs.begin(static_cast<int>(cases.size()));
  const RunCasesOutcome outcome =
      run_cases(library, cases, options, [&](const verdict::CaseResult& row) { outputs.add(row); });
  return outputs.end(outcome, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
}

}  // namespace lockstep::cli
