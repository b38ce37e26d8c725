// The budget of one rank while a case runs: memory for tensors and values together, and output, which is the records
// and the files of the rank. A request past the budget fails at once, so that the failure names the step.
//
//   RankBudget budget(spec.limits);            // limits this thread until it is destroyed
//   budget.write(file, "state.json", bytes);   // throws scenario::BudgetError before the file is written
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "harness/scenario/budget.hpp"
#include "harness/scenario/vocabulary.hpp"

namespace lockstep::run {

struct RankLimits {
  std::int64_t memory_bytes = scenario::limits::memory_mb << 20;
  std::int64_t output_bytes = scenario::limits::output_mb << 20;
};

class RankBudget {
 public:
  // The rank's context must be current for the lifetime of the budget.
  explicit RankBudget(const RankLimits& limits);
  RankBudget(const RankBudget&) = delete;
  RankBudget& operator=(const RankBudget&) = delete;

  // Count a record, or a file, before it is written. They throw scenario::BudgetError past the limit. A record or file
  // of the same name replaces the previous one. A file counts in blocks of 4 KiB, as on a disk. `shown` is its name in
  // messages.
  void record(const std::string& name, std::size_t bytes);
  void write(const std::string& file, const std::string& shown, std::size_t bytes);

  // The message for an allocation that the machine refused. Memory that no budget counts ends in such a failure.
  std::string out_of_memory() const;

 private:
  void count_output(const std::string& key, const std::string& description, std::int64_t bytes);

  RankLimits limits_;
  scenario::Budget memory_;
  scenario::BudgetScope scope_;
  std::map<std::string, std::int64_t> outputs_;
  std::int64_t output_bytes_ = 0;
};

}  // namespace lockstep::run
