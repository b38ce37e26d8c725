#include "harness/verdict/results.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "engine/core/error.hpp"

namespace lockstep::verdict {

namespace {

constexpr std::string_view status_names[num_statuses] = {"PASS",        "FAIL", "XFAIL", "XPASS",   "SKIP",
                                                         "UNSUPPORTED", "HANG", "CRASH", "INVALID", "MISSING"};

double larger_difference(double a, double b) {
  if (std::isnan(a)) return a;
  if (std::isnan(b)) return b;
  return std::max(a, b);
}

}  // namespace

std::string_view name_of(Status status) { return status_names[static_cast<int>(status)]; }

Status status_from_name(std::string_view name) {
  const auto* const at = std::ranges::find(status_names, name);
  if (at != std::end(status_names)) return static_cast<Status>(at - std::begin(status_names));
  throw Error(str("no verdict is named '", name, "'"),
              "the verdicts are PASS FAIL XFAIL XPASS SKIP UNSUPPORTED HANG CRASH INVALID MISSING");
}

bool is_unexpected(Status status) {
  switch (status) {
    case Status::FAIL:
    case Status::XPASS:
    case Status::HANG:
    case Status::CRASH:
    case Status::INVALID:
    case Status::MISSING:
      return true;
    case Status::PASS:
    case Status::XFAIL:
    case Status::SKIP:
    case Status::UNSUPPORTED:
      return false;
  }
  return true;
}

void PlanningCost::add(const PlanningCost& other) {
  seconds += other.seconds;
  rank_seconds += other.rank_seconds;
  num_dry_runs += other.num_dry_runs;
}

void Evidence::add(const Evidence& other) {
  comparisons += other.comparisons;
  trivial += other.trivial;
  elements += other.elements;
  same_bits += other.same_bits;
  bits_required += other.bits_required;
  bits_relaxed += other.bits_relaxed;
  max_abs_difference = larger_difference(max_abs_difference, other.max_abs_difference);
  loosest.rtol = std::max(loosest.rtol, other.loosest.rtol);
  loosest.atol = std::max(loosest.atol, other.loosest.atol);
  loosest.of_largest = std::max(loosest.of_largest, other.loosest.of_largest);
  collectives_checked += other.collectives_checked;
  orders_checked += other.orders_checked;
  errors_expected += other.errors_expected;
  planned_in_order += other.planned_in_order;
  conditions += other.conditions;
}

Evidence Evidence::with_conditions_among_comparisons() const {
  Evidence all = *this;
  all.comparisons += conditions;
  all.elements += conditions;
  all.same_bits += conditions;
  all.conditions = 0;
  all.conditions_apart = false;
  return all;
}

int exit_code_of(const std::vector<CaseResult>& results) {
  bool executed = false;
  bool unsupported = false;
  for (const CaseResult& result : results) {
    if (is_unexpected(result.status)) return 1;
    executed = executed || result.status == Status::PASS || result.status == Status::XFAIL;
    unsupported = unsupported || result.status == Status::UNSUPPORTED;
  }
  if (executed) return 0;
  return unsupported ? 77 : 4;
}

}  // namespace lockstep::verdict
