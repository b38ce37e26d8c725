// Reads the keys of a scenario file.
#include <algorithm>
#include <cmath>

#include "engine/core/text.hpp"
#include "harness/scenario/document_parser.hpp"
#include "harness/scenario/selection.hpp"

namespace lockstep::scenario {

namespace {

// One member function per key.
class ScenarioReader {
 public:
  ScenarioReader(Reader& reader, const YamlNode& root, Scenario& scenario)
      : reader_(reader), root_(root), scenario_(scenario) {}

  void read(const std::string& expected_name) {
    reader_.check_keys(root_, names_of(scenario_keys()), "a scenario");
    scenario_.name = required_text("scenario");
    scenario_.summary = required_text("summary");
    if (!expected_name.empty() && !scenario_.name.empty() && scenario_.name != expected_name) {
      reader_.error(Reader::find(root_, "scenario")->place,
                    str("`scenario` must be the path of the file: `", expected_name, "`"));
    }
    if (const YamlNode* node = key("mirrors")) read_mirrors(*node);
    if (const YamlNode* node = key("see")) scenario_.see = reader_.texts(*node, "`see`");
    read_ranks();
    if (const YamlNode* node = key("device")) read_devices(*node);
    if (const YamlNode* node = key("parameters")) read_parameters(*node);
    if (const YamlNode* node = key("matrix")) read_matrix(*node);
    if (const YamlNode* node = key("skip")) scenario_.skip = rules(*node, "skip");
    if (const YamlNode* node = key("expect_failure")) scenario_.expect_failure = rules(*node, "expect_failure");
    if (const YamlNode* node = key("evidence")) read_evidence(*node);
    if (const YamlNode* node = key("timeout")) read_timeout(*node);
    if (const YamlNode* node = key("deadline")) scenario_.deadline = seconds(*node, "`deadline`");
    if (const YamlNode* node = key("limits")) read_limits(*node);
    if (const YamlNode* node = key("tags")) scenario_.tags = reader_.texts(*node, "`tags`");
    if (const YamlNode* node = key("bits")) read_bits(*node);
    if (const YamlNode* node = key("sum_order")) read_sum_order(*node);
    if (const YamlNode* node = key("plan")) read_plan(*node);
    if (const YamlNode* node = key("models")) scenario_.models = reader_.models(*node);
    read_steps();
  }

 private:
  const YamlNode* key(std::string_view name) const { return Reader::find(root_, name); }

  std::string required_text(std::string_view name) {
    const YamlNode* node = key(name);
    if (node == nullptr) {
      reader_.error(root_.place, str("a scenario needs `", name, "`"));
      return {};
    }
    return reader_.text(*node, str("`", name, "`")).value_or("");
  }

  void read_mirrors(const YamlNode& node) {
    if (!reader_.require_map(node, "`mirrors`")) return;
    reader_.check_keys(node, {"document", "test", "number"}, "`mirrors`");
    Mirrors mirrors;
    for (auto [name, target] : {std::pair<std::string_view, std::string*>("document", &mirrors.document),
                                std::pair<std::string_view, std::string*>("test", &mirrors.test)}) {
      const YamlNode* value = Reader::find(node, name);
      if (value == nullptr) {
        reader_.error(node.place, str("`mirrors` needs `", name, "`"));
      } else {
        *target = reader_.text(*value, str("`", name, "`")).value_or("");
      }
    }
    if (const YamlNode* number = Reader::find(node, "number")) {
      if (const auto value = reader_.integer(*number, "`number`")) {
        if (*value < 1 || *value > 1000000) reader_.error(number->place, "`number` must be positive");
        mirrors.number = static_cast<int>(*value);
      }
    }
    scenario_.mirrors = std::move(mirrors);
  }

  void read_ranks() {
    const YamlNode* node = key("ranks");
    if (node == nullptr) {
      reader_.error(root_.place, "a scenario needs `ranks`, such as `ranks: {world_size: [2]}`");
      return;
    }
    scenario_.ranks.place = node->place;
    if (!reader_.require_map(*node, "`ranks`")) return;
    reader_.check_keys(*node, {"world_size", "launch"}, "`ranks`");
    if (const YamlNode* sizes = Reader::find(*node, "world_size")) {
      read_world_sizes(*sizes);
    } else {
      reader_.error(node->place, "`ranks` needs `world_size`");
    }
    if (const YamlNode* launch = Reader::find(*node, "launch")) read_launches(*launch);
  }

