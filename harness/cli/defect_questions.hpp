// Which cases reach the points of which seeded defects. The kill matrix learns it from its own runs: while one defect
// is armed, each question about any defect is kept account of, in memory that the ranks share.
//
//   DefectQuestions questions(cases);
//   run.before_ranks = [&](const scenario::Case& one) { questions.begin(one); };
//   for (const scenario::Case& one : questions.unreaching_last(cases, defect)) ...
//   questions.end(one, row, defect);
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/defects.hpp"
#include "harness/scenario/expand.hpp"
#include "harness/verdict/results.hpp"

namespace lockstep::cli {

class DefectQuestions {
 public:
  // Throws ResourceError when the memory cannot be mapped. One object per process at a time.
  explicit DefectQuestions(const std::vector<scenario::Case>& cases);
  ~DefectQuestions();
  DefectQuestions(const DefectQuestions&) = delete;
  DefectQuestions& operator=(const DefectQuestions&) = delete;

  // In a rank of the case: from now on, its questions are those of the case.
  void begin(const scenario::Case& test_case);
  // The case ran under the defect. If it ended well and did not reach the defect, it asks the same questions in each
  // run.
  void end(const scenario::Case& test_case, const verdict::CaseResult& row, Defect armed);

  bool reaches(const scenario::Case& test_case, Defect defect) const;
  int num_reaching(Defect defect) const;  // cases; as far as known

  // The cases that reach the defect and those of which it is not known, in turns; then those that do not reach it.
  // Within each of these, in the given order.
  std::vector<scenario::Case> unreaching_last(const std::vector<scenario::Case>& cases, Defect defect) const;

 private:
  std::size_t number_of(const scenario::Case& test_case) const;
  bool asked(std::size_t number, Defect defect) const;

  std::map<std::pair<std::string, std::string>, std::size_t> number_of_;  // by scenario and case id
  std::vector<bool> known_;        // per case: its questions are known completely
  unsigned char* rows_ = nullptr;  // num_defects() bytes per case, and a row for questions of the launcher
};

}  // namespace lockstep::cli
