#include "harness/cli/defect_catch.hpp"

#include <algorithm>
#include <string_view>

namespace lockstep::cli {

namespace {

std::optional<DefectKind> kind_of_check(std::string_view check) {
  if (check == "expect_collectives" || check == "expect_events" || check == "plan" || check == "witness")
    return DefectKind::count;
  if (check == "order" || check == "plan_order" || check == "expect_launches") return DefectKind::order;
  if (check == "raises") return DefectKind::message;
  if (check == "expect" || check.starts_with("expect_")) return DefectKind::value;
  return {};
}

// The step at a line of the scenario's file; null when there is none.
const scenario::Step* step_at(const scenario::Steps& steps, int line) {
  for (const scenario::Step& step : steps) {
    if (step.place.line == line) return &step;
    for (const scenario::Steps* inner : {&step.steps, &step.otherwise}) {
      if (const scenario::Step* found = step_at(*inner, line)) return found;
    }
    for (const scenario::Branch& branch : step.among) {
      if (const scenario::Step* found = step_at(branch.steps, line)) return found;
    }
  }
  return nullptr;
}
const scenario::Step* step_at(const scenario::Case& test_case, int line) {
  for (const scenario::Stage& stage : test_case.scenario->stages) {
    if (const scenario::Step* found = step_at(stage.steps, line)) return found;
  }
  return nullptr;
}

std::optional<DefectKind> kind_of_step(const scenario::Step& step) {
  if (step.raises) return DefectKind::message;
  if (step.verb == scenario::Verb::expect && step.argument("that")) {
    const std::string condition = to_text(*step.argument("that"));
    if (condition.find(".peak_bytes") != std::string::npos || condition.find("memory(") != std::string::npos)
      return DefectKind::memory;
  }
  return kind_of_check(scenario::name_of(step.verb));
}

}  // namespace

std::optional<DefectKind> kind_shown_by(const verdict::CaseResult& row, const scenario::Case& test_case) {
  if (row.status == verdict::Status::XPASS) {
    if (!test_case.expect_failure || !test_case.expect_failure->line) return {};
    const scenario::Step* step = step_at(test_case, *test_case.expect_failure->line);
    return step ? kind_of_step(*step) : std::nullopt;
  }
  if (row.status != verdict::Status::FAIL || !row.failure) return {};
  // The line of a failure inside a routine is of the routine's file.
  const bool in_own_file = row.failure->scenario_line == 0;
  if (const scenario::Step* step = in_own_file ? step_at(test_case, row.failure->line) : nullptr) {
    if (step->raises || row.failure->check == "expect") return kind_of_step(*step);
  }
  return kind_of_check(row.failure->check);
}

bool shows_kind(const verdict::CaseResult& row, const scenario::Case& test_case, DefectKind kind) {
  if (kind_shown_by(row, test_case) == kind) return true;
  if (row.status != verdict::Status::FAIL || !row.failure) return false;
  if (kind == DefectKind::order && row.failure->check == "expect_events") return true;
  return std::any_of(row.failure->also_checks.begin(), row.failure->also_checks.end(),
                     [&](const std::string& check) { return kind_of_check(check) == kind; });
}

bool DefectTally::add(const verdict::CaseResult& row, const scenario::Case& test_case) {
  if (row.status == verdict::Status::MISSING) return false;
  ++num_run_;
  if (!verdict::is_unexpected(row.status)) return false;
  const bool catches = shows_kind(row, test_case, kind_);
  const std::string check = row.failure ? row.failure->check : std::string(verdict::name_of(row.status));
  (catches ? catches_ : others_).insert({row.scenario, check, row.case_id});
  return catches;
}

}  // namespace lockstep::cli
