#include <cmath>
#include <limits>

#include <nlohmann/json.hpp>

#include "engine/core/resources.hpp"
#include "harness/report/results_file.hpp"
#include "harness/report/text.hpp"
#include "harness/scenario/regular_file.hpp"

namespace lockstep::report {

namespace {

using Json = nlohmann::ordered_json;

constexpr const char* remedy = "give a results file written by `lockstep run --results FILE`";

// A line of the file. Every error names the file, the line and the field.
class Line {
 public:
  Line(const std::string& path, int number) : path_(path), number_(number) {}

  [[noreturn]] void refuse(const std::string& what) const { throw Error(str(path_, ":", number_, ": ", what), remedy); }

  const Json& field(const Json& object, const char* key) const {
    const auto found = object.find(key);
    if (found == object.end()) refuse(str("the field '", key, "' is missing"));
    return *found;
  }
  const Json& object(const Json& holder, const char* key) const { return checked_object(field(holder, key), key); }
  const Json& checked_object(const Json& value, const char* key) const {
    if (!value.is_object()) wrong_kind(value, key, "an object");
    return value;
  }
  const Json& list(const Json& holder, const char* key) const {
    const Json& value = field(holder, key);
    if (!value.is_array()) wrong_kind(value, key, "a list");
    return value;
  }
  std::string text(const Json& holder, const char* key) const { return as_text(field(holder, key), key); }
  std::string as_text(const Json& value, const char* key) const {
    if (!value.is_string()) wrong_kind(value, key, "a text");
    return value.get<std::string>();
  }
  std::int64_t integer(const Json& holder, const char* key) const { return as_integer(field(holder, key), key); }
  std::int64_t as_integer(const Json& value, const char* key) const {
    if (!value.is_number_integer()) wrong_kind(value, key, "an integer");
    if (value.is_number_unsigned() &&
        value.get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      refuse(str("'", key, "' does not fit in 64 bits"));
    }
    return value.get<std::int64_t>();
  }
  int small(const Json& holder, const char* key) const {
    const std::int64_t value = integer(holder, key);
    if (value < std::numeric_limits<int>::min() || value > std::numeric_limits<int>::max()) {
      refuse(str("'", key, "' is out of range: ", value));
    }
    return static_cast<int>(value);
  }
  // `unknown` for a field that is null or missing.
  int small_or(const Json& holder, const char* key, int unknown) const {
    const auto found = holder.find(key);
    return found == holder.end() || found->is_null() ? unknown : small(holder, key);
  }
  double number(const Json& holder, const char* key) const {
    const Json& value = field(holder, key);
    if (value.is_number()) return value.get<double>();
    if (value.is_string()) {
      const auto& name = value.get_ref<const std::string&>();
      if (name == "nan" || name == "NaN") return std::numeric_limits<double>::quiet_NaN();
      if (name == "inf" || name == "Infinity") return std::numeric_limits<double>::infinity();
      if (name == "-inf" || name == "-Infinity") return -std::numeric_limits<double>::infinity();
    }
    wrong_kind(value, key, "a number");
  }
  std::string optional_text(const Json& holder, const char* key) const {
    return holder.contains(key) ? text(holder, key) : std::string();
  }

