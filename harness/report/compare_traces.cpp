#include "harness/report/compare_traces.hpp"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <set>

#include <nlohmann/json.hpp>

#include "engine/core/error.hpp"
#include "engine/core/text.hpp"
#include "harness/report/results_file.hpp"
#include "harness/report/text.hpp"
#include "harness/scenario/regular_file.hpp"

namespace lockstep::report {

namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

bool is_trace_name(const std::string& name) {
  return name.starts_with("case-") && name.find(".rank-") != std::string::npos && name.ends_with(".jsonl");
}

// The numbers in a name, so that case-2 sorts before case-10.
std::vector<std::size_t> numbers_in(const std::string& name) {
  std::vector<std::size_t> numbers;
  for (std::size_t i = 0; i < name.size();) {
    if (name[i] < '0' || name[i] > '9') {
      ++i;
      continue;
    }
    std::size_t number = 0;
    for (; i < name.size() && name[i] >= '0' && name[i] <= '9'; ++i)
      number = number * 10 + static_cast<std::size_t>(name[i] - '0');
    numbers.push_back(number);
  }
  return numbers;
}

TraceRecord record_from(const Json& json) {
  TraceRecord record;
  record.what = json.at("what").get<std::string>();
  record.path = json.at("path").get<std::string>();
  record.part = json.at("part").get<int>();
  record.iteration = json.at("iteration").get<int>();
  record.line = json.at("line").get<int>();
  record.type = json.at("type").get<std::string>();
  record.sizes = json.at("sizes").get<std::vector<std::int64_t>>();
  record.hash = json.at("hash").get<std::string>();
  return record;
}

// A case id without some keys: ("world_size=2,launch=process,device=cpu", {"launch"}) -> "world_size=2,device=cpu".
std::string without(const std::string& case_id, const std::vector<std::string_view>& keys) {
  std::string kept;
  std::istringstream parts(case_id);
  for (std::string part; std::getline(parts, part, ',');) {
    const bool dropped =
        std::any_of(keys.begin(), keys.end(), [&](std::string_view key) { return part.starts_with(str(key, "=")); });
    if (!dropped) kept += str(kept.empty() ? "" : ",", part);
  }
  return kept;
}

struct RunOfCase {
  std::string scenario;
  std::string case_id;
  std::map<std::pair<std::string, int>, const RankTrace*> ranks;  // by stage and rank
};

// The cases in the order of the traces. Of a repeated case only the first run is kept.
std::vector<RunOfCase> cases_of(const std::vector<RankTrace>& traces) {
  std::vector<RunOfCase> cases;
  std::map<std::pair<std::string, std::string>, std::size_t> place;
  for (const RankTrace& trace : traces) {
    const auto [at, added] = place.emplace(std::pair(trace.scenario, trace.case_id), cases.size());
    if (added) cases.push_back({trace.scenario, trace.case_id, {}});
    cases[at->second].ranks.emplace(std::pair(trace.stage, trace.rank), &trace);
  }
  return cases;
}

const RunOfCase* partner_of(const RunOfCase& one, const std::vector<RunOfCase>& others) {
  static const std::vector<std::vector<std::string_view>> steps = {{}, {"launch"}, {"device"}, {"launch", "device"}};
  for (const auto& keys : steps)
    for (const RunOfCase& other : others)
      if (other.scenario == one.scenario && without(other.case_id, keys) == without(one.case_id, keys)) return &other;
  return nullptr;
}

std::size_t first_difference(const std::vector<TraceRecord>& a, const std::vector<TraceRecord>& b) {
  const auto same = [](const TraceRecord& left, const TraceRecord& right) { return left.same_bits_as(right); };
  return static_cast<std::size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end(), same).first - a.begin());
}

