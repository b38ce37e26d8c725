#include "harness/cli/inspect_commands.hpp"

#include <filesystem>
#include <fstream>
#include <iterator>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "engine/comm/recorder.hpp"
#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"
#include "harness/cli/machine.hpp"
#include "harness/run/plan_check.hpp"
#include "harness/scenario/describe.hpp"
#include "harness/scenario/documents.hpp"
#include "harness/scenario/library.hpp"

namespace lockstep::cli {

int list_command(const std::vector<std::string>& what, const scenario::ExpandOptions& expand, bool json) {
  scenario::Library library(scenarios_folder());
  std::vector<std::shared_ptr<const scenario::Scenario>> scenarios;
  for (const std::string& path : library.find(what)) scenarios.push_back(library.load(path));
  const std::vector<scenario::ListRow> rows = scenario::list_rows(scenarios, expand);
  fmt::print("{}\n", json ? scenario::list_json(rows) : scenario::list_text(rows));
  return 0;
}

namespace {

// The plan of one case: the first that runs, of those asked for.
std::string explain_collectives(scenario::Library& library, const std::shared_ptr<const scenario::Scenario>& scenario,
                                const std::string& only) {
  scenario::ExpandOptions options;
  options.only = only;
  for (const scenario::Case& one : scenario::expand(scenario, options)) {
    if (one.skip || one.unsupported) continue;
    run::CaseSpec spec;
    spec.scenario = scenario.get();
    spec.test_case = &one;
    spec.library = &library;
    const std::string plan = run::explain_plan(spec);
    if (plan.empty()) return "";
    return str("Collectives that rank 0 must make, or it fails (plan); of [", one.id, "], another case with --case\n",
               plan, "\n");
  }
  return "";
}

}  // namespace

int explain_command(const std::string& name, const std::string& only) {
  scenario::Library library(scenarios_folder());
  for (const std::string& path : library.find({name})) {
    const std::shared_ptr<const scenario::Scenario> scenario = library.load(path);
    fmt::print("{}\n{}", scenario::explain(scenario, {}), explain_collectives(library, scenario, only));
  }
  return 0;
}

int validate_command(const std::vector<std::string>& files) {
  scenario::Library library(scenarios_folder());
  std::vector<std::string> paths = library.find(files);
  if (files.empty()) {
    for (const std::string& routine : library.routine_names())
      paths.push_back(library.root() + "/lib/" + routine + ".yaml");
  }
  std::size_t num_errors = 0, num_bad = 0;
  for (const std::string& path : paths) {
    const scenario::Diagnostics diagnostics = library.validate(path);
    if (diagnostics.empty()) continue;
    fmt::print("{}\n", diagnostics.text());
    num_errors += diagnostics.items().size();
    ++num_bad;
  }
  if (num_bad == 0) {
    fmt::print("{} file(s) sound\n", paths.size());
    return 0;
  }
  fmt::print("{} error(s) in {} of {} file(s)\n", num_errors, num_bad, paths.size());
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

int explain_hang_command(const std::string& folder) {
  const std::filesystem::path file = std::filesystem::path(folder) / "recorder.jsonl";
  std::ifstream in(file);
  if (!in) {
    throw Error(str("there is no flight recorder dump in ", folder),
                "name a folder that `lockstep run --results FILE` left under FILE.dumps");
  }
  const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  if (std::ifstream about(std::filesystem::path(folder) / "case.txt"); about) {
    fmt::print("{}", std::string{std::istreambuf_iterator<char>(about), std::istreambuf_iterator<char>()});
  }
  fmt::print("{}\n", comm::explain(comm::stories_from_text(text)));
  return 0;
}

}  // namespace lockstep::cli
