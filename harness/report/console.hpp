// What a person sees while cases run: a line a case, failures in full, the counts at the end.
//
//   Console console(std::cout, console_options(STDOUT_FILENO, When::automatic, When::automatic, 0));
//   console.begin(cases.size());
//   console.finished(row);  ...
//   console.end(summary, "build/report/results.jsonl");
//
// Quiet shows what is unexpected and the counts; verbose adds evidence, collectives and reasons. The progress line, on
// a terminal only, says how far the run is and is wiped before anything else is written. One thread at a time.
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
  int width = 80;     // columns the progress line may take
};

// Colours and progress by themselves on a terminal only (colours also not with NO_COLOR or TERM=dumb).
ConsoleOptions console_options(int file_descriptor, When color, When progress, int verbosity);

class Console {
 public:
  Console(std::ostream& out, ConsoleOptions options);
  void begin(int num_cases);
  void finished(const verdict::CaseResult& row);
  // Anything else that is to appear between the lines, such as a warning.
  void note(std::string_view text);
  // Unexpected results once more in short, counts, time, where the results are.
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
  bool drawn_ = false;
  std::string last_;
  std::vector<std::string> unexpected_;
  std::map<std::string, int> missing_;  // cases that did not run, by reason
};

// A failure in full: place, check, message, what other ranks said, how to run it again.
std::string failure_text(const verdict::CaseResult& row);
// "file:line:column", as much of it as is known; "" when nothing is.
std::string place_text(const verdict::Failure& failure);

}  // namespace lockstep::report
