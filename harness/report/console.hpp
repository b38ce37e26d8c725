// The console output of a run: a line per case, failures in full, and the counts at the end.
//
//   Console console(std::cout, console_options(STDOUT_FILENO, When::automatic, When::automatic, 0));
//   console.begin(cases.size());
//   console.finished(row);  ...
//   console.end(summary, "build/report/results.jsonl");
//
// Quiet output has only unexpected results and the counts. Verbose output adds evidence, collectives and reasons. A
// terminal also gets a progress line, which is erased before anything else is written. Used from one thread.
#pragma once

#include <iosfwd>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "harness/verdict/results.hpp"

namespace lockstep::report {

enum class When { automatic, always, never };
// "auto", "always", "never"; throws Error.
When when_from_name(std::string_view name);

struct ConsoleOptions {
  bool color = false;
  bool progress = false;
  int verbosity = 0;  // -1 quiet, 0, 1 verbose
  int width = 80;     // columns of the progress line, at most
  std::string note;   // a line of the summary: what the reader of a result must know about the machine
};

// With When::automatic, a terminal gets a progress line and colors, unless TERM is dumb; NO_COLOR turns colors off.
ConsoleOptions console_options(int file_descriptor, When color, When progress, int verbosity);

class Console {
 public:
  Console(std::ostream& out, ConsoleOptions options);
  void begin(int num_cases);
  void finished(const verdict::CaseResult& row);
  // Prints a text between the lines, such as a warning.
  void note(std::string_view text);
  // Prints the unexpected results once more in short, the counts, the time, and the path of the results file.
  void end(const verdict::Summary& summary, const std::string& results_path = {});

 private:
  void wipe();
  void draw();
  std::string paint(std::string_view text, std::string_view color) const;
  std::string status_text(verdict::Status status) const;
  std::ostream& out_;
  ConsoleOptions options_;
  int num_cases_ = 0;
  int num_finished_ = 0;
  int num_with_library_sums_ = 0;      // of the cases that ran
  std::int64_t num_bits_relaxed_ = 0;  // comparisons
  bool drawn_ = false;
  std::string last_;
  std::vector<std::string> unexpected_;
  std::map<std::string, int> missing_;  // number of cases that did not run, by reason
};

// A failure in full: place, check, message, the failures of some other ranks, and the command that runs the case again.
std::string failure_text(const verdict::CaseResult& row);
// "file:line:column", as far as it is known, and the line that uses the routine of the file; empty without a file.
std::string place_text(const verdict::Failure& failure);

}  // namespace lockstep::report
