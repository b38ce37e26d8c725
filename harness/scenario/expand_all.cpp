// The cases of several scenarios: tags, settings and selections over all of them, and shards.
#include <algorithm>
#include <iterator>
#include <set>

#include "engine/core/text.hpp"
#include "harness/scenario/expand.hpp"
#include "harness/scenario/selection.hpp"

namespace lockstep::scenario {

namespace {

// Names that the chosen scenarios have, collected for the errors about --set and --case.
struct KnownNames {
  std::set<std::string> parameters;
  std::set<std::string> selectable;
  std::set<std::string> used_settings;  // of --set
};

bool has_tag(const Scenario& scenario, const std::vector<std::string>& tags) {
  return tags.empty() || std::any_of(scenario.tags.begin(), scenario.tags.end(),
                                     [&](const std::string& tag) { return contains(tags, tag); });
}

// The settings of --set whose parameter the scenario has; a setting that no scenario has is an error later.
std::vector<std::string> own_settings(const Scenario& scenario, const std::vector<std::string>& settings,
                                      KnownNames& known) {
  std::vector<std::string> own;
  for (const NamedLiteral& parameter : scenario.parameters) known.parameters.insert(parameter.name);
  for (const std::string& setting : settings) {
    const std::string name = split_setting(setting).first;
    const bool has = std::any_of(scenario.parameters.begin(), scenario.parameters.end(),
                                 [&](const NamedLiteral& parameter) { return parameter.name == name; });
    if (!has) continue;
    own.push_back(setting);
    known.used_settings.insert(setting);
  }
  return own;
}

void check_settings(const std::vector<std::string>& settings, const KnownNames& known) {
  for (const std::string& setting : settings) {
    if (known.used_settings.contains(setting)) continue;
    const std::string name = split_setting(setting).first;
    throw Error(str("--set: no chosen scenario has the parameter `", name, "`",
                    suggestion(name, {known.parameters.begin(), known.parameters.end()})));
  }
}

[[noreturn]] void fail_selection(const Selection& selection, const std::string& text, const KnownNames& known) {
  for (const auto& [key, value] : selection) {
    if (known.selectable.contains(key)) continue;
    throw Error(str("--case: no chosen scenario has the matrix name `", key, "`",
                    suggestion(key, {known.selectable.begin(), known.selectable.end()})));
  }
  throw Error(str("--case: no case matches ", text), "`lockstep list` shows the cases");
}

std::vector<Case> take_shard(std::vector<Case> cases, std::pair<int, int> shard) {
  const auto [index, count] = shard;
  if (count < 1 || index < 1 || index > count)
    throw Error(str("--shard ", index, "/", count, " must be I/N with I from 1 to N"));
  std::vector<Case> out;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    if (static_cast<int>(i % static_cast<std::size_t>(count)) == index - 1) out.push_back(std::move(cases[i]));
  }
  return out;
}

}  // namespace

std::vector<Case> expand_all(const std::vector<std::shared_ptr<const Scenario>>& scenarios,
                             const ExpandOptions& options) {
  const Selection selection = parse_selection(options.only);
  KnownNames known;
  std::vector<Case> out;
  bool tagged = options.tags.empty();
  for (const std::shared_ptr<const Scenario>& scenario : scenarios) {
    if (!has_tag(*scenario, options.tags)) continue;
    tagged = true;
    const std::vector<std::string> names = selectable_names(*scenario);
    known.selectable.insert(names.begin(), names.end());
    ExpandOptions own = options;
    own.set = own_settings(*scenario, options.set, known);
    const bool selectable = std::all_of(selection.begin(), selection.end(),
                                        [&](const auto& entry) { return contains(names, entry.first); });
    if (!selectable) continue;
    std::vector<Case> cases = expand(scenario, own);
    std::move(cases.begin(), cases.end(), std::back_inserter(out));
  }
  if (!tagged && !scenarios.empty())
    throw Error(str("--tag: no scenario has the tag ", joined(options.tags)), "`lockstep list --json` shows the tags");
  check_settings(options.set, known);
  if (out.empty() && !selection.empty()) fail_selection(selection, options.only, known);
  if (options.shard) return take_shard(std::move(out), *options.shard);
  return out;
}

}  // namespace lockstep::scenario
