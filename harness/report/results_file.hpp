// The results file, results.jsonl: one JSON object a line - the run, the cases as they end, the summary - written and
// flushed as it happens, and read back. Fields and their order are the contract described in harness/README.md.
//
//   ResultsWriter writer("build/report/results.jsonl");
//   writer.write(run_info);  writer.write(case_result);  writer.write(summary);
//   ResultsFile file = read_results("build/report/results.jsonl");
//
// Floating-point numbers are written so that they read back to the same bits; "nan", "inf" and "-inf" are texts. What
// is unknown of a failure (rank, iteration, line, column) is null. Rows have "reason" when there is one (SKIP,
// UNSUPPORTED, XFAIL, XPASS, MISSING). A writer belongs to one thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/json_text.hpp"
#include "harness/verdict/results.hpp"

namespace lockstep::report {

// One line each, without the newline.
std::string json_line(const verdict::RunInfo& run);
std::string json_line(const verdict::CaseResult& row);
std::string json_line(const verdict::Summary& summary);

// A JSON text (quotes included); bytes that are no UTF-8 become U+FFFD.
std::string json_text(std::string_view text);

class ResultsWriter {
 public:
  // Makes the folder and replaces the file; throws Error when either cannot be written or another run is writing the
  // file. A lock (flock) on the file keeps two runs apart.
  explicit ResultsWriter(const std::string& path);
  ~ResultsWriter();
  ResultsWriter(const ResultsWriter&) = delete;
  ResultsWriter& operator=(const ResultsWriter&) = delete;

  // Each line reaches the file whole before the call returns. When it does not (a full disk), nothing of it stays, and
  // ResourceError is thrown.
  void write(const verdict::RunInfo& run);
  void write(const verdict::CaseResult& row);
  void write(const verdict::Summary& summary);

 private:
  void write_line(std::string line);
  std::string path_;
  int file_ = -1;
  bool is_regular_ = false;
  std::int64_t whole_bytes_ = 0;  // of the lines so far
};

struct ResultsFile {
  std::string path;
  verdict::RunInfo run;
  std::vector<verdict::CaseResult> cases;  // in the order of the file; --repeat gives the same case again
  std::optional<verdict::Summary> summary;
  std::vector<std::string> warnings;  // a last line that was cut, no summary: the run did not end by itself
};

// Throws Error with path:line for anything that is not a results file: not JSON, wrong kinds, missing fields, no run at
// the top. A last line that was cut off is a warning, and what precedes it is kept.
ResultsFile read_results(const std::string& path);
ResultsFile parse_results(std::string_view text, const std::string& path);

}  // namespace lockstep::report