// Adds the first difference of each stage to `into`.
void compare_case(const RunOfCase& before, const RunOfCase& after, TraceComparison& into) {
  static const std::vector<TraceRecord> none;
  std::set<std::pair<std::string, int>> keys;
  for (const auto& [key, trace] : before.ranks) keys.insert(key);
  for (const auto& [key, trace] : after.ranks) keys.insert(key);
  std::map<std::string, TraceDifference> of_stage;
  for (const auto& key : keys) {
    const auto left = before.ranks.find(key), right = after.ranks.find(key);
    const std::vector<TraceRecord>& a = left == before.ranks.end() ? none : left->second->records;
    const std::vector<TraceRecord>& b = right == after.ranks.end() ? none : right->second->records;
    const std::size_t index = first_difference(a, b);
    into.num_records += std::min(a.size(), b.size());
    if (index == a.size() && index == b.size()) continue;
    TraceDifference found{
        before.scenario, before.case_id, after.case_id, key.first, key.second, index, {}, {}, a.size(), b.size(), {}};
    if (index < a.size()) found.before = a[index];
    if (index < b.size()) found.after = b[index];
    const auto [at, added] = of_stage.emplace(key.first, found);
    if (added) continue;
    if (index < at->second.index) {
      found.also = std::move(at->second.also);
      found.also.emplace_back(at->second.rank, at->second.index);
      at->second = std::move(found);
    } else {
      at->second.also.emplace_back(key.second, index);
    }
  }
  for (auto& [stage, found] : of_stage) {
    std::sort(found.also.begin(), found.also.end());
    into.differences.push_back(std::move(found));
  }
}

std::string sizes_text(const std::vector<std::int64_t>& sizes) {
  std::string text;
  for (const std::int64_t size : sizes) text += str(text.empty() ? "" : ", ", size);
  return str("(", text, ")");
}

std::string describe(const TraceRecord& record) {
  std::string text = record.iteration >= 0 ? str("iteration ", record.iteration, ", ") : std::string();
  if (record.what == "gradient")
    text += str("gradient of ", record.path);
  else if (record.what == "backward")
    text += str("backward, gradient of the output of ", record.path);
  else
    text += str(record.what, " of ", record.path);
  if (record.part > 0) text += str(", output ", record.part);
  text += str(", ", record.type, " ", sizes_text(record.sizes));
  return record.line > 0 ? str(text, ", line ", record.line) : text;
}

std::string hash_text(const TraceRecord& record) { return record.hash.empty() ? "not taken" : record.hash; }

std::string describe(const TraceDifference& found) {
  std::string text = str("  rank ", found.rank, found.stage.empty() ? "" : str(", stage ", found.stage), ", record ",
                         found.index + 1, ": ");
  if (!found.before || !found.after) {
    const TraceRecord& there = found.before ? *found.before : *found.after;
    text += str("only the ", found.before ? "first" : "second", " run has it: ", describe(there), "\n");
  } else {
    TraceRecord same = *found.after;
    same.hash = found.before->hash;
    if (same.same_bits_as(*found.before))
      text += str(describe(same), "\n    hash ", hash_text(*found.before), " and ", hash_text(*found.after), "\n");
    else
      text += str("the runs did different things\n    first:  ", describe(*found.before),
                  "\n    second: ", describe(*found.after), "\n");
  }
  text += str("    ", found.index, " records before it agree, of ", found.num_before,
              found.num_before == found.num_after ? "" : str(" and ", found.num_after), "\n");
  std::string also;
  for (const auto& [rank, index] : found.also)
    also += str(also.empty() ? "" : ", ", "rank ", rank, " at record ", index + 1);
  return also.empty() ? text : str(text, "    also ", also, "\n");
}

Json json_of(const std::optional<TraceRecord>& record) {
  if (!record) return nullptr;
  return {{"what", record->what}, {"path", record->path}, {"part", record->part},   {"iteration", record->iteration},
          {"line", record->line}, {"type", record->type}, {"sizes", record->sizes}, {"hash", record->hash}};
}

}  // namespace

bool TraceRecord::same_bits_as(const TraceRecord& other) const {
  return what == other.what && path == other.path && part == other.part && iteration == other.iteration &&
         type == other.type && sizes == other.sizes && hash == other.hash;
}

RankTrace parse_trace(std::string_view text, const std::string& path) {
  RankTrace trace;
  std::istringstream lines{std::string(text)};
  int number = 0;
  bool ended = false;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    try {
      const Json json = Json::parse(line);
      if (const auto key = doubled_key(line)) throw Error(str("an object has the key '", *key, "' twice"));
      if (ended) throw Error("a line follows the last one");
      if (number == 1) {
        if (json.at("kind") != "trace") throw Error("the first line is not of a trace");
        trace.scenario = json.at("scenario").get<std::string>();
        trace.case_id = json.at("case").get<std::string>();
        trace.stage = json.at("stage").get<std::string>();
        trace.rank = json.at("rank").get<int>();
        trace.world_size = json.at("world_size").get<int>();
      } else if (json.contains("kind")) {
        if (json.at("records").get<std::size_t>() != trace.records.size()) throw Error("records are missing");
        ended = true;
      } else {
        trace.records.push_back(record_from(json));
      }
    } catch (const std::exception& error) {
      throw Error(str(path, ":", number, ": this is not a trace of bits: ", error.what()),
                  "give a folder of run --trace-bits");
    }
  }
  if (!ended)
    throw Error(str(path, ": the trace is cut short after ", number, " lines"), "run again with --trace-bits");
  return trace;
}

