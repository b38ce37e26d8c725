#include "harness/cli/run_command.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <sys/time.h>

#include "engine/core/defects.hpp"
#include "engine/core/fnv.hpp"
#include "engine/core/printable.hpp"
#include "engine/core/resources.hpp"
#include "engine/core/schedule.hpp"
#include "harness/cli/case_selection.hpp"
#include "harness/cli/follow_hosts.hpp"
#include "harness/cli/interrupts.hpp"
#include "harness/cli/machine.hpp"
#include "harness/cli/run_cases.hpp"
#include "harness/cli/run_outputs.hpp"
#include "harness/cli/schedule_file.hpp"
#include "harness/cli/standard_streams.hpp"
#include "harness/launch/cores.hpp"
#include "harness/report/compare_traces.hpp"
#include "harness/report/timeline.hpp"
#include "harness/scenario/regular_file.hpp"
#include "harness/scenario/vocabulary.hpp"

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
  if (!settings.schedule.empty()) text += str(" --schedule ", scenario::shell_quoted(settings.schedule));
  if (settings.schedules != 1) text += str(" --schedules ", settings.schedules);
  if (settings.expand.timeout) text += str(" --timeout ", *settings.expand.timeout);
  return text;
}

verdict::RunInfo info_of(const RunSettings& settings, const launch::Hosts* hosts) {
  verdict::RunInfo info;
  info.version = version();
  info.started = utc_now();
  info.command = settings.command;
  info.build = build_facts();
  info.machine = machine_facts();
  if (hosts != nullptr) info.machine["hosts"] = hosts->describe();
  return info;
}

ScheduleOptions schedule_options_of(const RunSettings& settings) {
  ScheduleOptions schedule;
  schedule.request = launch::request_from_text(settings.schedule);
  if (!schedule.request.file.empty()) schedule.request.switches = read_schedule_file(schedule.request.file).switches;
  schedule.count = settings.schedules;
  schedule.folder = settings.schedule_files.empty() ? "lockstep-schedules" : settings.schedule_files;
  return schedule;
}

// The options that hold on every host. Of a run on several hosts, each case uses all of them.
RunCasesOptions options_of(const RunSettings& settings, launch::Hosts* hosts) {
  RunCasesOptions options;
  const bool several = hosts != nullptr && hosts->num_hosts() > 1;
  options.jobs = several ? 1 : settings.jobs > 0 ? settings.jobs : default_jobs();
  options.hosts = several ? hosts : nullptr;
  options.fail_fast = settings.fail_fast;
  options.order_check = settings.order_check;
  options.process_per_case = settings.process_per_case;
  options.collective_deadline = settings.collective_deadline;
  options.repro_suffix = repro_options(settings);
  options.trace_folder = settings.trace_bits;
  options.timeline_folder = settings.timeline;
  options.files_folder = settings.files;
  if (!settings.schedule.empty()) options.schedule = schedule_options_of(settings);
  return options;
}

// No file of another run is overwritten or mixed with those of this one.
void make_files_folder(const std::string& folder) {
  std::error_code error;
  if (folder.empty()) return;
  const bool exists = std::filesystem::exists(folder, error);
  if (exists && (!std::filesystem::is_directory(folder, error) || !std::filesystem::is_empty(folder, error)))
    throw Error(str("--files: `", printable_line(folder), "` is not an empty folder"),
                "name a new folder, or an empty one");
  std::filesystem::create_directories(folder, error);
  if (is_exhaustion(error.value()))
    throw resource_error(str("making the folder ", printable_line(folder)), error.value());
  if (error)
    throw Error(str("--files: cannot make the folder `", printable_line(folder), "`: ", error.message()),
                "name a folder in one that can be written");
}

// A replay of chosen scenarios takes the parameters of the command line. Those that the failed run set must be among
// them, or the replay would pass for another reason.
void require_parameters_of(const ScheduleFile& file, const RunSettings& settings) {
  for (const std::string& setting : file.set) {
    const std::string name = setting.substr(0, setting.find('=') + 1);  // with the `=`
    const auto sets_it = [&](const std::string& one) { return one.starts_with(name); };
    if (std::none_of(settings.expand.set.begin(), settings.expand.set.end(), sets_it))
      throw Error(str("the case of --schedule ", printable_line(settings.schedule), " failed with --set ",
                      printable_line(setting)),
                  "give it, or leave the names of scenarios out: the file names the case and its parameters");
  }
}