  void read_world_sizes(const YamlNode& node) {
    if (!node.is_list()) {
      add_world_size(node);
      return;
    }
    if (node.items.empty()) reader_.error(node.place, "`world_size` is empty");
    for (const YamlPtr& item : node.items) add_world_size(*item);
  }

  void add_world_size(const YamlNode& node) {
    std::vector<int>& sizes = scenario_.ranks.world_sizes;
    const auto size = reader_.integer(node, "`world_size`");
    if (!size) return;
    if (*size < 1 || *size > 65536) {
      reader_.error(node.place, "`world_size` must be from 1 to 65536");
    } else if (std::find(sizes.begin(), sizes.end(), *size) != sizes.end()) {
      reader_.error(node.place, str("the world size ", *size, " occurs twice"));
    } else {
      sizes.push_back(static_cast<int>(*size));
    }
  }

  void read_launches(const YamlNode& node) {
    std::vector<Launch>& launches = scenario_.ranks.launches;
    launches.clear();
    for (const std::string& word : reader_.texts(node, "`launch`")) {
      if (word != "process" && word != "thread") {
        reader_.error(node.place, str("unknown launch `", word, "`", suggestion(word, {"process", "thread"})));
        continue;
      }
      const Launch value = word == "thread" ? Launch::thread : Launch::process;
      if (std::find(launches.begin(), launches.end(), value) == launches.end()) launches.push_back(value);
    }
  }

  void read_devices(const YamlNode& node) {
    scenario_.devices.clear();
    for (const std::string& word : reader_.texts(node, "`device`")) {
      if (std::find(devices().begin(), devices().end(), word) == devices().end()) {
        reader_.error(node.place, str("unknown device `", word, "`", suggestion(word, devices())));
      } else if (std::find(scenario_.devices.begin(), scenario_.devices.end(), word) == scenario_.devices.end()) {
        scenario_.devices.push_back(word);
      }
    }
  }

  void read_parameters(const YamlNode& node) {
    if (!reader_.require_map(node, "`parameters`")) return;
    for (const auto& [name, value] : node.entries) {
      reader_.check_name(name->text, name->place);
      if (auto literal = reader_.literal(*value)) {
        scenario_.parameters.push_back(NamedLiteral{name->text, name->place, std::move(*literal)});
      }
    }
  }

  void read_matrix(const YamlNode& node) {
    if (!reader_.require_map(node, "`matrix`")) return;
    for (const auto& [name, values] : node.entries) {
      MatrixName entry{name->text, name->place, values->is_map(), {}};
      reader_.check_name(name->text, name->place);
      if (values->is_list()) {
        read_plain_values(entry, *values);
      } else if (values->is_map()) {
        read_labelled(entry, *values);
      } else {
        reader_.error(
            values->place,
            str("`", name->text, "` must be a list of values or a map of labelled values, got ", kind_text(*values)));
        continue;
      }
      if (values->items.empty() && values->entries.empty()) {
        reader_.error(values->place, str("`", name->text, "` has no value"));
      }
      scenario_.matrix.push_back(std::move(entry));
    }
  }

  void read_plain_values(MatrixName& entry, const YamlNode& values) {
    for (const YamlPtr& item : values.items) {
      auto literal = reader_.literal(*item);
      if (!literal) continue;
      for (const MatrixValue& other : entry.values) {
        if (other.value.kind() == literal->kind() && other.value == *literal) {
          reader_.error(item->place, str("the value ", literal->shown(), " of `", entry.name, "` occurs twice"));
        } else if (id_text(other.value) == id_text(*literal)) {
          reader_.error(item->place, str("two values of `", entry.name, "` have the name ", id_text(*literal),
                                         " in cases; give them labels, such as {one: {value: ...}}"));
        }
      }
      entry.values.push_back(MatrixValue{{}, std::move(*literal)});
    }
  }

  void read_labelled(MatrixName& entry, const YamlNode& values) {
    for (const auto& [label, item] : values.entries) {
      if (!item->is_map()) {
        reader_.error(item->place, str("the label `", label->text, "` needs a map of entries, got ", kind_text(*item)));
        continue;
      }
      LiteralMap entries{{"label", Literal(label->text)}};
      for (const auto& [key, value] : item->entries) {
        if (key->text == "label") reader_.error(key->place, "`label` is the label itself and cannot be an entry");
        reader_.check_name(key->text, key->place);
        if (auto literal = reader_.literal(*value)) entries.emplace_back(key->text, std::move(*literal));
      }
      entry.values.push_back(MatrixValue{label->text, Literal(std::move(entries))});
    }
  }

