#include "harness/cli/run_command.hpp"

#include <chrono>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include <sys/time.h>

#include "engine/core/defects.hpp"
#include "harness/cli/case_selection.hpp"
#include "harness/cli/interrupts.hpp"
#include "harness/cli/machine.hpp"
#include "harness/cli/run_cases.hpp"
#include "harness/cli/run_outputs.hpp"
#include "harness/report/compare_traces.hpp"
#include "harness/report/timeline.hpp"

namespace lockstep::cli {

namespace {

// Sends SIGALRM to this process after so many seconds.
void start_clock(double seconds) {
  if (seconds <= 0.0) return;
  itimerval timer = {};
  timer.it_value.tv_sec = static_cast<time_t>(seconds);
  timer.it_value.tv_usec = static_cast<suseconds_t>((seconds - std::floor(seconds)) * 1e6);
  setitimer(ITIMER_REAL, &timer, nullptr);
}

// The options that change how a case runs, for `repro`, which already has --case and --set.
std::string repro_options(const RunSettings& settings) {
  std::string text;
  if (!settings.defect.empty()) text += " --defect " + settings.defect;
  if (!settings.order_check) text += " --no-order-check";
  if (settings.collective_deadline != RunSettings().collective_deadline)
    text += str(" --deadline ", settings.collective_deadline);
  if (settings.expand.timeout) text += str(" --timeout ", *settings.expand.timeout);
  return text;
}

verdict::RunInfo info_of(const RunSettings& settings) {
  verdict::RunInfo info;
  info.version = version();
  info.started = utc_now();
  info.command = settings.command;
  info.build = build_facts();
  info.machine = machine_facts();
  return info;
}

RunCasesOptions options_of(const RunSettings& settings, const RunOutputs& outputs) {
  RunCasesOptions options;
  options.jobs = settings.jobs > 0 ? settings.jobs : default_jobs();
  options.fail_fast = settings.fail_fast;
  options.order_check = settings.order_check;
  options.collective_deadline = settings.collective_deadline;
  options.repro_suffix = repro_options(settings);
  options.dump_folder = outputs.dump_folder();
  options.trace_folder = settings.trace_bits;
  options.timeline_folder = settings.timeline;
  options.files_folder = settings.files;
  if (!outputs.results_path().empty())
    options.results_folder = std::filesystem::absolute(outputs.results_path()).parent_path().string();
  return options;
}

// No file of another run is overwritten or mixed with those of this one.
void check_files_folder(const std::string& folder) {
  std::error_code error;
  if (folder.empty() || !std::filesystem::exists(folder, error)) return;
  if (!std::filesystem::is_directory(folder, error) || !std::filesystem::is_empty(folder, error))
    throw Error(str("--files: `", folder, "` is not an empty folder"), "name a new folder, or an empty one");
}

}  // namespace

int run_command(const RunSettings& settings) {
  const auto begin = std::chrono::steady_clock::now();
  const Defect defect = settings.defect.empty() ? Defect::none : defect_from_name(settings.defect);
  scenario::Library library(scenarios_folder());
  const std::vector<scenario::Case> cases = cases_of(library, settings);
  check_files_folder(settings.files);
  catch_interrupts();
  RunOutputs outputs(settings, info_of(settings));
  if (!settings.trace_bits.empty()) report::clear_traces(settings.trace_bits);
  if (!settings.timeline.empty()) report::clear_timelines(settings.timeline);
  start_clock(settings.run_timeout);
  arm_defect(defect);
  outputs.begin(static_cast<int>(cases.size()));
  const RunCasesOutcome outcome = run_cases(library, cases, options_of(settings, outputs),
                                            [&](const verdict::CaseResult& row) { outputs.add(row); });
  return outputs.end(outcome, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
}

}  // namespace lockstep::cli