// The settings of a run under a schedule: on sim, with ranks as threads. Those of a replay are in its file.
RunSettings with_schedule(RunSettings settings) {
  if (settings.schedule.empty()) return settings;
  const auto refuse = [&](const char* option) {
    throw Error(str("--schedule decides for ranks that are threads of one process, with streams on sim; ", option,
                    " asks for something else"),
                str("leave ", option, " out"));
  };
  scenario::ExpandOptions& expand = settings.expand;
  if (!expand.device.empty() && expand.device != "sim") refuse("--device");
  if (expand.launch == scenario::Launch::process) refuse("--launch");
  expand.device = "sim";
  expand.launch = scenario::Launch::thread;
  const launch::ScheduleRequest request = launch::request_from_text(settings.schedule);
  if (request.kind != launch::ScheduleRequest::Kind::replay) return settings;
  const ScheduleFile file = read_schedule_file(request.file);
  if (settings.what.empty()) {
    settings.what = {file.scenario};
    if (expand.only.empty()) expand.only = file.case_id;
    expand.set.insert(expand.set.begin(), file.set.begin(), file.set.end());
    if (!expand.world_size) expand.world_size = file.world_size;
    if (!expand.timeout) expand.timeout = file.timeout;
    if (!expand.memory_mb) expand.memory_mb = file.memory_mb;
    if (!expand.output_mb) expand.output_mb = file.output_mb;
    if (file.deadline && settings.collective_deadline == RunSettings().collective_deadline)
      settings.collective_deadline = *file.deadline;
  } else {
    require_parameters_of(file, settings);
  }
  if (settings.defect.empty()) settings.defect = file.defect;
  settings.order_check = settings.order_check && file.order_check;
  return settings;
}

// Cases that run elsewhere than on sim have no streams that could be scheduled. A rank has a thread and a stream at
// least.
void skip_cases_without_schedule(std::vector<scenario::Case>& cases) {
  constexpr int most_ranks = static_cast<int>(schedule::Record::max_actors) / 2;
  for (scenario::Case& one : cases) {
    if (one.skip) continue;
    if (one.device != "sim") one.skip = str("--schedule needs sim, and the scenario runs on ", one.device);
    if (one.world_size > most_ranks)
      one.skip = str("--schedule decides for ", most_ranks, " ranks at most, and the case has ", one.world_size);
  }
}

// The cases of the run. Those with more ranks than processes were started are skipped.
std::vector<scenario::Case> cases_on(scenario::Library& library, const RunSettings& settings,
                                     const launch::Hosts* hosts) {
  if (!settings.schedule.empty() && hosts != nullptr && hosts->num_hosts() > 1)
    throw Error("--schedule decides for the ranks of one process, and this run has several hosts",
                "start it on one host, or leave --schedule out");
  std::vector<scenario::Case> cases = cases_of(library, settings);
  if (!settings.schedule.empty()) skip_cases_without_schedule(cases);
  if (hosts == nullptr) return cases;
  for (scenario::Case& one : cases) {
    int num_ranks = one.world_size;
    for (const scenario::StageLaunch& stage : one.stages) num_ranks = std::max(num_ranks, stage.world_size);
    if (num_ranks > hosts->num_ranks() && !one.skip)
      one.skip = str("it needs ", num_ranks, " ranks, and ", hosts->num_ranks(), " processes were started");
  }
  return cases;
}

std::uint64_t digest_of_file(const std::string& path) {
  return fnv1a(scenario::read_regular_file(path, scenario::limits::file_bytes));
}

// What all hosts must have in common, an entry per line: program, command, cases with the bytes of their files,
// routines with the bytes of theirs.
std::string common_text(const RunSettings& settings, const scenario::Library& library,
                        const std::vector<scenario::Case>& cases) {
  std::string text = str("lockstep ", version(), "\n");
  for (std::size_t i = 1; i < settings.command.size(); ++i) text += str(i == 1 ? "" : " ", settings.command[i]);
  text += "\n";
  std::map<const scenario::Scenario*, std::uint64_t> digests;
  for (const scenario::Case& one : cases) {
    const auto [digest, is_new] = digests.try_emplace(one.scenario.get(), 0);
    if (is_new) digest->second = digest_of_file(one.scenario->path);
    text += str(one.scenario->name, " [", one.id, "] ", digest->second, "\n");
  }
  for (const auto& [name, digest] : library.routine_digests()) text += str("routine ", name, " ", digest, "\n");
  return text;
}

// Another host than host 0. An error here reaches host 0 as a difference, and host 0 ends the run.
int run_on_other_host(const RunSettings& settings, launch::Hosts& hosts) {
  const RunCasesOptions options = options_of(settings, &hosts);
  std::optional<scenario::Library> library;
  std::vector<scenario::Case> cases;
  std::string common;
  try {
    if (!settings.defect.empty()) arm_defect(defect_from_name(settings.defect));
    library.emplace(scenarios_folder());
    cases = cases_on(*library, settings, &hosts);
    common = common_text(settings, *library, cases);
  } catch (const std::exception& error) {
    if (is_of_machine(error)) throw;  // host 0 loses this host
    common = str("error: ", text_of(error));
  }
  try {
    hosts.agree("commands and cases", common, interrupted);
  } catch (const Error&) {  // host 0 reports it
    return follow_hosts(hosts, [](const StageCommand&) {});
  }
  return follow_cases(*library, cases, options);
}

