#include "harness/cli/defect_questions.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>

#include <sys/mman.h>

#include "engine/core/checked.hpp"
#include "engine/core/resources.hpp"

namespace lockstep::cli {

namespace {

std::size_t bytes_of(std::size_t num_rows) {
  return static_cast<std::size_t>(bounded_product(static_cast<std::int64_t>(num_rows), num_defects()));
}

}  // namespace

DefectQuestions::DefectQuestions(const std::vector<scenario::Case>& cases) {
  for (const scenario::Case& one : cases) number_of_.emplace(std::pair(one.scenario->name, one.id), number_of_.size());
  known_.resize(number_of_.size());
  void* const memory =
      ::mmap(nullptr, bytes_of(known_.size() + 1), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw resource_error("mapping the memory of the questions about defects", errno);
  rows_ = static_cast<unsigned char*>(memory);
  keep_account_of_questions(rows_ + bytes_of(known_.size()));
}

DefectQuestions::~DefectQuestions() {
  keep_account_of_questions(nullptr);
  ::munmap(rows_, bytes_of(known_.size() + 1));
}

std::size_t DefectQuestions::number_of(const scenario::Case& test_case) const {
  return number_of_.at({test_case.scenario->name, test_case.id});
}

void DefectQuestions::begin(const scenario::Case& test_case) {
  keep_account_of_questions(rows_ + bytes_of(number_of(test_case)));
}

void DefectQuestions::end(const scenario::Case& test_case, const verdict::CaseResult& row, Defect armed) {
  const bool ended_well = row.status == verdict::Status::PASS || row.status == verdict::Status::XFAIL;
  if (ended_well && !reaches(test_case, armed)) known_[number_of(test_case)] = true;
}

bool DefectQuestions::asked(std::size_t number, Defect defect) const {
  const std::size_t at = bytes_of(number) + static_cast<std::size_t>(defect) - 1;
  return std::atomic_ref(rows_[at]).load(std::memory_order_relaxed) != 0;
}

bool DefectQuestions::reaches(const scenario::Case& test_case, Defect defect) const {
  return asked(number_of(test_case), defect) || asked(known_.size(), defect);
}

int DefectQuestions::num_reaching(Defect defect) const {
  if (asked(known_.size(), defect)) return static_cast<int>(known_.size());
  int num = 0;
  for (std::size_t number = 0; number < known_.size(); ++number) num += asked(number, defect) ? 1 : 0;
  return num;
}

std::vector<scenario::Case> DefectQuestions::unreaching_last(const std::vector<scenario::Case>& cases,
                                                             Defect defect) const {
  std::vector<const scenario::Case*> reaching, unknown, others;
  for (const scenario::Case& one : cases) {
    if (reaches(one, defect))
      reaching.push_back(&one);
    else
      (known_[number_of(one)] ? others : unknown).push_back(&one);
  }
  std::vector<scenario::Case> order;
  for (std::size_t i = 0; i < std::max(reaching.size(), unknown.size()); ++i)
    for (const std::vector<const scenario::Case*>* list : {&reaching, &unknown})
      if (i < list->size()) order.push_back(*(*list)[i]);
  for (const scenario::Case* one : others) order.push_back(*one);
  return order;
}

}  // namespace lockstep::cli