 private:
  [[noreturn]] void wrong_kind(const Json& value, const char* key, const char* wanted) const {
    refuse(str("'", key, "' should be ", wanted, ", not ", value.type_name()));
  }
  const std::string& path_;
  int number_;
};

std::map<std::string, std::string> facts(const Line& line, const Json& object) {
  std::map<std::string, std::string> facts;
  for (const auto& [key, value] : object.items()) {
    facts[key] = value.is_string() ? line.as_text(value, key.c_str()) : value.dump();
  }
  return facts;
}

verdict::RunInfo run_of(const Line& line, const Json& json) {
  const std::int64_t schema = line.integer(json, "schema");
  if (schema != 1) line.refuse(str("the file has schema ", schema, ", but this program reads schema 1"));
  verdict::RunInfo run;
  run.version = line.text(json, "version");
  run.started = line.text(json, "started");
  for (const Json& word : line.list(json, "command")) run.command.push_back(line.as_text(word, "command"));
  run.build = facts(line, line.object(json, "build"));
  run.machine = facts(line, line.object(json, "machine"));
  return run;
}

verdict::Evidence evidence_of(const Line& line, const Json& json) {
  verdict::Evidence evidence;
  evidence.comparisons = line.integer(json, "comparisons");
  evidence.conditions_apart = json.contains("conditions");
  if (evidence.conditions_apart) evidence.conditions = line.integer(json, "conditions");
  evidence.trivial = line.integer(json, "trivial");
  evidence.elements = line.integer(json, "elements");
  evidence.same_bits = line.integer(json, "same_bits");
  evidence.bits_required = line.integer(json, "bits_required");
  evidence.max_abs_difference = line.number(json, "max_abs_difference");
  const Json& loosest = line.object(json, "loosest");
  evidence.loosest.rtol = line.number(loosest, "rtol");
  evidence.loosest.atol = line.number(loosest, "atol");
  if (loosest.contains("of_largest")) evidence.loosest.of_largest = line.number(loosest, "of_largest");
  evidence.collectives_checked = line.integer(json, "collectives_checked");
  evidence.orders_checked = line.integer(json, "orders_checked");
  evidence.errors_expected = line.integer(json, "errors_expected");
  if (json.contains("bits_relaxed")) evidence.bits_relaxed = line.integer(json, "bits_relaxed");
  if (json.contains("planned_in_order")) evidence.planned_in_order = line.integer(json, "planned_in_order");
  return evidence;
}

verdict::CollectiveCount collective_of(const Line& line, const Json& json) {
  line.checked_object(json, "collectives");
  verdict::CollectiveCount row;
  row.family = line.text(json, "family");
  row.operation = line.text(json, "operation");
  row.axis = line.text(json, "axis");
  row.group_size = line.small(json, "group_size");
  row.phase = line.text(json, "phase");
  row.count = line.integer(json, "count");
  row.bytes = line.integer(json, "bytes");
  row.rank = line.small_or(json, "rank", -1);
  row.stage = line.optional_text(json, "stage");
  return row;
}

verdict::PlanRow plan_of(const Line& line, const Json& json) {
  line.checked_object(json, "plan");
  verdict::PlanRow row;
  row.family = line.text(json, "family");
  row.operation = line.text(json, "operation");
  row.axis = line.text(json, "axis");
  row.group_size = line.small(json, "group_size");
  row.phase = line.text(json, "phase");
  row.planned = line.integer(json, "planned");
  row.planned_bytes = line.integer(json, "planned_bytes");
  row.bytes_are_least = json.contains("bytes_are_least");
  row.observed = line.integer(json, "observed");
  row.observed_bytes = line.integer(json, "observed_bytes");
  row.stage = line.optional_text(json, "stage");
  return row;
}

// `plan` is a list of rows, or an object with `judged` and the reason.
void read_plan(const Line& line, const Json& json, verdict::CaseResult& row) {
  row.plan_verdict = {true, ""};
  const Json& field = line.field(json, "plan");
  if (field.is_object()) {
    const Json& judged = line.field(field, "judged");
    if (!judged.is_boolean()) line.refuse("`judged` of `plan` should be true or false");
    row.plan_verdict = {judged.get<bool>(), line.optional_text(field, "reason")};
    if (!field.contains("collectives")) return;
  }
  for (const Json& one : field.is_object() ? line.list(field, "collectives") : line.list(json, "plan"))
    row.plan.push_back(plan_of(line, one));
}

void read_memory(const Line& line, const Json& json, verdict::CaseResult& row) {
  for (const auto& [key, value] : json.items()) {
    if (key != "stages") {
      row.memory[key] = line.as_integer(value, key.c_str());
      continue;
    }
    for (const auto& [stage, peaks] : line.checked_object(value, "stages").items()) {
      row.stage_memory.emplace_back(stage, verdict::MemoryPeaks{});
      for (const auto& [purpose, bytes] : line.checked_object(peaks, stage.c_str()).items()) {
        row.stage_memory.back().second[purpose] = line.as_integer(bytes, purpose.c_str());
      }
    }
  }
}

verdict::Failure failure_of(const Line& line, const Json& json) {
  verdict::Failure failure;
  failure.check = line.text(json, "check");
  failure.file = line.text(json, "file");
  failure.line = line.small_or(json, "line", 0);
  failure.column = line.small_or(json, "column", 0);
  failure.scenario_line = line.small_or(json, "scenario_line", 0);
  failure.rank = line.small_or(json, "rank", -1);
  failure.iteration = line.small_or(json, "iteration", -1);
  failure.message = line.text(json, "message");
  if (json.contains("source"))
    for (const Json& each : line.list(json, "source")) failure.source.push_back(line.as_text(each, "source"));
  for (const Json& other : line.list(json, "also")) failure.also.push_back(line.as_text(other, "also"));
  return failure;
}

verdict::CaseResult case_of(const Line& line, const Json& json) {
  verdict::CaseResult row;
  row.scenario = line.text(json, "scenario");
  row.case_id = line.text(json, "case");
  row.file = line.optional_text(json, "file");
  if (!line.field(json, "mirrors").is_null()) row.mirrors = line.small(json, "mirrors");
  for (const auto& [name, value] : line.object(json, "params").items()) row.params.emplace_back(name, value.dump());
  row.world_size = line.small(json, "world_size");
  row.launch = line.text(json, "launch");
  row.device = line.text(json, "device");
  row.sum_order = line.optional_text(json, "sum_order");
  try {
    row.status = verdict::status_from_name(line.text(json, "status"));
  } catch (const Error& error) {
    line.refuse(error.message());
  }
  row.reason = line.optional_text(json, "reason");
  row.seconds = line.number(json, "seconds");
  row.evidence = evidence_of(line, line.object(json, "evidence"));
  for (const Json& one : line.list(json, "collectives")) row.collectives.push_back(collective_of(line, one));
  if (json.contains("plan")) read_plan(line, json, row);
  if (row.plan_verdict && json.contains("not_planned"))
    for (const Json& text : line.list(json, "not_planned"))
      row.plan_verdict->left_out.push_back(line.as_text(text, "not_planned"));
  read_memory(line, line.object(json, "memory"), row);
  for (const auto& [name, ranks] : line.object(json, "records").items()) {
    if (!ranks.is_array()) line.refuse(str("the record '", name, "' should be a list with one entry per rank"));
    for (const Json& value : ranks) row.records[name].push_back(value.dump());
  }
  if (json.contains("failure")) row.failure = failure_of(line, line.object(json, "failure"));
  row.timeline = line.optional_text(json, "timeline");
  row.repro = line.text(json, "repro");
  return row;
}

verdict::Summary summary_of(const Line& line, const Json& json) {
  verdict::Summary summary;
  const Json& counts = line.object(json, "counts");
  for (const auto& [name, value] : counts.items()) summary.counts[name] = line.small(counts, name.c_str());
  summary.seconds = line.number(json, "seconds");
  summary.exit_code = line.small(json, "exit_code");
  if (json.contains("plan")) {
    const Json& plan = line.object(json, "plan");
    summary.num_plans_judged = line.small(plan, "judged");
    if (plan.contains("rank_seconds"))
      summary.planning = {line.number(plan, "seconds"), line.number(plan, "rank_seconds"),
                          line.small(plan, "dry_runs")};
    const Json& kinds = line.object(plan, "not_judged");
    for (const auto& [kind, count] : kinds.items()) summary.plans_not_judged[kind] = line.small(kinds, kind.c_str());
  }
  return summary;
}

}  // namespace

ResultsFile parse_results(std::string_view text, const std::string& path) {
  ResultsFile file;
  file.path = path;
  bool run_seen = false;
  int number = 0;
  while (!text.empty()) {
    ++number;
    const std::size_t end = text.find('\n');
    const bool last_and_open = end == std::string_view::npos;
    const std::string_view content = text.substr(0, end);
    text.remove_prefix(last_and_open ? text.size() : end + 1);
    if (content.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const Line line(path, number);
    const Json json = Json::parse(content, nullptr, false);
    if (json.is_discarded() && last_and_open && run_seen) {
      file.warnings.push_back(
          str(path, ":", number, ": the last line is cut off; the ", file.cases.size(), " results before it are kept"));
      break;
    }
    if (json.is_discarded()) line.refuse("this is not JSON");
    if (!json.is_object()) line.refuse(str("a line should be a JSON object, not ", json.type_name()));
    if (const auto key = doubled_key(content)) line.refuse(str("an object has the key '", *key, "' twice"));
    const std::string kind = line.text(json, "kind");
    if (!run_seen && kind != "run") line.refuse(str("the first line should be of kind 'run', not '", kind, "'"));
    if (file.summary) line.refuse("a line follows the summary");
    if (kind == "run") {
      if (run_seen) line.refuse("a second run begins here, but a results file holds one run");
      file.run = run_of(line, json);
      run_seen = true;
    } else if (kind == "case") {
      file.cases.push_back(case_of(line, json));
    } else if (kind == "summary") {
      file.summary = summary_of(line, json);
    } else {
      line.refuse(str("a results file has no lines of kind '", kind, "'"));
    }
  }
  if (!run_seen) throw Error(str(path, " is empty"), remedy);
  if (!file.summary) {
    file.warnings.push_back(str(path, " has no summary: the run was cut short"));
  }
  return file;
}

ResultsFile read_results(const std::string& path) {
  constexpr std::int64_t most_bytes = std::int64_t{1} << 30;
  std::string text;
  try {
    text = scenario::read_regular_file(path, most_bytes);
  } catch (const ResourceError&) {
    throw;
  } catch (const Error& error) {
    throw Error(error.message(), remedy);
  }
  return parse_results(text, path);
}

}  // namespace lockstep::report