void note_unseen_folders(launch::Hosts& hosts) {
  const std::pair<std::uint64_t, const char*> remedies[] = {
      {std::uint64_t{0}, "set TMPDIR to a folder that all hosts share, or cases that exchange files fail"},
      {unseen_trace_bits, "give --trace-bits a folder that all hosts share, or the traces of this host are missing"},
      {unseen_timeline, "give --timeline a folder that all hosts share, or the ranks of this host are missing"}};
  for (int host = 1; host < hosts.num_hosts(); ++host)
    for (const auto& [number, remedy] : remedies)
      if (const std::optional<std::string> folder = hosts.take(host, launch::Topic::unseen, number))
        complain(str("note: ", hosts.name_of(host), " does not see ", *folder, "; ", remedy));
}

// This process alone, or host 0.
int run_here(const RunSettings& settings, launch::Hosts* hosts) {
  const auto begin = std::chrono::steady_clock::now();
  const Defect defect = settings.defect.empty() ? Defect::none : defect_from_name(settings.defect);
  scenario::Library library(scenarios_folder());
  const std::vector<scenario::Case> cases = cases_on(library, settings, hosts);
  check_output_files(settings, cases);
  make_files_folder(settings.files);
  RunCasesOptions options = options_of(settings, hosts);
  if (options.hosts != nullptr) {
    hosts->agree("commands and cases", common_text(settings, library, cases), interrupted);
    if (settings.jobs > 1)
      complain(str("note: --jobs ", settings.jobs, " is 1 on several hosts, because each case uses all of them"));
  }
  RunOutputs outputs(settings, info_of(settings, hosts));
  options.dump_folder = outputs.dump_folder();
  if (!outputs.results_path().empty())
    options.results_folder = std::filesystem::absolute(outputs.results_path()).parent_path().string();
  if (!settings.trace_bits.empty()) report::clear_traces(settings.trace_bits);
  if (!settings.timeline.empty()) report::clear_timelines(settings.timeline);
  start_clock(settings.run_timeout);
  arm_defect(defect);
  outputs.begin(static_cast<int>(cases.size()));
  const RunCasesOutcome outcome =
      run_cases(library, cases, options, [&](const verdict::CaseResult& row) { outputs.add(row); });
  if (options.hosts != nullptr) note_unseen_folders(*hosts);
  return outputs.end(outcome, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
}

// A launcher of a run that mpirun, srun or torchrun started. All processes end with the code of host 0.
int run_on_hosts(const RunSettings& settings, launch::Processes& processes, const launch::ProcessOptions& options) {
  launch::Hosts hosts(processes, options);
  const std::vector<int>& host_of = processes.host_of();
  launch::use_cores_of_processes(static_cast<int>(std::count(host_of.begin(), host_of.end(), hosts.host())));
  const auto end = [&](int code) {
    if (hosts.host() == 0) hosts.end(code);
    if (hosts.any_lost()) {
      std::fflush(nullptr);
      hosts.link().abandon(code);
    }
    processes.end(code);
    return code;
  };
  if (hosts.host() != 0) {
    try {
      const int code = run_on_other_host(settings, hosts);
      if (hosts.is_lost(0)) complain(str(hosts.name_of(hosts.host()), " ends: ", hosts.why_lost()));
      return end(code);
    } catch (const std::exception& error) {  // host 0 sees that this host is gone
      complain(str(hosts.name_of(hosts.host()), ": ", text_of(error)));
      hosts.link().abandon(3);
      return 3;
    }
  }
  try {
    return end(exit_code_after_output(run_here(settings, &hosts)));
  } catch (const scenario::ScenarioError& error) {
    complain_plainly(error.what());
    return end(2);
  } catch (const std::exception& error) {
    complain(error);
    return end(interrupted() ? 130 : is_of_machine(error) ? 3 : 2);
  }
}

}  // namespace

int run_command(const RunSettings& asked) {
  catch_interrupts();
  const RunSettings settings = with_schedule(asked);
  launch::ProcessOptions options = launch::process_options();
  options.stop = interrupted;
  std::unique_ptr<launch::Processes> processes;
  try {
    if (settings.link != "none")  // otherwise nothing reads the launch variables, which may be wrong
      processes = launch::open_processes(launch::recognize_environment(), settings.link, options);
  } catch (const Error& error) {
    if (!interrupted()) throw;
    complain(error.what());
    return 130;
  }
  if (processes == nullptr) return run_here(settings, nullptr);
  if (processes->link() == nullptr) return processes->wait_for_launcher();
  return run_on_hosts(settings, *processes, options);
}

}  // namespace lockstep::cli
