#include "harness/cli/inspect_commands.hpp"

#include <iterator>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "engine/comm/recorder.hpp"
#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"
#include "engine/core/printable.hpp"
#include "harness/cli/machine.hpp"
#include "harness/report/dumps.hpp"
#include "harness/report/text.hpp"
#include "harness/run/trace/foresight.hpp"
#include "harness/run/trace/plan_check.hpp"
#include "harness/scenario/describe.hpp"
#include "harness/scenario/documents.hpp"
#include "harness/scenario/evaluation.hpp"
#include "harness/scenario/library.hpp"

namespace lockstep::cli {

namespace {

// Prints to standard output. Text from scenario and results files cannot steer the terminal.
void show(const std::string& text) { fmt::print("{}", printable(text)); }

}  // namespace

int list_command(const std::vector<std::string>& what, const scenario::ExpandOptions& expand, bool json) {
  scenario::Library library(scenarios_folder());
  std::vector<std::shared_ptr<const scenario::Scenario>> scenarios;
  for (const std::string& path : library.find(what)) scenarios.push_back(library.load(path));
  const std::vector<scenario::ListRow> rows = scenario::list_rows(scenarios, expand);
  if (json)
    fmt::print("{}\n", printable_json(scenario::list_json(rows)));
  else
    show(scenario::list_text(rows) + "\n");
  return 0;
}

namespace {

// The planned collectives of the first selected case that can run; empty when nothing is planned.
std::string explain_collectives(scenario::Library& library, const std::shared_ptr<const scenario::Scenario>& scenario,
                                const std::string& only) {
  scenario::ExpandOptions options;
  options.only = only;
  const std::vector<scenario::Case> cases = scenario::expand(scenario, options);
  if (cases.empty() && !only.empty())
    throw Error(str("--case: no case of ", scenario->name, " matches ", only), "`lockstep list` shows the cases");
  for (const scenario::Case& one : cases) {
    if (one.skip || one.unsupported) continue;
    run::CaseSpec spec;
    spec.scenario = scenario.get();
    spec.test_case = &one;
    spec.library = &library;
    const scenario::Evaluation evaluation(scenario->file, "the plan of a case");
    const std::string plan = run::explain_plan(spec);
    if (plan.empty()) return "";
    return str("Collectives that rank 0 must issue (check `plan`), case [", one.id, "]; --case shows another\n", plan,
               "\n");
  }
  return "";
}

}  // namespace

int explain_command(const std::string& name, const std::string& only) {
  scenario::Library library(scenarios_folder());
  for (const std::string& path : library.find({name})) {
    const std::shared_ptr<const scenario::Scenario> scenario = library.load(path);
    show(str(scenario::explain(scenario, {}), "\n", explain_collectives(library, scenario, only)));
  }
  return 0;
}

namespace {

// The errors of a file that parses: those that its cases would meet when they run.
scenario::Diagnostics errors_of_cases(scenario::Library& library, const std::string& path) {
  scenario::Diagnostics found;
  std::shared_ptr<const scenario::Scenario> scenario;
  try {
    scenario = library.load(path);
  } catch (const scenario::ScenarioError&) {
    return found;  // a routine has no cases
  }
  try {
    run::check_before_launch(scenario::expand(scenario, {}), found);
  } catch (const scenario::ScenarioError& error) {
    for (const scenario::Diagnostic& item : error.diagnostics()) found.add(item);
  }
  return found;
}

}  // namespace

int validate_command(const std::vector<std::string>& files) {
  scenario::Library library(scenarios_folder());
  std::vector<std::string> paths = library.find(files);
  if (files.empty()) {
    for (const std::string& routine : library.routine_names())
      paths.push_back(library.root() + "/lib/" + routine + ".yaml");
  }
  std::int64_t num_errors = 0, num_bad = 0;
  for (const std::string& path : paths) {
    scenario::Diagnostics diagnostics = library.validate(path);
    if (diagnostics.empty()) diagnostics = errors_of_cases(library, path);
    if (diagnostics.empty()) continue;
    show(diagnostics.text() + "\n");
    num_errors += std::ssize(diagnostics.items());
    ++num_bad;
  }
  if (num_bad == 0) {
    fmt::print("{} {} valid\n", report::plural(std::ssize(paths), "file"), paths.size() == 1 ? "is" : "are");
    return 0;
  }
  fmt::print("{} in {} of {}\n", report::plural(num_errors, "error"), num_bad,
             report::plural(std::ssize(paths), "file"));
  return 2;
}

int schema_command() {
  fmt::print("{}\n", scenario::schema());
  return 0;
}

int reference_command(bool documents) {
  if (!documents) {
    fmt::print("{}", scenario::reference());
    return 0;
  }
  scenario::Library library(scenarios_folder());
  std::vector<std::shared_ptr<const scenario::Scenario>> scenarios;
  for (const std::string& path : library.find({})) scenarios.push_back(library.load(path));
  fmt::print("{}", scenario::documents_page(scenario::list_rows(scenarios, {})));
  return 0;
}

int defects_command(bool json) {
  for (int i = 0; i < num_defects(); ++i) {
    const DefectInfo& info = defect_table()[i];
    if (json) {
      const nlohmann::ordered_json row = {
          {"name", info.name}, {"place", info.place}, {"seen_by", name_of(info.kind)}, {"does", info.effect}};
      fmt::print("{}\n", row.dump());
    } else {
      fmt::print("{:<28} {:<16} {:<8} {}\n", info.name, info.place, name_of(info.kind), info.effect);
    }
  }
  return 0;
}

int explain_hang_command(const std::string& path) {
  const std::vector<report::Dump> dumps = report::find_dumps(path);
  if (dumps.size() > 1) {
    std::string list;
    for (const report::Dump& dump : dumps)
      list += str(printable_line(dump.folder), "  ", dump.about.substr(0, dump.about.find('\n')), "\n");
    show(str(dumps.size(), " cases have a dump; name the folder of one:\n", list));
    return 0;
  }
  const std::vector<comm::RankHistory> stories = comm::histories_from_text(dumps.front().stories);
  if (stories.empty())
    throw Error(str("the flight recorder dump in ", dumps.front().folder, " is empty"), "run the case again");
  show(str(dumps.front().about, comm::explain(stories), "\n"));
  return 0;
}

}  // namespace lockstep::cli
