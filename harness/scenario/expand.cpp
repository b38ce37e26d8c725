#include "harness/scenario/expand.hpp"

#include <algorithm>
#include <set>

#include "engine/core/text.hpp"
#include "harness/scenario/evaluation.hpp"

namespace lockstep::scenario {

namespace {

using Selection = std::vector<std::pair<std::string, std::string>>;

// A value in a case's id; a text that would read as something else keeps its quotes, so that ids stay apart.
std::string id_text(const Literal& value) {
  if (const Literal* label = value.find("label")) return label->text();
  if (!value.is_text()) return value.text();
  bool plain = !value.as_text().empty();
  try {
    plain = plain && literal_of_scalar(value.as_text()).is_text();
  } catch (const Error&) {
    plain = false;
  }
  return plain ? value.as_text() : str("'", value.as_text(), "'");
}

// "key=value,key=[a,b]": commas within brackets belong to the value.
Selection parse_selection(const std::string& text) {
  Selection out;
  int depth = 0;
  std::size_t start = 0;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size() && (text[i] == '[' || text[i] == '{')) ++depth;
    if (i < text.size() && (text[i] == ']' || text[i] == '}')) --depth;
    if (i < text.size() && (text[i] != ',' || depth > 0)) continue;
    const std::string part = text.substr(start, i - start);
    start = i + 1;
    if (part.empty()) continue;
    const std::size_t equals = part.find('=');
    if (equals == std::string::npos || equals == 0) {
      throw Error(str("--case: `", part, "` is no key=value"), "such as --case 'layers=3,world_size=2'");
    }
    out.emplace_back(part.substr(0, equals), part.substr(equals + 1));
  }
  return out;
}

std::vector<std::string> selectable(const Scenario& scenario) {
  std::vector<std::string> names;
  for (const MatrixName& name : scenario.matrix) names.push_back(name.name);
  names.insert(names.end(), {"world_size", "launch", "device"});
  return names;
}

std::pair<std::string, std::string> split_setting(const std::string& text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0)
    throw Error(str("--set: `", text, "` is no NAME=VALUE"), "such as --set seed=7");
  return {text.substr(0, equals), text.substr(equals + 1)};
}

// The value given for a parameter, as a value of the same kind.
Literal same_kind(const std::string& name, const std::string& text, const Literal& old) {
  const auto refuse = [&](std::string_view wanted) {
    throw Error(str("--set ", name, "=", text, ": `", name, "` is ", wanted, ", ", old.shown(), " in the file"));
  };
  if (old.is_text()) return Literal(text);
  if (old.is_list() || old.is_map() || old.is_none()) {
    Literal value = parse_literal(text);
    if (old.is_list() && !value.is_list()) refuse("a list");
    if (old.is_map() && !value.is_map()) refuse("a map");
    return value;
  }
  Literal value = literal_of_scalar(text);
  if (old.is_bool() && !value.is_bool()) refuse("true or false");
  if (old.is_int() && !value.is_int()) refuse("an integer");
  if (old.is_double()) {
    if (!value.is_number()) refuse("a number");
    value = Literal(value.as_double());
  }
  return value;
}

std::string joined(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += str(out.empty() ? "" : ", ", word);
  return out;
}

