// The first output or gradient in which two runs differ: `lockstep compare --trace A B`, for two folders that
// `lockstep run --trace-bits` wrote.
//
//   TraceComparison found = compare_traces(read_traces("here"), read_traces("there"));
//   std::cout << to_text(found);
//   return found.exit_code();
//
// Each file of a folder belongs to one rank of one stage of one case. It has one line of JSON that identifies them, one
// line per record in the order in which the rank made them, and a last line with their number. `what` is forward,
// recompute, backward (the gradient of an output) or gradient (the gradient of a parameter after a backward). Cases are
// paired by scenario and parameters. A case without a partner is paired with the same case of another launch or device,
// because bits must not depend on these.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::report {

struct TraceRecord {
  std::string what;
  std::string path;  // model.layers.0
  int part = 0;      // index of the output
  int iteration = -1;
  int line = 0;  // of the scenario
  std::string type;
  std::vector<std::int64_t> sizes;
  std::string hash;                                   // empty: the rank failed before it was computed
  bool same_bits_as(const TraceRecord& other) const;  // compares everything but the line
};
struct RankTrace {
  std::string scenario;
  std::string case_id;
  std::string stage;
  int rank = 0;
  int world_size = 1;
  std::vector<TraceRecord> records;
};

// Reads the traces of a folder, in the order of the numbers in their names. Throws Error for a folder without traces,
// and with path:line for a file that is not a trace or was cut short.
std::vector<RankTrace> read_traces(const std::string& folder);
RankTrace parse_trace(std::string_view text, const std::string& path);
// Removes the traces of an earlier run from a folder that may not exist yet; other files stay. Throws Error.
void clear_traces(const std::string& folder);

// The first difference between two runs of a case: on the rank whose first different record comes earliest.
struct TraceDifference {
  std::string scenario;
  std::string case_before, case_after;
  std::string stage;
  int rank = 0;
  std::size_t index = 0;              // of the record
  std::optional<TraceRecord> before;  // nothing where that run has no such record
  std::optional<TraceRecord> after;
  std::size_t num_before = 0;  // records of the rank in each run
  std::size_t num_after = 0;
  std::vector<std::pair<int, std::size_t>> also;  // the other ranks that differ, and their first different record
};
struct TraceComparison {
  std::vector<TraceDifference> differences;  // at most one per case and stage
  std::vector<std::string> unpaired;         // cases that only the first run has; they count as different
  std::vector<std::string> extra;            // cases that only the second run has; they are only shown
  int num_cases = 0;                         // compared
  std::size_t num_records = 0;
  int exit_code() const { return differences.empty() && unpaired.empty() ? 0 : 1; }
};

// Throws Error when no record of the two can be compared.
TraceComparison compare_traces(const std::vector<RankTrace>& before, const std::vector<RankTrace>& after);
std::string to_text(const TraceComparison& comparison);
std::string to_json(const TraceComparison& comparison);

// Reads both folders, prints the result to standard output, and returns 1 when something differs, otherwise 0.
int compare_traces_command(const std::string& before, const std::string& after, bool json);

}  // namespace lockstep::report
