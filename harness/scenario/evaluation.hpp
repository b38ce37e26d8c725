// The evaluation of one file before launch: its budget, and how far it has come, kept where another process can read it
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

// The place that evaluation has come to. May lie in memory that processes share: one writes, another reads when the
// first has ended or does not end.
struct Progress {
  std::atomic<std::int64_t> num_files{0};  // begun so far
  std::atomic<std::int64_t> cpu_ns{0};     // processor time of the writer when the last began
  std::atomic<int> line{0}, column{0};
  char file[1024] = "";
};

// From now on this process writes there; null: nowhere, which is how it begins.
void share_progress(Progress* progress);
void note_line(int line, int column);
// "file:line:column" as far as it is known; empty before the first file.
std::string place_of(const Progress& progress);

class Evaluation {
 public:
  // `of` names who may use the budget, for messages.
  Evaluation(const std::string& file, std::string of);

 private:
  Budget budget_;
  BudgetScope scope_;
};

}  // namespace lockstep::scenario