  std::vector<Rule> rules(const YamlNode& node, std::string_view what) {
    std::vector<Rule> out;
    if (!reader_.require_list(node, str("`", what, "`"))) return out;
    for (const YamlPtr& item : node.items) {
      if (std::optional<Rule> made = rule(*item, what)) out.push_back(std::move(*made));
    }
    return out;
  }

  std::optional<Rule> rule(const YamlNode& item, std::string_view what) {
    if (!reader_.require_map(item, str("an item of `", what, "`"))) return std::nullopt;
    const bool failure = what == "expect_failure";
    std::vector<std::string> known = {"when", "reason"};
    if (failure) known.insert(known.end(), {"verdict", "line", "rank", "message", "also", "flight_recorder"});
    reader_.check_keys(item, known, str("`", what, "`"));
    const YamlNode* when = Reader::find(item, "when");
    const YamlNode* reason = Reader::find(item, "reason");
    if (when == nullptr || reason == nullptr) {
      reader_.error(item.place, str("an item of `", what, "` needs `", when == nullptr ? "when" : "reason", "`"));
      return std::nullopt;
    }
    Rule rule;
    rule.place = item.place;
    ArgumentSpec condition;
    condition.name = "when";
    condition.type = ArgType::boolean;
    rule.when = reader_.argument(*when, condition);
    rule.reason = reader_.text(*reason, "`reason`").value_or("");
    if (failure) read_expected_failure(rule, item);
    return rule;
  }

  int small(const YamlNode& node, std::int64_t value, int least, const char* what) {
    constexpr std::int64_t most = 1'000'000;
    if (value < least || value > most) reader_.error(node.place, str(what, " must be from ", least, " to ", most));
    return static_cast<int>(std::clamp<std::int64_t>(value, least, most));
  }

  void read_expected_failure(Rule& rule, const YamlNode& item) {
    if (const YamlNode* line = Reader::find(item, "line")) {
      if (const auto value = reader_.integer(*line, "`line`")) rule.line = small(*line, *value, 1, "`line`");
    }
    if (const YamlNode* rank = Reader::find(item, "rank")) {
      if (const auto value = reader_.integer(*rank, "`rank`")) rule.rank = small(*rank, *value, 0, "`rank`");
    }
    if (const YamlNode* verdict = Reader::find(item, "verdict")) {
      rule.verdict = reader_.text(*verdict, "`verdict`").value_or("");
      if (!contains(failing_verdicts(), rule.verdict))
        reader_.error(verdict->place, str("`verdict` must be one of ", joined(failing_verdicts())));
    }
    if (const YamlNode* also = Reader::find(item, "also")) rule.also = read_others(*also);
    rule.message = read_pattern(item, "message");
    rule.flight_recorder = read_pattern(item, "flight_recorder");
  }

  std::string read_pattern(const YamlNode& item, const char* key) {
    const YamlNode* node = Reader::find(item, key);
    if (node == nullptr) return "";
    std::string pattern = reader_.text(*node, str("`", key, "`")).value_or("");
    if (!pattern.empty() && pattern.find_first_not_of('*') == std::string::npos)
      reader_.error(node->place,
                    str("`", key, "` matches every failure; give a text that the failure must contain, or omit it"));
    return pattern;
  }

  std::vector<std::string> read_others(const YamlNode& node) {
    std::vector<std::string> others;
    if (!reader_.require_list(node, "`also`")) return others;
    for (const YamlPtr& item : node.items) {
      others.push_back(reader_.text(*item, "an item of `also`").value_or(""));
      if (others.back().find_first_not_of('*') == std::string::npos)
        reader_.error(item->place, "an item of `also` must contain a part of the failure");
    }
    return others;
  }

  void read_evidence(const YamlNode& node) {
    if (!reader_.require_map(node, "`evidence`")) return;
    reader_.check_keys(node, evidence_names(), "`evidence`");
    for (const std::string& name : evidence_names()) {
      const YamlNode* value = Reader::find(node, name);
      if (value == nullptr) continue;
      ArgumentSpec number;
      number.name = name;
      number.type = ArgType::number;
      if (ExprPtr read = reader_.argument(*value, number)) scenario_.evidence.push_back({name, std::move(read)});
    }
  }

  std::optional<double> seconds(const YamlNode& node, const std::string& what) {
    const auto number = reader_.number(node, what);
    if (!number || (*number > 0 && *number <= 86400)) return number;
    reader_.error(node.place, str(what, " must be a number of seconds, above 0 and at most 86400"));
    return {};
  }

  void read_timeout(const YamlNode& node) {
    const auto number = seconds(node, "`timeout`");
    if (!number) return;
    scenario_.timeout = *number;
    scenario_.has_timeout = true;
  }

