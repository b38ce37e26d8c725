// The results file, results.jsonl: one JSON object per line, first the run, then the cases in the order of their ends,
// then the summary. Each line reaches the file as soon as it is written. Fields and their order are the contract
// described in harness/README.md.
//
//   ResultsWriter writer("build/report/results.jsonl");
//   writer.write(run_info);  writer.write(case_result);  writer.write(summary);
//   ResultsFile file = read_results("build/report/results.jsonl");
//
// Floating-point numbers read back to the same bits; "nan", "inf" and "-inf" are strings. An unknown rank, iteration,
// line or column of a failure is null. A row has "reason" when there is one (SKIP, UNSUPPORTED, XFAIL, XPASS, MISSING).
// A writer is used from one thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/json_text.hpp"
#include "harness/verdict/results.hpp"

namespace lockstep::report {

// One line without its newline.
std::string json_line(const verdict::RunInfo& run);
std::string json_line(const verdict::CaseResult& row);
std::string json_line(const verdict::Summary& summary);

// The text as a JSON string, with its quotes. Invalid UTF-8 becomes U+FFFD.
std::string json_text(std::string_view text);

class ResultsWriter {
 public:
  // Creates the folder and replaces the file. Throws Error when either cannot be written, and when another run holds
  // the lock (flock) on the file.
  explicit ResultsWriter(const std::string& path);
  ~ResultsWriter();
  ResultsWriter(const ResultsWriter&) = delete;
  ResultsWriter& operator=(const ResultsWriter&) = delete;

  // The complete line is in the file when the call returns. If it does not fit (a full disk), none of it stays, and the
  // call throws ResourceError.
  void write(const verdict::RunInfo& run);
  void write(const verdict::CaseResult& row);
  void write(const verdict::Summary& summary);

 private:
  void write_line(std::string line);
  std::string path_;
  int file_ = -1;
  bool is_regular_ = false;
  std::int64_t whole_bytes_ = 0;  // length of the lines so far
};

struct ResultsFile {
  std::string path;
  verdict::RunInfo run;
  std::vector<verdict::CaseResult> cases;  // in the order of the file; a repeated case appears several times
  std::optional<verdict::Summary> summary;
  std::vector<std::string> warnings;  // a last line that is cut off, a missing summary
};

// Throws Error with path:line for a file that is not a results file: a line that is not JSON, an object with a key
// twice, a field that is missing or of the wrong type, no run in the first line. A last line that is cut off gives a
// warning, and the lines before it are kept.
ResultsFile read_results(const std::string& path);
ResultsFile parse_results(std::string_view text, const std::string& path);

}  // namespace lockstep::report
