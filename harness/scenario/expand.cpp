#include "harness/scenario/expand.hpp"

#include <algorithm>
#include <set>

#include "engine/core/text.hpp"
#include "harness/scenario/evaluation.hpp"
#include "harness/scenario/selection.hpp"

namespace lockstep::scenario {

namespace {

struct DeviceChoice {
  std::string device;
  std::optional<std::string> skip;
  std::optional<std::string> unsupported;
};

DeviceChoice choose_device(const Scenario& scenario, const ExpandOptions& options, const std::string& wanted) {
  DeviceChoice choice;
  if (!wanted.empty()) {
    choice.device = wanted;
    if (!contains(scenario.devices, wanted)) {
      choice.skip = str("runs on ", joined(scenario.devices), ", not on ", wanted);
    } else if (!contains(options.available_devices, wanted)) {
      const auto missing = options.missing_devices.find(wanted);
      choice.unsupported =
          missing != options.missing_devices.end() ? missing->second : str("this build has no ", wanted, " device");
    }
    return choice;
  }
  if (contains(scenario.devices, "cpu") && contains(options.available_devices, "cpu")) {
    choice.device = "cpu";
    return choice;
  }
  for (const std::string& device : scenario.devices) {
    if (!contains(options.available_devices, device)) continue;
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
    if (!device.empty() && !contains(devices(), device)) {
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
    const std::vector<std::string> known = selectable_names(*scenario_);
    for (const auto& [key, value] : selection_) {
      if (!contains(known, key)) {
        throw Error(str("--case: `", key, "` is not a matrix name of ", scenario_->name, suggestion(key, known)));
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
        value = parse_setting(name, text, value);
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
    apply_rules(one, bindings);
    one.timeout = options_.timeout.value_or(scenario_->timeout);
    one.deadline = scenario_->deadline;
    one.memory_mb = options_.memory_mb ? options_.memory_mb : scenario_->memory_mb;
    one.output_mb = options_.output_mb.value_or(scenario_->output_mb.value_or(limits::output_mb));
    one.sum_order = options_.sum_order.value_or(scenario_->sum_order);
    if (options_.world_size) one.overrides += str(" --world-size ", *options_.world_size);
    if (options_.launch) one.overrides += str(" --launch ", name_of(*options_.launch));
    if (!options_.device.empty()) one.overrides += str(" --device ", options_.device);
    if (options_.memory_mb) one.overrides += str(" --memory-mb ", *options_.memory_mb);
    if (options_.output_mb) one.overrides += str(" --output-mb ", *options_.output_mb);
    if (options_.sum_order) one.overrides += str(" --sum-order ", name_of(*options_.sum_order));
    charge_ids(one.id);
    cases_.push_back(std::move(one));
  }

  // Ids contain matrix values as text, so large values make large ids.
  void charge_ids(const std::string& id) {
    id_bytes_ += static_cast<std::int64_t>(id.size());
    Budget::ask(id_bytes_, [&] { return str("the names of ", cases_.size() + 1, " cases"); });
  }

  // Evaluates the rules, then the stages. The world sizes of a skipped case's stages are not evaluated.
  void apply_rules(Case& one, const Bindings& bindings) const {
    one.unsupported = device_.unsupported;
    if (const Rule* rule = first_of(scenario_->skip, bindings)) {
      one.skip = rule->reason;
    } else {
      one.skip = device_.skip;
    }
    if (const Rule* rule = first_of(scenario_->expect_failure, bindings)) {
      one.expect_failure = ExpectedFailure{rule->reason, rule->line, rule->message,        rule->verdict,
                                           rule->rank,   rule->also, rule->flight_recorder};
    }
    for (const EvidenceItem& item : scenario_->evidence) {
      const Literal value = evaluate_constant(*item.value, bindings, scenario_->file);
      if (!value.is_number())
        throw ScenarioError({scenario_->file, item.value->line, item.value->column},
                            str("`", item.name, "` must be a number, got ", value.shown()));
      one.evidence.emplace_back(item.name, value.as_double());
    }
    for (const Stage& stage : scenario_->stages) {
      StageLaunch launch{stage.name, one.world_size};
      if (stage.world_size != nullptr && !one.skip) {
        const Literal size = evaluate_constant(*stage.world_size, bindings, scenario_->file);
        const Place place{scenario_->file, stage.world_size->line, stage.world_size->column};
        if (!size.is_int() || size.as_int() < 1 || size.as_int() > 65536) {
          throw ScenarioError(place,
                              str("a stage's world_size must be an integer from 1 to 65536, got ", size.shown()));
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

  // Whether a rule applies. It is evaluated once for all cases that have the same values of the names that it uses.
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

  // The names in an expression that vary between cases. Parameters, element types and the device do not vary.
  std::set<std::string> varying_names(const Expr& expr) const {
    const std::vector<std::string> varying = selectable_names(*scenario_);
    std::set<std::string> names;
    for_each_node(expr, [&](const Expr& node) {
      if (node.kind == ExprKind::name && contains(varying, node.name)) names.insert(node.name);
    });
    return names;
  }

  struct KnownRule {
    std::set<std::string> names;
    std::map<std::string, bool> results;  // by the texts of these names' values
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

}  // namespace

std::string shell_quoted(const std::string& text) {
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == '\x7f'; };
  // The console shows control characters as codes, so they are written as codes of the shell.
  const bool has_codes = std::any_of(text.begin(), text.end(), is_control);
  std::string out = has_codes ? "$'" : "'";
  for (char c : text) {
    if (is_control(c)) {
      out += '\\';
      for (int shift : {6, 3, 0}) out += static_cast<char>('0' + ((c >> shift) & 7));
    } else if (has_codes && (c == '\'' || c == '\\')) {
      out += '\\';
      out += c;
    } else if (c == '\'') {
      out += "'\\''";
    } else {
      out += c;
    }
  }
  return out + "'";
}

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
  const std::string file = str(scenario->call.starts_with('-') ? "./" : "", scenario->call);  // no option
  std::string out =
      str("lockstep run ", file.empty() ? scenario->name : shell_quoted(file), " --case ", shell_quoted(id));
  for (const std::string& setting : set) out += str(" --set ", shell_quoted(setting));
  return out + overrides;
}

std::vector<Case> expand(const std::shared_ptr<const Scenario>& scenario, const ExpandOptions& options) {
  if (options.world_size && (*options.world_size < 1 || *options.world_size > 65536)) {
    throw Error(str("--world-size must be from 1 to 65536, got ", *options.world_size));
  }
  const Evaluation evaluation(scenario->file, "the rules and cases of a scenario");
  try {
    return Expander(scenario, options).expand();
  } catch (const BudgetError& error) {
    throw ScenarioError(scenario->matrix.empty() ? scenario->place : scenario->matrix.front().place, error.what());
  }
}

}  // namespace lockstep::scenario
