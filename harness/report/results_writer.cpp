#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/core/error.hpp"
#include "engine/core/json_text.hpp"
#include "engine/core/printable.hpp"
#include "engine/core/resources.hpp"
#include "harness/report/results_file.hpp"
#include "harness/report/target.hpp"
#include "harness/report/text.hpp"

namespace lockstep::report {

namespace {

constexpr std::string_view memory_keys[] = {"parameter", "gradient",      "gathered", "activation",
                                            "optimizer", "communication", "other",    "peak_total"};

// Builds a JSON object; fields keep the order in which they are added.
class Fields {
 public:
  Fields& raw(std::string_view key, std::string_view json) {
    text_ += str(text_.empty() ? "" : ",", json_text(key), ":", json);
    return *this;
  }
  Fields& text(std::string_view key, std::string_view value) { return raw(key, json_text(value)); }
  Fields& integer(std::string_view key, std::int64_t value) { return raw(key, str(value)); }
  Fields& number(std::string_view key, double value) { return raw(key, json_number(value)); }
  // Writes null for a value below `least`, which means unknown.
  Fields& known(std::string_view key, std::int64_t value, std::int64_t least) {
    return raw(key, value < least ? "null" : str(value));
  }
  std::string take() const { return str("{", text_, "}"); }

 private:
  std::string text_;
};

template <class List, class Render>
std::string list_of(const List& list, Render&& render) {
  std::string text;
  for (const auto& item : list) text += str(text.empty() ? "" : ",", render(item));
  return str("[", text, "]");
}

// JSON text of another layer, on one line. Text that is not JSON becomes a JSON string, so that the line stays valid.
std::string embedded(const verdict::JsonText& json) {
  if (!nlohmann::json::accept(json)) return json_text(json);
  std::string line = json;
  for (char& c : line) {
    if (c == '\n' || c == '\r') c = ' ';  // JSON has newlines only between tokens
  }
  return line;
}

bool is_count(std::string_view text) {
  return !text.empty() && text.size() < 18 && (text == "0" || text.front() != '0') &&
         text.find_first_not_of("0123456789") == std::string_view::npos;
}

// Facts of the machine are strings in memory; those that are counts become numbers in the file.
std::string facts(const std::map<std::string, std::string>& facts, bool counts) {
  Fields fields;
  for (const auto& [key, value] : facts) {
    if (counts && is_count(value)) {
      fields.raw(key, value);
    } else {
      fields.text(key, value);
    }
  }
  return fields.take();
}

std::string evidence_json(const verdict::Evidence& evidence) {
  Fields loosest;
  loosest.number("rtol", evidence.loosest.rtol).number("atol", evidence.loosest.atol);
  if (evidence.loosest.of_largest != 0) loosest.number("of_largest", evidence.loosest.of_largest);
  Fields fields;
  fields.integer("comparisons", evidence.comparisons)
      .integer("conditions", evidence.conditions)
      .integer("trivial", evidence.trivial)
      .integer("elements", evidence.elements)
      .integer("same_bits", evidence.same_bits)
      .integer("bits_required", evidence.bits_required)
      .number("max_abs_difference", evidence.max_abs_difference)
      .raw("loosest", loosest.take())
      .integer("collectives_checked", evidence.collectives_checked)
      .integer("orders_checked", evidence.orders_checked)
      .integer("errors_expected", evidence.errors_expected);
  if (evidence.bits_relaxed > 0) fields.integer("bits_relaxed", evidence.bits_relaxed);
  if (evidence.planned_in_order > 0) fields.integer("planned_in_order", evidence.planned_in_order);
  return fields.take();
}

std::string collective_json(const verdict::CollectiveCount& row) {
  Fields fields;
  fields.text("family", row.family)
      .text("operation", row.operation)
      .text("axis", row.axis)
      .integer("group_size", row.group_size)
      .text("phase", row.phase)
      .integer("count", row.count)
      .integer("bytes", row.bytes);
  if (row.rank >= 0) fields.integer("rank", row.rank);
  if (!row.stage.empty()) fields.text("stage", row.stage);
  return fields.take();
}

std::string plan_json(const verdict::PlanRow& row) {
  Fields fields;
  fields.text("family", row.family)
      .text("operation", row.operation)
      .text("axis", row.axis)
      .integer("group_size", row.group_size)
      .text("phase", row.phase)
      .integer("planned", row.planned)
      .integer("planned_bytes", row.planned_bytes);
  if (row.bytes_are_least) fields.raw("bytes_are_least", "true");
  fields.integer("observed", row.observed).integer("observed_bytes", row.observed_bytes);
  if (!row.stage.empty()) fields.text("stage", row.stage);
  return fields.take();
}

// The rows of a judged plan, or an object with `judged` and the reason. Empty: the row has no field `plan`.
std::string plan_field(const verdict::CaseResult& row) {
  const bool is_judged = !row.plan_verdict || row.plan_verdict->is_judged;
  if (is_judged && !row.plan.empty()) return list_of(row.plan, plan_json);
  if (!row.plan_verdict) return {};
  Fields fields;
  fields.raw("judged", is_judged ? "true" : "false");
  if (!is_judged) fields.text("reason", row.plan_verdict->reason);
  if (!row.plan.empty()) fields.raw("collectives", list_of(row.plan, plan_json));
  return fields.take();
}

void add_peaks(Fields& fields, const verdict::MemoryPeaks& peaks) {
  for (std::string_view key : memory_keys) {
    const auto found = peaks.find(std::string(key));
    if (found != peaks.end()) fields.integer(key, found->second);
  }
  for (const auto& [key, bytes] : peaks) {
    if (std::find(std::begin(memory_keys), std::end(memory_keys), key) == std::end(memory_keys)) {
      fields.integer(key, bytes);
    }
  }
}

std::string memory_json(const verdict::CaseResult& row) {
  Fields fields;
  add_peaks(fields, row.memory);
  if (!row.stage_memory.empty()) {
    Fields stages;
    for (const auto& [stage, peaks] : row.stage_memory) {
      Fields one;
      add_peaks(one, peaks);
      stages.raw(stage, one.take());
    }
    fields.raw("stages", stages.take());
  }
  return fields.take();
}

std::string failure_json(const verdict::Failure& failure) {
  Fields fields;
  fields.text("check", failure.check)
      .text("file", failure.file)
      .known("line", failure.line, 1)
      .known("column", failure.column, 1)
      .known("rank", failure.rank, 0)
      .known("iteration", failure.iteration, 0)
      .text("message", failure.message);
  if (failure.scenario_line > 0) fields.raw("scenario_line", str(failure.scenario_line));
  if (!failure.source.empty()) fields.raw("source", list_of(failure.source, json_text));
  return fields.raw("also", list_of(failure.also, json_text)).take();
}

}  // namespace

std::string json_text(std::string_view text) { return lockstep::json_text(valid_utf8(text)); }

std::string json_line(const verdict::RunInfo& run) {
  return Fields()
      .text("kind", "run")
      .integer("schema", 1)
      .text("version", run.version)
      .text("started", run.started)
      .raw("command", list_of(run.command, json_text))
      .raw("build", facts(run.build, false))
      .raw("machine", facts(run.machine, true))
      .take();
}

std::string json_line(const verdict::CaseResult& row) {
  Fields params;
  for (const auto& [name, value] : row.params) params.raw(name, embedded(value));
  Fields records;
  for (const auto& [name, ranks] : row.records) records.raw(name, list_of(ranks, embedded));
  Fields fields;
  fields.text("kind", "case").text("scenario", row.scenario).text("case", row.case_id);
  if (!row.file.empty()) fields.text("file", row.file);
  fields.raw("mirrors", row.mirrors ? str(*row.mirrors) : "null").raw("params", params.take());
  fields.integer("world_size", row.world_size).text("launch", row.launch).text("device", row.device);
  if (!row.sum_order.empty()) fields.text("sum_order", row.sum_order);
  fields.text("status", verdict::name_of(row.status));
  if (!row.reason.empty()) fields.text("reason", row.reason);
  fields.number("seconds", row.seconds).raw("evidence", evidence_json(row.evidence));
  fields.raw("collectives", list_of(row.collectives, collective_json));
  if (const std::string plan = plan_field(row); !plan.empty()) fields.raw("plan", plan);
  if (row.plan_verdict && !row.plan_verdict->left_out.empty())
    fields.raw("not_planned", list_of(row.plan_verdict->left_out, json_text));
  fields.raw("memory", memory_json(row));
  fields.raw("records", records.take());
  if (row.failure) fields.raw("failure", failure_json(*row.failure));
  if (!row.timeline.empty()) fields.text("timeline", row.timeline);
  return fields.text("repro", row.repro).take();
}

std::string json_line(const verdict::Summary& summary) {
  Fields counts;
  for (const auto& [name, count] : summary.counts) counts.integer(name, count);
  Fields not_judged;
  for (const auto& [kind, count] : summary.plans_not_judged) not_judged.integer(kind, count);
  Fields fields;
  fields.text("kind", "summary").raw("counts", counts.take());
  fields.number("seconds", summary.seconds).integer("exit_code", summary.exit_code);
  if (summary.num_plans_judged > 0 || !summary.plans_not_judged.empty()) {
    Fields plan;
    plan.integer("judged", summary.num_plans_judged).raw("not_judged", not_judged.take());
    if (summary.planning.rank_seconds > 0)
      plan.number("seconds", summary.planning.seconds)
          .number("rank_seconds", summary.planning.rank_seconds)
          .integer("dry_runs", summary.planning.num_dry_runs);
    fields.raw("plan", plan.take());
  }
  return fields.take();
}

ResultsWriter::ResultsWriter(const std::string& path) : path_(path) {
  make_parent_folder(path);
  check_target(path);  // opening a pipe would wait for its reader
  const auto fail = [&] {
    const int reason = errno;
    if (file_ >= 0) ::close(file_);
    const std::string opening = str("opening the results file ", printable_line(path));
    if (is_exhaustion(reason)) throw resource_error(opening, reason);
    throw Error(str(opening, ": ", std::strerror(reason)), "give a path that can be written with --results");
  };
  file_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_APPEND, 0644);
  if (file_ < 0) fail();
  struct stat about {};
  is_regular_ = ::fstat(file_, &about) == 0 && S_ISREG(about.st_mode);
  if (!is_regular_) return;
  // The ranks of a killed run inherit its lock and may outlive it for a moment.
  bool taken = true;
  for (int attempt = 0; taken && attempt < 20; ++attempt) {
    if (attempt > 0) ::usleep(50'000);
    taken = ::flock(file_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  }
  if (taken) {
    ::close(file_);
    throw Error(str("another run is writing the results file ", path), "wait for its end, or give another path");
  }
  if (::ftruncate(file_, 0) != 0) fail();
}

ResultsWriter::~ResultsWriter() {
  if (file_ >= 0) ::close(file_);
}

void ResultsWriter::write(const verdict::RunInfo& run) { write_line(json_line(run)); }
void ResultsWriter::write(const verdict::CaseResult& row) { write_line(json_line(row)); }
void ResultsWriter::write(const verdict::Summary& summary) { write_line(json_line(summary)); }

void ResultsWriter::write_line(std::string line) {
  line = printable_json(line) + '\n';
  std::string_view rest = line;
  while (!rest.empty()) {
    const ssize_t written = ::write(file_, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      const int reason = errno;
      // Remove the incomplete line, so that a reader sees only complete ones.
      if (is_regular_ && ::ftruncate(file_, whole_bytes_) != 0) is_regular_ = false;
      throw resource_error(str("writing the results file ", path_), reason);
    }
    rest.remove_prefix(static_cast<std::size_t>(written));
  }
  whole_bytes_ += static_cast<std::int64_t>(line.size());
}

}  // namespace lockstep::report