std::vector<RankTrace> read_traces(const std::string& folder) {
  std::vector<fs::path> files;
  std::error_code failed;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, failed))
    if (is_trace_name(entry.path().filename().string())) files.push_back(entry.path());
  if (failed || files.empty())
    throw Error(str("there are no traces of bits in ", folder), "write them with lockstep run --trace-bits FOLDER");
  std::sort(files.begin(), files.end(), [](const fs::path& a, const fs::path& b) {
    return numbers_in(a.filename().string()) < numbers_in(b.filename().string());
  });
  std::vector<RankTrace> traces;
  for (const fs::path& file : files) {
    constexpr std::int64_t most_bytes = std::int64_t{1} << 30;
    traces.push_back(parse_trace(scenario::read_regular_file(file.string(), most_bytes), file.string()));
  }
  return traces;
}

void clear_traces(const std::string& folder) { clear_files(folder, is_trace_name, "--trace-bits"); }

TraceComparison compare_traces(const std::vector<RankTrace>& before, const std::vector<RankTrace>& after) {
  TraceComparison comparison;
  const std::vector<RunOfCase> left = cases_of(before), right = cases_of(after);
  std::set<const RunOfCase*> used;
  for (const RunOfCase& one : left) {
    const RunOfCase* other = partner_of(one, right);
    if (!other) {
      comparison.unpaired.push_back(str(one.scenario, " [", one.case_id, "]"));
      continue;
    }
    used.insert(other);
    ++comparison.num_cases;
    compare_case(one, *other, comparison);
  }
  for (const RunOfCase& one : right)
    if (!used.contains(&one)) comparison.extra.push_back(str(one.scenario, " [", one.case_id, "]"));
  if (comparison.num_records == 0 && comparison.differences.empty())
    throw Error("the two runs have no output and no gradient that could be compared",
                "run the same scenarios, with models in them, both times");
  return comparison;
}

std::string to_text(const TraceComparison& comparison) {
  std::string text;
  for (const TraceDifference& found : comparison.differences) {
    text += str("differs     ", found.scenario, " [", found.case_before, "]");
    if (found.case_after != found.case_before) text += str(" and [", found.case_after, "]");
    text += str("\n", describe(found));
  }
  for (const std::string& name : comparison.unpaired) text += str("missing     ", name, " in the second run\n");
  for (const std::string& name : comparison.extra) text += str("extra       ", name, " in the second run\n");
  std::set<std::pair<std::string, std::string>> differing;
  for (const TraceDifference& found : comparison.differences) differing.insert({found.scenario, found.case_before});
  const std::int64_t num_differing = std::ssize(differing);
  text += str(plural(comparison.num_cases, "case"), " compared, ",
              plural(static_cast<std::int64_t>(comparison.num_records), "record"), "; ", plural(num_differing, "case"),
              num_differing == 1 ? " differs, " : " differ, ", comparison.unpaired.size(), " missing\n");
  return printable(text);
}

std::string to_json(const TraceComparison& comparison) {
  Json differences = Json::array();
  for (const TraceDifference& found : comparison.differences) {
    Json also = Json::array();
    for (const auto& [rank, index] : found.also) also.push_back({{"rank", rank}, {"record", index}});
    differences.push_back({{"scenario", found.scenario},
                           {"case", found.case_before},
                           {"case_after", found.case_after},
                           {"stage", found.stage},
                           {"rank", found.rank},
                           {"record", found.index},
                           {"before", json_of(found.before)},
                           {"after", json_of(found.after)},
                           {"also", also}});
  }
  return Json{{"kind", "trace_comparison"},         {"cases", comparison.num_cases},
              {"records", comparison.num_records},  {"differences", differences},
              {"missing", comparison.unpaired},     {"extra", comparison.extra},
              {"exit_code", comparison.exit_code()}}
      .dump();
}

int compare_traces_command(const std::string& before, const std::string& after, bool json) {
  const TraceComparison comparison = compare_traces(read_traces(before), read_traces(after));
  const std::string text = json ? to_json(comparison) + "\n" : to_text(comparison);
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
  return comparison.exit_code();
}

}  // namespace lockstep::report