  void read_limits(const YamlNode& node) {
    if (!reader_.require_map(node, "`limits`")) return;
    reader_.check_keys(node, {"memory_mb", "output_mb"}, "`limits`");
    for (auto [name, target] :
         {std::pair<std::string_view, std::optional<std::int64_t>*>("memory_mb", &scenario_.memory_mb),
          {"output_mb", &scenario_.output_mb}}) {
      const YamlNode* value = Reader::find(node, name);
      if (value == nullptr) continue;
      const auto mebibytes = reader_.integer(*value, str("`", name, "`"));
      if (!mebibytes) continue;
      if (*mebibytes < 1 || *mebibytes > limits::most_mb) {
        reader_.error(value->place, str("`", name, "` must be a number of MiB from 1 to ", limits::most_mb));
      } else {
        *target = *mebibytes;
      }
    }
  }

  // Reads `required`, or `{reported: reason}`.
  void read_bits(const YamlNode& node) {
    if (node.is_scalar() && node.text == "required") {
      scenario_.bits = Bits::required;
      return;
    }
    const YamlNode* reason = node.is_map() ? Reader::find(node, "reported") : nullptr;
    if (reason == nullptr) {
      reader_.error(node.place, "`bits` must be `required` or `{reported: reason}`");
      return;
    }
    reader_.check_keys(node, {"reported"}, "`bits`");
    scenario_.bits = Bits::reported;
    scenario_.bits_reason = reader_.text(*reason, "the reason under `bits`").value_or("");
  }

  void read_sum_order(const YamlNode& node) {
    const std::optional<SumOrder> order = node.is_scalar() ? sum_order_from_name(node.text) : std::nullopt;
    if (!order) return reader_.error(node.place, "`sum_order` must be `fixed` or `library`");
    scenario_.sum_order = *order;
  }

  void read_plan(const YamlNode& node) {
    const YamlNode* reason = node.is_map() ? Reader::find(node, "unplanned") : nullptr;
    if (reason == nullptr) {
      reader_.error(node.place, "`plan` must be `{unplanned: reason}`");
      return;
    }
    reader_.check_keys(node, {"unplanned"}, "`plan`");
    scenario_.unplanned_reason = reader_.text(*reason, "the reason under `plan`").value_or("");
  }

  void read_steps() {
    const YamlNode* steps = key("steps");
    const YamlNode* stages = key("stages");
    if ((steps == nullptr) == (stages == nullptr)) {
      reader_.error(steps == nullptr ? root_.place : stages->place, "a scenario needs either `steps` or `stages`");
      if (steps == nullptr) return;
    }
    if (steps != nullptr) {
      Stage stage;
      stage.place = steps->place;
      stage.steps = reader_.steps(*steps, "`steps`");
      scenario_.stages.push_back(std::move(stage));
      return;
    }
    scenario_.staged = true;
    if (!reader_.require_list(*stages, "`stages`")) return;
    if (stages->items.empty()) reader_.error(stages->place, "`stages` must hold at least one stage");
    for (const YamlPtr& item : stages->items) {
      if (reader_.require_map(*item, "a stage")) read_stage(*item);
    }
  }

  void read_stage(const YamlNode& item) {
    reader_.check_keys(item, {"name", "world_size", "steps"}, "a stage");
    Stage stage;
    stage.place = item.place;
    const YamlNode* name = Reader::find(item, "name");
    if (name == nullptr) {
      reader_.error(item.place, "a stage needs `name`");
    } else {
      stage.name = reader_.name(*name, "`name`");
    }
    for (const Stage& other : scenario_.stages) {
      if (!stage.name.empty() && other.name == stage.name) {
        reader_.error(name->place, str("a stage `", stage.name, "` exists already; give each stage another name"));
      }
    }
    ArgumentSpec size;
    size.name = "world_size";
    size.type = ArgType::integer;
    if (const YamlNode* node = Reader::find(item, "world_size")) stage.world_size = reader_.argument(*node, size);
    if (const YamlNode* node = Reader::find(item, "steps")) {
      stage.steps = reader_.steps(*node, "`steps`");
    } else {
      reader_.error(item.place, "a stage needs `steps`");
    }
    scenario_.stages.push_back(std::move(stage));
  }

  Reader& reader_;
  const YamlNode& root_;
  Scenario& scenario_;
};

}  // namespace

void read_scenario(Reader& reader, const YamlNode& root, const std::string& expected_name, Scenario& scenario) {
  ScenarioReader(reader, root, scenario).read(expected_name);
}

}  // namespace lockstep::scenario
