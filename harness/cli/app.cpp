#include "harness/cli/app.hpp"

#include <algorithm>
#include <exception>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/core.h>

#include "engine/core/resources.hpp"
#include "harness/cli/case_selection.hpp"
#include "harness/cli/checkpoint_command.hpp"
#include "harness/cli/choices.hpp"
#include "harness/cli/commands_internal.hpp"
#include "harness/cli/doctor.hpp"
#include "harness/cli/inspect_commands.hpp"
#include "harness/cli/interrupts.hpp"
#include "harness/cli/kill_matrix.hpp"
#include "harness/cli/machine.hpp"
#include "harness/cli/mutate.hpp"
#include "harness/cli/options_internal.hpp"
#include "harness/cli/plan_command.hpp"
#include "harness/cli/run_outputs.hpp"
#include "harness/cli/standard_streams.hpp"
#include "harness/cli/watched.hpp"
#include "harness/report/compare_runs.hpp"
#include "harness/report/compare_traces.hpp"
#include "harness/report/page.hpp"

namespace lockstep::cli {

namespace {

// The cases of the run, and those on `sim` if no device is asked for: some errors show only on an accelerator, which
// `sim` stands in for.
std::vector<scenario::Case> cases_on_sim_too(scenario::Library& library, const RunSettings& run) {
  std::vector<scenario::Case> cases = cases_of(library, run);
  if (!run.expand.device.empty()) return cases;
  RunSettings on_sim = run;
  on_sim.expand.device = "sim";
  for (scenario::Case& one : cases_of(library, on_sim))
    if (one.device == "sim") cases.push_back(std::move(one));
  return cases;
}

RunCasesOptions execution_of(const RunSettings& run) {
  RunCasesOptions options;
  options.jobs = run.jobs > 0 ? run.jobs : default_jobs();
  options.order_check = run.order_check;
  options.process_per_case = run.process_per_case;
  options.collective_deadline = run.collective_deadline;
  return options;
}

int kill_matrix_command(const Choices& choices) {
  catch_interrupts();
  scenario::Library library(scenarios_folder());
  const std::vector<scenario::Case> cases = cases_on_sim_too(library, choices.run);
  check_output_files(choices.run, cases);
  KillMatrixOptions options;
  options.all = choices.all;
  options.defects = choices.defects;
  options.results_file = choices.run.results;
  options.earlier_results = choices.earlier_results;
  options.run = execution_of(choices.run);
  return kill_matrix(library, cases, options);
}

int mutate_command(const Choices& choices) {
  catch_interrupts();
  scenario::Library library(scenarios_folder());
  const std::vector<scenario::Case> cases = cases_on_sim_too(library, choices.run);
  check_output_files(choices.run, cases);
  MutateOptions options;
  options.expand = {choices.run.expand};
  find_devices(options.expand[0]);
  if (choices.run.expand.device.empty()) {
    options.expand.push_back(options.expand[0]);
    options.expand[1].device = "sim";
  }
  options.results_file = choices.run.results;
  options.run = execution_of(choices.run);
  return mutate(library, cases, options);
}

PlanSettings plan_settings(const Choices& choices) {
  return {choices.name, choices.run.expand, choices.rank, choices.machine, choices.format == "json"};
}

int dispatch(const std::string& command, Choices& choices) {
  apply_shared_options(choices);
  if (command == "run") return run_command(choices.run);
  if (command == "list")
    return in_watched_child([&] { return list_command(choices.run.what, choices.run.expand, choices.json); });
  if (command == "explain")
    return in_watched_child([&] { return explain_command(choices.name, choices.run.expand.only); });
  if (command == "plan") return in_watched_child([&] { return plan_command(plan_settings(choices)); });
  if (command == "validate") return in_watched_child([&] { return validate_command(choices.files); });
  if (command == "schema") return schema_command();
  if (command == "reference") return reference_command(choices.documents);
  if (command == "report") return report::write_page(reports_folder(), choices.old_results, choices.output);
  if (command == "compare" && choices.trace)
    return report::compare_traces_command(choices.old_results, choices.new_results, choices.json);
  if (command == "compare") {
    return report::compare_command(
        choices.old_results, choices.new_results,
        {.json = choices.json, .time_gates = choices.gate_time, .allow_cut = choices.allow_cut});
  }
  if (command == "bench") return bench(choices.bench);
  if (command == "fuzz") return fuzz_command(choices.fuzz);
  if (command == "defects") return defects_command(choices.json);
  if (command == "kill-matrix") return kill_matrix_command(choices);
  if (command == "mutate") return mutate_command(choices);
  if (command == "explain-hang") return explain_hang_command(choices.folder);
  if (command == "checkpoint show") return checkpoint_show_command(choices.folder);
  if (command == "checkpoint verify") return checkpoint_verify_command(choices.folder);
  if (command == "checkpoint diff") return checkpoint_diff_command(choices.folder, choices.name);
  if (command == "checkpoint export") return checkpoint_export_command(choices.folder, choices.output);
  return doctor();
}

// Parses the command line and performs it. Returns the exit code.
int parse_and_dispatch(int argc, char** argv) {
  CLI::App app(
      "Lockstep: a conformance suite and reference engine for composable sharded training.\n\nExamples:\n"
      "  lockstep run                          run every scenario\n"
      "  lockstep explain replicate/single_module\n"
      "  lockstep compare old.jsonl new.jsonl  gate a change\n\n"
      "LOCKSTEP_HOME names a folder that holds scenarios/ and reports/, in place of the ones that come with the "
      "program.\n",
      "lockstep");
  app.set_version_flag("--version", "lockstep " + version());
  app.require_subcommand(1);
  Choices choices;
  choices.run.command.assign(argv, argv + argc);
  define_commands(app, choices);
  if (argc <= 1) {
    fmt::print("{}", app.help());
    return 2;
  }
  std::vector<std::string> known;
  for (const CLI::App* command : app.get_subcommands({})) known.push_back(command->get_name());
  if (argv[1][0] != '-' && std::find(known.begin(), known.end(), argv[1]) == known.end()) {
    complain(str("unknown command `", argv[1], "`", scenario::suggestion(argv[1], known)));
    return 2;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  const CLI::App& command = *app.get_subcommands().front();
  const std::vector<CLI::App*> nested = command.get_subcommands();
  return dispatch(command.get_name() + (nested.empty() ? "" : " " + nested.front()->get_name()), choices);
}

}  // namespace

int run_app(int argc, char** argv) {
  try {
    return parse_and_dispatch(argc, argv);
  } catch (const scenario::ScenarioError& error) {
    complain_plainly(error.what());
    return 2;
  } catch (const std::exception& error) {
    // A failed output is reported at the end of the program.
    if (dynamic_cast<const Error*>(&error) != nullptr || !output_failed()) complain(error);
    return is_of_machine(error) ? 3 : 2;
  }
}

}  // namespace lockstep::cli