bool holds(const std::vector<std::string>& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

struct DeviceChoice {
  std::string device;
  std::optional<std::string> skip;
  std::optional<std::string> unsupported;
};

DeviceChoice choose_device(const Scenario& scenario, const ExpandOptions& options, const std::string& wanted) {
  DeviceChoice choice;
  if (!wanted.empty()) {
    choice.device = wanted;
    if (!holds(scenario.devices, wanted)) {
      choice.skip = str("runs on ", joined(scenario.devices), ", not on ", wanted);
    } else if (!holds(options.available_devices, wanted)) {
      choice.unsupported = str("this build has no ", wanted, " device");
    }
    return choice;
  }
  if (holds(scenario.devices, "cpu") && holds(options.available_devices, "cpu")) {
    choice.device = "cpu";
    return choice;
  }
  for (const std::string& device : scenario.devices) {
    if (!holds(options.available_devices, device)) continue;
    choice.device = device;
    return choice;
  }
  choice.device = scenario.devices.front();
  choice.unsupported = str("this build has none of the devices ", joined(scenario.devices));
  return choice;
}

class Expander {
 public:
  Expander(const std::shared_ptr<const Scenario>& scenario, const ExpandOptions& options)
      : scenario_(scenario), options_(options), selection_(parse_selection(options.only)) {}

  std::vector<Case> expand() {
    check_selection();
    set_parameters();
    std::string device = options_.device;
    for (const auto& [key, value] : selection_) {
      if (key == "device" && device.empty()) device = value;
    }
    if (!device.empty() && !holds(devices(), device)) {
      throw Error(str("unknown device `", device, "`", suggestion(device, devices())));
    }
    device_ = choose_device(*scenario_, options_, device);
    world_sizes_ = options_.world_size ? std::vector<int>{*options_.world_size} : scenario_->ranks.world_sizes;
    launches_ = options_.launch ? std::vector<Launch>{*options_.launch} : scenario_->ranks.launches;
    check_count();
    combine(0);
    return std::move(cases_);
  }

 private:
  void check_selection() const {
    const std::vector<std::string> known = selectable(*scenario_);
    for (const auto& [key, value] : selection_) {
      if (!holds(known, key)) {
        throw Error(str("--case: `", key, "` is no matrix name of ", scenario_->name, suggestion(key, known)));
      }
    }
  }

  void set_parameters() {
    for (const NamedLiteral& parameter : scenario_->parameters)
      parameters_.emplace_back(parameter.name, parameter.value);
    for (const std::string& setting : options_.set) {
      const auto [name, text] = split_setting(setting);
      bool found = false;
      for (auto& [parameter, value] : parameters_) {
        if (parameter != name) continue;
        value = same_kind(name, text, value);
        found = true;
      }
      if (!found) {
        std::vector<std::string> known;
        for (const auto& [parameter, value] : parameters_) known.push_back(parameter);
        throw Error(str("--set: ", scenario_->name, " has no parameter `", name, "`", suggestion(name, known)));
      }
    }
  }

  void check_count() const {
    std::size_t count = world_sizes_.size() * launches_.size();
    for (const MatrixName& name : scenario_->matrix) {
      count *= name.values.size();
      if (count <= limits::cases) continue;
      throw ScenarioError(Place{scenario_->file, name.place.line, name.place.column},
                          str("the matrix has more than ", limits::cases, " cases"));
    }
  }

  void combine(std::size_t depth) {
    if (depth < scenario_->matrix.size()) {
      const MatrixName& name = scenario_->matrix[depth];
      for (const MatrixValue& value : name.values) {
        params_.emplace_back(name.name, value.value);
        combine(depth + 1);
        params_.pop_back();
      }
      return;
    }
    for (int world_size : world_sizes_) {
      for (Launch launch : launches_) add(world_size, launch);
    }
  }

  void add(int world_size, Launch launch) {
    Case one;
    one.scenario = scenario_;
    one.params = params_;
    one.parameters = parameters_;
    one.set = options_.set;
    one.world_size = world_size;
    one.launch = launch;
    one.device = device_.device;
    std::vector<std::pair<std::string, std::string>> identity;
    for (const auto& [name, value] : params_) identity.emplace_back(name, id_text(value));
    identity.emplace_back("world_size", str(world_size));
    identity.emplace_back("launch", std::string(name_of(launch)));
    identity.emplace_back("device", one.device);
    for (const auto& [name, value] : identity) one.id += str(one.id.empty() ? "" : ",", name, "=", value);
    for (const auto& [key, wanted] : selection_) {
      for (const auto& [name, value] : identity) {
        if (name == key && value != wanted && value != str("'", wanted, "'")) return;
      }
    }
    Bindings bindings;
    for (std::string_view type : type_names()) bindings.emplace(std::string(type), Literal(std::string(type)));
    for (const auto& [name, value] : parameters_) bindings.insert_or_assign(name, value);
    for (const auto& [name, value] : params_) bindings.insert_or_assign(name, value);
    bindings.insert_or_assign("world_size", Literal(world_size));
    bindings.insert_or_assign("launch", Literal(std::string(name_of(launch))));
    bindings.insert_or_assign("device", Literal(one.device));
    judge(one, bindings);
    one.timeout = options_.timeout.value_or(scenario_->timeout);
    one.memory_mb = options_.memory_mb ? options_.memory_mb : scenario_->memory_mb;
    one.output_mb = options_.output_mb.value_or(scenario_->output_mb.value_or(limits::output_mb));
    if (options_.world_size) one.overrides += str(" --world-size ", *options_.world_size);
    if (options_.launch) one.overrides += str(" --launch ", name_of(*options_.launch));
    if (!options_.device.empty()) one.overrides += str(" --device ", options_.device);
    if (options_.memory_mb) one.overrides += str(" --memory-mb ", *options_.memory_mb);
    if (options_.output_mb) one.overrides += str(" --output-mb ", *options_.output_mb);
    charge_ids(one.id);
    cases_.push_back(std::move(one));
  }

  // An id holds a matrix value as text, whatever its size.
  void charge_ids(const std::string& id) {
    id_bytes_ += static_cast<std::int64_t>(id.size());
    Budget::ask(id_bytes_, [&] { return str("the names of ", cases_.size() + 1, " cases"); });
  }

  // Rules, then stages; a case that is left out needs no stages.
  void judge(Case& one, const Bindings& bindings) const {
    one.unsupported = device_.unsupported;
    if (const Rule* rule = first_of(scenario_->skip, bindings)) {
      one.skip = rule->reason;
    } else {
      one.skip = device_.skip;
    }
    if (const Rule* rule = first_of(scenario_->expect_failure, bindings)) {
      one.expect_failure = ExpectedFailure{rule->reason, rule->line, rule->message};
    }
    for (const Stage& stage : scenario_->stages) {
      StageLaunch launch{stage.name, one.world_size};
      if (stage.world_size != nullptr && !one.skip) {
        const Literal size = evaluate_constant(*stage.world_size, bindings, scenario_->file);
        const Place place{scenario_->file, stage.world_size->line, stage.world_size->column};
        if (!size.is_int() || size.as_int() < 1 || size.as_int() > 65536) {
          throw ScenarioError(place, str("a stage's world_size must be an integer of 1 to 65536, got ", size.shown()));
        }
        launch.world_size = static_cast<int>(size.as_int());
      }
      one.stages.push_back(std::move(launch));
    }
  }

  const Rule* first_of(const std::vector<Rule>& rules, const Bindings& bindings) const {
    for (const Rule& rule : rules)
      if (applies(rule, bindings)) return &rule;
    return nullptr;
  }

  // Evaluated once for all cases that agree in the names it uses.
  bool applies(const Rule& rule, const Bindings& bindings) const {
    auto [entry, added] = rules_.try_emplace(&rule);
    KnownRule& known = entry->second;
    if (added) known.names = varying_names(*rule.when);
    std::string key;
    for (const std::string& name : known.names) key += str(id_text(bindings.at(name)), "\n");
    if (const auto found = known.results.find(key); found != known.results.end()) return found->second;
    const Literal value = evaluate_constant(*rule.when, bindings, scenario_->file);
    if (!value.is_bool()) {
      throw ScenarioError(Place{scenario_->file, rule.when->line, rule.when->column},
                          str("`when` must be a boolean, got ", name_of(value.kind()), " ", value.shown()));
    }
    return known.results[key] = value.as_bool();
  }

  // Those that differ from case to case; parameters, types and the device do not.
  std::set<std::string> varying_names(const Expr& expr) const {
    const std::vector<std::string> varying = selectable(*scenario_);
    std::set<std::string> names;
    for_each_node(expr, [&](const Expr& node) {
      if (node.kind == ExprKind::name && holds(varying, node.name)) names.insert(node.name);
    });
    return names;
  }

  struct KnownRule {
    std::set<std::string> names;
    std::map<std::string, bool> results;  // by the values of those names
  };

  std::shared_ptr<const Scenario> scenario_;
  const ExpandOptions& options_;
  Selection selection_;
  std::vector<std::pair<std::string, Literal>> parameters_;
  std::vector<std::pair<std::string, Literal>> params_;
  DeviceChoice device_;
  std::vector<int> world_sizes_;
  std::vector<Launch> launches_;
  std::vector<Case> cases_;
  std::int64_t id_bytes_ = 0;
  mutable std::map<const Rule*, KnownRule> rules_;
};

std::string shell_quoted(const std::string& text) {
  std::string out = "'";
  for (char c : text) {
    if (c == '\'') {
      out += "'\\''";
    } else {
      out += c;
    }
  }
  return out + "'";
}

}  // namespace

