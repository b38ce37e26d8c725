#include "harness/cli/run_command.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include <fmt/core.h>
#include <sys/time.h>
#include <unistd.h>

#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"
#include "harness/cli/machine.hpp"
#include "harness/cli/run_cases.hpp"
#include "harness/report/compare_traces.hpp"
#include "harness/report/console.hpp"
#include "harness/report/junit.hpp"
#include "harness/report/page.hpp"
#include "harness/report/results_file.hpp"
#include "harness/report/timeline.hpp"

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

void keep_failed(std::vector<scenario::Case>& cases, const std::string& results) {
  std::set<std::pair<std::string, std::string>> failed;
  for (const verdict::CaseResult& row : report::read_results(results).cases) {
    if (verdict::is_unexpected(row.status)) failed.insert({row.scenario, row.case_id});
  }
  if (failed.empty()) throw Error(str("nothing failed in ", results), "leave --failed out to run all");
  std::erase_if(cases, [&](const scenario::Case& one) { return !failed.contains({one.scenario->name, one.id}); });
}

std::vector<std::string> devices_of_build() { return {"cpu", "sim"}; }

void start_clock(double seconds) {
  if (seconds <= 0.0) return;
  itimerval timer = {};
  timer.it_value.tv_sec = static_cast<time_t>(seconds);
  timer.it_value.tv_usec = static_cast<suseconds_t>((seconds - std::floor(seconds)) * 1e6);
  setitimer(ITIMER_REAL, &timer, nullptr);
}

}  // namespace

std::vector<scenario::Case> cases_of(scenario::Library& library, const RunSettings& settings) {
  scenario::ExpandOptions expand = settings.expand;
  expand.available_devices = devices_of_build();
  std::vector<scenario::Case> cases = scenario::expand_all(load_all(library, settings.what), expand);
  if (!settings.failed.empty()) keep_failed(cases, settings.failed);
  const std::size_t count = cases.size();
  for (int i = 1; i < settings.repeat; ++i) {
    for (std::size_t j = 0; j < count; ++j) cases.push_back(cases[j]);
  }
  return cases;
}

int run_command(const RunSettings& settings) {
  const auto begin = std::chrono::steady_clock::now();
  const Defect defect = settings.defect.empty() ? Defect::none : defect_from_name(settings.defect);
  scenario::Library library(scenarios_folder());
  const std::vector<scenario::Case> cases = cases_of(library, settings);

  // The page is made from a results file; without one asked for, it lies beside the page.
  const std::string results_path =
      !settings.results.empty() || settings.report.empty() ? settings.results : settings.report + "/results.jsonl";
  verdict::RunInfo info;
  info.version = version();
  info.started = utc_now();
  info.command = settings.command;
  info.build = build_facts();
  info.machine = machine_facts();
  // Stories of cases that ended badly lie beside the results.
  const std::string dump_folder = results_path.empty() ? std::string() : results_path + ".dumps";
  std::optional<report::ResultsWriter> writer;
  if (!results_path.empty()) {
    writer.emplace(results_path);
    writer->write(info);
  }
  if (!dump_folder.empty()) {
    std::error_code ignored;
    std::filesystem::remove_all(dump_folder, ignored);  // of an earlier run
  }

  if (!settings.trace_bits.empty()) report::clear_traces(settings.trace_bits);
  if (!settings.timeline.empty()) report::clear_timelines(settings.timeline);

  report::Console console(std::cout,
                          report::console_options(STDOUT_FILENO, report::when_from_name(settings.color),
                                                  report::when_from_name(settings.progress), settings.verbosity));
  catch_interrupts();
  start_clock(settings.run_timeout);
  arm_defect(defect);
  RunCasesOptions options;
  options.jobs = settings.jobs > 0 ? settings.jobs : default_jobs();
  options.fail_fast = settings.fail_fast;
  options.order_check = settings.order_check;
  options.collective_deadline = settings.collective_deadline;
  options.repro_suffix = settings.defect.empty() ? "" : " --defect " + settings.defect;
  options.dump_folder = dump_folder;
  options.trace_folder = settings.trace_bits;
  options.timeline_folder = settings.timeline;
  if (!results_path.empty()) options.results_folder = std::filesystem::absolute(results_path).parent_path().string();
  console.begin(static_cast<int>(cases.size()));
  const RunCasesOutcome outcome = run_cases(library, cases, options, [&](const verdict::CaseResult& row) {
    if (writer) writer->write(row);
    console.finished(row);
  });

  verdict::Summary summary;
  for (const verdict::CaseResult& row : outcome.results) ++summary.counts[std::string(verdict::name_of(row.status))];
  summary.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  summary.exit_code = out_of_time() ? 124 : outcome.interrupted ? 130 : verdict::exit_code_of(outcome.results);
  if (writer) writer->write(summary);
  if (!settings.junit.empty()) report::write_junit(settings.junit, outcome.results, info.started);
  console.end(summary, results_path);
  if (!settings.report.empty()) {
    try {
      report::write_page(reports_folder(), results_path, settings.report);
    } catch (const Error& error) {
      fmt::print(stderr, "lockstep: {}\n", error.what());
      if (summary.exit_code == 0) return 3;
    }
  }
  return summary.exit_code;
}

}  // namespace lockstep::cli
