// The evaluation of one file before launch: its budget, and its progress, which another process can read
// (harness/cli/watched.hpp).
//
//   const Evaluation evaluation(scenario->file, "the rules of a scenario");   // the budget starts
//   note_line(expr.line, expr.column);
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "harness/scenario/budget.hpp"

namespace lockstep::scenario {

// The place that evaluation has reached. It may be in memory that processes share: one process writes, and another
// reads when the first has ended or exceeds its time.
struct Progress {
  std::atomic<std::int64_t> num_files{0};  // files that were begun
  std::atomic<std::int64_t> cpu_ns{0};     // processor time of the writer when the last file was begun, in ns
  std::atomic<int> line{0}, column{0};
  char file[1024] = "";
};

// Sets the object that this process writes its progress to; null (the default): none.
void share_progress(Progress* progress);
void note_line(int line, int column);
// "file:line:column", as far as it is known; empty before the first file.
std::string place_of(const Progress& progress);

class Evaluation {
 public:
  // `of` names the user of the budget, for messages.
  Evaluation(const std::string& file, std::string of);

 private:
  Budget budget_;
  BudgetScope scope_;
};

}  // namespace lockstep::scenario