std::vector<std::pair<std::string, std::string>> Case::params_json() const {
  std::vector<std::pair<std::string, std::string>> out;
  for (const auto& [name, value] : params) {
    bool labelled = false;
    for (const MatrixName& entry : scenario->matrix) labelled = labelled || (entry.name == name && entry.labelled);
    out.emplace_back(name, labelled ? value.find("label")->json() : value.json());
  }
  return out;
}

std::string Case::repro() const {
  std::string out = str("lockstep run ", scenario->call.empty() ? scenario->name : shell_quoted(scenario->call),
                        " --case ", shell_quoted(id));
  for (const std::string& setting : set) out += str(" --set ", shell_quoted(setting));
  return out + overrides;
}

std::vector<Case> expand(const std::shared_ptr<const Scenario>& scenario, const ExpandOptions& options) {
  if (options.world_size && (*options.world_size < 1 || *options.world_size > 65536)) {
    throw Error(str("--world-size must be 1 to 65536, got ", *options.world_size));
  }
  const Evaluation evaluation(scenario->file, "the rules and cases of a scenario");
  try {
    return Expander(scenario, options).expand();
  } catch (const BudgetError& error) {
    throw ScenarioError(scenario->matrix.empty() ? scenario->place : scenario->matrix.front().place, error.what());
  }
}

