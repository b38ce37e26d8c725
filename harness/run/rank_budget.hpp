// The budget of one rank while a case runs: memory for tensors and values together, and output, which is what it
// records and the files that it writes. Enforced where they grow, so that the failure names the step.
//
//   RankBudget budget(spec.limits);               // from now on, until it is destroyed, on this thread
//   budget.write(file, "state.json", bytes);            // throws scenario::BudgetError before the file would be
//   written
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
  // The rank's context is current, and stays so.
  explicit RankBudget(const RankLimits& limits);
  RankBudget(const RankBudget&) = delete;
  RankBudget& operator=(const RankBudget&) = delete;

  // A record or file of the same name replaces the one before. A file counts in whole blocks of 4 KiB, as on a disk.
  void record(const std::string& name, std::size_t bytes);
  void write(const std::string& file, const std::string& shown, std::size_t bytes);

  // For an allocation that the machine refused: the backstop of memory that nothing above counts.
  std::string out_of_memory() const;

 private:
  void take(const std::string& key, const std::string& what, std::int64_t bytes);

  RankLimits limits_;
  scenario::Budget memory_;
  scenario::BudgetScope scope_;
  std::map<std::string, std::int64_t> outputs_;
  std::int64_t output_bytes_ = 0;
};

}  // namespace lockstep::run
