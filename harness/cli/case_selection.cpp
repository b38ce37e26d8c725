#include "harness/cli/case_selection.hpp"

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string_view>
#include <utility>

#include "engine/core/error.hpp"
#include "engine/device/device.hpp"
#include "engine/device/protection.hpp"
#include "harness/cli/watched.hpp"
#include "harness/report/results_file.hpp"
#include "harness/run/trace/foresight.hpp"

namespace lockstep::cli {

namespace {

// Throws one Error with the errors of all files that cannot be loaded.
std::vector<std::shared_ptr<const scenario::Scenario>> load_all(scenario::Library& library,
                                                                const std::vector<std::string>& what) {
  std::vector<std::shared_ptr<const scenario::Scenario>> scenarios;
  std::string errors;
  std::map<std::string, std::string> paths;  // by the scenario's name, which is its identity in results
  for (const std::string& path : library.find(what)) {
    try {
      scenarios.push_back(library.load(path));
      const auto [other, is_new] = paths.try_emplace(scenarios.back()->name, path);
      if (!is_new)
        errors += str(errors.empty() ? "" : "\n", path, ": the scenario `", other->first, "` is in ", other->second,
                      ", too; give one of them another name");
    } catch (const scenario::ScenarioError& error) {
      errors += str(errors.empty() ? "" : "\n", error.what());
    }
  }
  if (!errors.empty()) throw Error(errors, "");
  return scenarios;
}

// The files outside the folder of scenarios.
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

// A command line as `repro` writes it: the value of an option is a word of its own, in quotes.
std::string text_of_command(const std::vector<std::string>& command) {
  std::string text = "lockstep";
  for (std::size_t i = 1; i < command.size(); ++i) {
    const std::string& word = command[i];
    const std::size_t end = word.starts_with("--") ? std::min(word.find('='), word.size()) : 0;
    if (end > 0) text += str(" ", word.substr(0, end));
    if (end < word.size()) text += str(" ", scenario::shell_quoted(word.substr(end > 0 ? end + 1 : 0)));
  }
  return text;
}

std::vector<verdict::CaseResult> failed_in(const std::string& results) {
  report::ResultsFile file = report::read_results(results);
  std::vector<verdict::CaseResult>& failed = file.cases;
  std::erase_if(failed, [](const verdict::CaseResult& row) { return !verdict::is_unexpected(row.status); });
  if (failed.empty()) throw Error(str("nothing failed in ", results), "leave --failed out to run all");
  // The options of a run under schedules are in the file that `repro` replays, not in `repro`.
  for (verdict::CaseResult& row : failed)
    if (row.repro.find(" --schedule 'replay:") != std::string::npos) row.repro = text_of_command(file.run.command);
  return std::move(failed);
}

// The first option that `repro` of a failed case has and the command line lacks, although a case may pass without it;
// empty: none.
std::string_view forgotten_option(const std::string& repro, const std::vector<std::string>& command) {
  for (const std::string_view option :
       {"--defect", "--deadline", "--schedule", "--timeout", "--memory-mb", "--output-mb", "--sum-order"}) {
    const auto is_it = [&](const std::string& word) { return word == option || word.starts_with(str(option, "=")); };
    const bool had = (repro + " ").find(str(" ", option, " ")) != std::string::npos;
    if (had && std::none_of(command.begin(), command.end(), is_it)) return option;
  }
  return {};
}

// The first parameter that `repro` of a failed case sets and `--set` of the command line does not; empty: none.
std::string_view forgotten_parameter(std::string_view repro, const std::vector<std::string>& settings) {
  constexpr std::string_view option = " --set ";
  for (std::size_t at = repro.find(option); at != std::string_view::npos; at = repro.find(option, at)) {
    at += option.size();
    const std::size_t begin = std::min(repro.find_first_not_of("$'", at), repro.size());  // after the shell's quote
    const std::string_view name = repro.substr(begin, std::min(repro.find('=', begin), repro.size()) - begin);
    const auto is_it = [&](const std::string& setting) { return setting.starts_with(str(name, "=")); };
    if (std::none_of(settings.begin(), settings.end(), is_it)) return name;
  }
  return {};
}

// Keeps the cases that failed. A failed case that is not among them would be lost without a word, unless the options
// ask for fewer cases.
void keep_failed(std::vector<scenario::Case>& cases, const std::vector<verdict::CaseResult>& failed,
                 const RunSettings& settings) {
  std::set<CaseName> names, found;
  for (const verdict::CaseResult& row : failed) names.insert({row.scenario, row.case_id});
  std::erase_if(cases, [&](const scenario::Case& one) { return !names.contains({one.scenario->name, one.id}); });
  for (const scenario::Case& one : cases) found.insert({one.scenario->name, one.id});
  const scenario::ExpandOptions& expand = settings.expand;
  const bool asks_for_fewer = !settings.what.empty() || !expand.only.empty() || !expand.tags.empty() || expand.shard ||
                              expand.launch || expand.world_size || !expand.device.empty();
  for (const verdict::CaseResult& row : failed) {
    const bool is_there = found.contains({row.scenario, row.case_id});
    const std::string name = str(row.scenario, " [", row.case_id, "]");
    if (!is_there && (!asks_for_fewer || (cases.empty() && !expand.shard)))
      throw Error(str(name, " failed in ", settings.failed, " and is no case of this run"),
                  row.repro.empty() ? "give the options of that run" : "give the options of that run: " + row.repro);
    if (const std::string_view parameter = forgotten_parameter(row.repro, expand.set); is_there && !parameter.empty())
      throw Error(str(name, " failed with another `", parameter, "` in ", settings.failed),
                  "give --set as in that run: " + row.repro);
    if (const std::string_view option = forgotten_option(row.repro, settings.command); is_there && !option.empty())
      throw Error(str(name, " failed with ", option, " in ", settings.failed), "give it as in that run: " + row.repro);
  }
}

}  // namespace

void find_devices(scenario::ExpandOptions& expand) {
  device::require_known_protection();
  expand.available_devices.clear();
  for (const char* name : {"cpu", "sim", "cuda"}) {
    try {
      device::require_available(device::kind_from_name(name));
      expand.available_devices.emplace_back(name);
    } catch (const UnsupportedError& error) {
      expand.missing_devices[name] = error.what();
    }
  }
}

std::vector<std::string> scenarios_of(const std::vector<verdict::CaseResult>& rows, const std::string& root) {
  const std::string folder = std::filesystem::weakly_canonical(root).filename().string();
  std::set<std::string> what;
  for (const verdict::CaseResult& row : rows) {
    const bool is_own = !row.file.empty() && row.file != str(folder, "/", row.scenario, ".yaml");
    what.insert(is_own ? row.file : row.scenario);
  }
  return {what.begin(), what.end()};
}

std::vector<scenario::Case> cases_of(scenario::Library& library, const RunSettings& settings) {
  scenario::ExpandOptions expand = settings.expand;
  find_devices(expand);
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
  // A user's own file may exhaust time or memory, so a watched child evaluates it first. This process, from which the
  // ranks are forked, evaluates it again.
  if (const std::vector<std::string> own = own_files(library, what); !own.empty())
    try_in_child([&] { checked_cases(own); });
  std::vector<scenario::Case> cases = checked_cases(what);
  if (!failed.empty()) keep_failed(cases, failed, settings);
  const std::size_t count = cases.size();
  for (int i = 1; i < settings.repeat; ++i) {
    for (std::size_t j = 0; j < count; ++j) cases.push_back(cases[j]);
  }
  return cases;
}

}  // namespace lockstep::cli