std::vector<Case> expand_all(const std::vector<std::shared_ptr<const Scenario>>& scenarios,
                             const ExpandOptions& options) {
  const Selection selection = parse_selection(options.only);
  std::set<std::string> used;
  std::set<std::string> known_parameters;
  std::set<std::string> known_names;
  std::vector<Case> out;
  bool tagged = options.tags.empty();
  for (const std::shared_ptr<const Scenario>& scenario : scenarios) {
    const bool wanted = options.tags.empty() || std::any_of(scenario->tags.begin(), scenario->tags.end(),
                                                            [&](const auto& tag) { return holds(options.tags, tag); });
    if (!wanted) continue;
    tagged = true;
    const std::vector<std::string> names = selectable(*scenario);
    known_names.insert(names.begin(), names.end());
    // Each scenario takes the settings it knows; one that nobody knows is an error below.
    ExpandOptions own = options;
    own.set.clear();
    for (const NamedLiteral& parameter : scenario->parameters) known_parameters.insert(parameter.name);
    for (const std::string& setting : options.set) {
      const std::string name = split_setting(setting).first;
      const bool has = std::any_of(scenario->parameters.begin(), scenario->parameters.end(),
                                   [&](const NamedLiteral& parameter) { return parameter.name == name; });
      if (!has) continue;
      own.set.push_back(setting);
      used.insert(setting);
    }
    const bool selectable_here =
        std::all_of(selection.begin(), selection.end(), [&](const auto& entry) { return holds(names, entry.first); });
    if (!selectable_here) continue;
    std::vector<Case> cases = expand(scenario, own);
    std::move(cases.begin(), cases.end(), std::back_inserter(out));
  }
  if (!tagged && !scenarios.empty()) throw Error(str("--tag: no scenario has the tag ", joined(options.tags)));
  for (const std::string& setting : options.set) {
    if (used.contains(setting)) continue;
    const std::string name = split_setting(setting).first;
    throw Error(str("--set: no scenario chosen has the parameter `", name, "`",
                    suggestion(name, {known_parameters.begin(), known_parameters.end()})));
  }
  if (out.empty() && !selection.empty()) {
    for (const auto& [key, value] : selection) {
      if (known_names.contains(key)) continue;
      throw Error(str("--case: no scenario chosen has the matrix name `", key, "`",
                      suggestion(key, {known_names.begin(), known_names.end()})));
    }
    throw Error(str("--case: no case has ", options.only), "`lockstep list` shows the cases");
  }
  if (options.shard) {
    const auto [index, count] = *options.shard;
    if (count < 1 || index < 1 || index > count)
      throw Error(str("--shard ", index, "/", count, " must be I/N with I from 1 to N"));
    std::vector<Case> part;
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (static_cast<int>(i % static_cast<std::size_t>(count)) == index - 1) part.push_back(std::move(out[i]));
    }
    return part;
  }
  return out;
}

}  // namespace lockstep::scenario
